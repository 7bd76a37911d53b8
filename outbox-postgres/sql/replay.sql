-- Puts dead messages of one lane back, with the position that they had, so that each stands in its
-- place among those of its key. The lowest of each key is what the key's head may have to become.
WITH moved AS (
    DELETE FROM {schema}.dead
     WHERE {decided}
    RETURNING key_hash, position, id, topic, key, payload, headers, enqueued_at, died_at
),
back AS (
    INSERT INTO {schema}.parked (key_hash, position, id, topic, key, payload, headers, enqueued_at)
    SELECT key_hash, position, id, topic, key, payload, headers, enqueued_at FROM moved
)
SELECT key_hash, min(position), count(*),
       (extract(epoch FROM clock_timestamp() - max(died_at)) * 1000000)::bigint
  FROM moved
 GROUP BY key_hash
