-- Puts dead messages of one lane back, with the position that they had, so that each stands in its
-- place among those of its key. The lowest of each key is what the key's head may have to become.
-- What died after the decision began, again perhaps, is left alone.
WITH moved AS (
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
