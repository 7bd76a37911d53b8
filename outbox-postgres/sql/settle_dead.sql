-- Gives hot rows up, with the reason.
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
INSERT INTO {schema}.dead (position, key_hash, id, topic, key, payload, headers, enqueued_at,
                           parked, failures, error_kind, error, halted)
SELECT moved.position, coalesce(hashtextextended(moved.key, 0), moved.position), moved.id, moved.topic,
       moved.key, moved.payload, moved.headers, moved.enqueued_at,
       given_up.parked, given_up.failures, given_up.error_kind, given_up.error, given_up.halted
  FROM moved
  JOIN unnest($2::bigint[], $3::integer[], $4::integer[], $5::text[], $6::text[], $7::boolean[])
       AS given_up(position, parked, failures, error_kind, error, halted)
    ON given_up.position = moved.position
