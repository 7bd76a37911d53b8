-- Makes keys of one lane due. The time is taken now, with the lane locked: a worker does not look for keys
-- that were due long ago. What was counted stays.
UPDATE {schema}.blocked
   SET due_at = clock_timestamp()
 WHERE ctid = ANY (ARRAY(
     SELECT found.ctid
       FROM unnest($1::bigint[]) AS given(key_hash)
      CROSS JOIN LATERAL (
          SELECT blocked.ctid, blocked.due_at
            FROM {schema}.blocked
           WHERE blocked.key_hash = given.key_hash
           LIMIT 1
      ) AS found
      WHERE found.due_at > clock_timestamp() AND found.due_at < 'infinity'))
