-- Gives parked rows up, with the reason.
WITH moved AS (
    DELETE FROM {schema}.parked
     WHERE ctid = ANY (ARRAY(
         SELECT found.ctid
           FROM unnest($1::bigint[], $2::bigint[]) AS settled(key_hash, position)
          CROSS JOIN LATERAL (
              SELECT parked.ctid
                FROM {schema}.parked
               WHERE parked.key_hash = settled.key_hash AND parked.position = settled.position
               LIMIT 1
          ) AS found))
    RETURNING *
)
INSERT INTO {schema}.dead (position, key_hash, id, topic, key, payload, headers, enqueued_at,
                           parked, failures, error_kind, error, halted)
SELECT moved.position, moved.key_hash, moved.id, moved.topic, moved.key, moved.payload, moved.headers,
       moved.enqueued_at,
       given_up.parked, given_up.failures, given_up.error_kind, given_up.error, given_up.halted
  FROM moved
  JOIN unnest($2::bigint[], $3::integer[], $4::integer[], $5::text[], $6::text[], $7::boolean[])
       AS given_up(position, parked, failures, error_kind, error, halted)
    ON given_up.position = moved.position
