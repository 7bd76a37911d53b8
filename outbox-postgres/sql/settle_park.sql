-- Moves hot rows to where they wait: heads that failed, and what comes behind them.
WITH moved AS (
    DELETE FROM {schema}.message
     WHERE ctid = ANY (ARRAY(
         SELECT found.ctid
           FROM unnest($1::smallint[], $2::bigint[]) AS settled(lane, position)
          CROSS JOIN LATERAL (
              SELECT message.ctid
                FROM {schema}.message
               WHERE message.lane = settled.lane AND message.position = settled.position
               LIMIT 1
          ) AS found))
    RETURNING position, id, topic, key, payload, headers, enqueued_at
)
INSERT INTO {schema}.parked (key_hash, position, id, topic, key, payload, headers, enqueued_at)
SELECT coalesce(hashtextextended(moved.key, 0), moved.position), moved.*
  FROM moved
