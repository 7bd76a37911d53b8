-- Makes the keys of replayed messages due, as if nothing of them had ever failed. A key that another
-- dead message halts stays halted. The time is taken now, with the lane locked: a worker does not look
-- for keys that were due long ago.
INSERT INTO {schema}.blocked (key_hash, lane, head, due_at)
SELECT replayed.key_hash, replayed.key_hash & 63, replayed.head,
       CASE WHEN other.halts THEN 'infinity' ELSE clock_timestamp() END
  FROM unnest($1::bigint[], $2::bigint[]) AS replayed(key_hash, head)
  LEFT JOIN LATERAL (
      SELECT true AS halts
        FROM {schema}.dead
       WHERE dead.key_hash = replayed.key_hash AND dead.halted
       LIMIT 1
  ) AS other ON true
    ON CONFLICT (key_hash) DO UPDATE
   SET head = least(blocked.head, excluded.head), due_at = excluded.due_at, tried = NULL, parked = 0,
       failures = 0, error_kind = NULL, error = NULL
