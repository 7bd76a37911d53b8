-- After the head of a key has gone: the next parked message of the key is its head and due at once; a
-- key with none is free. It runs after everything that this settle parks, so that it sees all of it.
WITH next AS MATERIALIZED (
    SELECT freed.key_hash, parked.position
      FROM unnest($1::bigint[], $2::bigint[]) AS freed(key_hash, head)
      LEFT JOIN LATERAL (
          SELECT parked.position
            FROM {schema}.parked
           WHERE parked.key_hash = freed.key_hash AND parked.position >= freed.head
           ORDER BY parked.key_hash, parked.position
           LIMIT 1
      ) AS parked ON true
),
unblocked AS (
    DELETE FROM {schema}.blocked
     USING next
     WHERE blocked.key_hash = next.key_hash AND next.position IS NULL
)
UPDATE {schema}.blocked
   SET head = next.position, due_at = clock_timestamp(), tried = NULL, parked = 0, failures = 0,
       error_kind = NULL, error = NULL
  FROM next
 WHERE blocked.key_hash = next.key_hash AND next.position IS NOT NULL
