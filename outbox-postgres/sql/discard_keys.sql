-- Lets keys go on whose halting message was dropped, unless another one halts them: the first of what
-- waits is due, and a key with nothing that waits is free.
WITH freed AS MATERIALIZED (
    SELECT blocked.key_hash, next.position
      FROM unnest($1::bigint[]) AS decided(key_hash)
      JOIN {schema}.blocked ON blocked.key_hash = decided.key_hash
      LEFT JOIN LATERAL (
          SELECT true AS halts
            FROM {schema}.dead
           WHERE dead.key_hash = decided.key_hash AND dead.halted
           LIMIT 1
      ) AS other ON true
      LEFT JOIN LATERAL (
          SELECT parked.position
            FROM {schema}.parked
           WHERE parked.key_hash = blocked.key_hash AND parked.position >= blocked.head
           ORDER BY parked.key_hash, parked.position
           LIMIT 1
      ) AS next ON true
     WHERE other.halts IS NULL
),
unblocked AS (
    DELETE FROM {schema}.blocked
     USING freed
     WHERE blocked.key_hash = freed.key_hash AND freed.position IS NULL
)
UPDATE {schema}.blocked
   SET head = freed.position, due_at = clock_timestamp(), tried = NULL, parked = 0, failures = 0,
       error_kind = NULL, error = NULL
  FROM freed
 WHERE blocked.key_hash = freed.key_hash AND freed.position IS NOT NULL
