-- Puts dead messages of one lane back, with the position that they had, so that each stands in its
-- place among those of its key. The lowest of each key is what the key's head may have to become.
WITH moved AS (
    DELETE FROM {schema}.dead
     WHERE id = ANY ($1) AND key_hash & 63 = $2
    RETURNING key_hash, position, id, topic, key, payload, headers, enqueued_at
),
back AS (
    INSERT INTO {schema}.parked (key_hash, position, id, topic, key, payload, headers, enqueued_at)
    SELECT * FROM moved
)
SELECT key_hash, min(position), count(*) FROM moved GROUP BY key_hash
