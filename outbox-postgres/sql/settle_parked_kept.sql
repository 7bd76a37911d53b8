-- Moves parked rows that were delivered to where they are kept: `settle_parked_delivered.sql`, and an insert.
WITH gone AS (
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
    RETURNING position, id, topic, key, payload, headers, enqueued_at
)
INSERT INTO {schema}.delivered (position, id, topic, key, payload, headers, enqueued_at)
SELECT * FROM gone
