-- Drops dead messages of one lane, and says which keys they halted. What died after the decision began is
-- left alone.
DELETE FROM {schema}.dead
 WHERE ctid = ANY (ARRAY(
     SELECT found.ctid
       FROM unnest($1::bigint[]) AS decided(position)
      CROSS JOIN LATERAL (
          SELECT dead.ctid, dead.died_at
            FROM {schema}.dead
           WHERE dead.position = decided.position
           LIMIT 1
      ) AS found
      WHERE found.died_at <= 'epoch'::timestamptz + $2 * interval '1 microsecond'))
RETURNING key_hash, halted, (extract(epoch FROM clock_timestamp() - died_at) * 1000000)::bigint
