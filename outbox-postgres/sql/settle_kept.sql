-- Moves hot rows that were delivered to where they are kept: `settle_delivered.sql`, and an insert.
WITH gone AS (
    DELETE FROM {schema}.message
     WHERE ctid = ANY ($1::text[]::tid[])
       AND (position IN (SELECT unnest($2::bigint[]))) IS TRUE
    RETURNING position, id, topic, key, payload, headers, enqueued_at
)
INSERT INTO {schema}.delivered (position, id, topic, key, payload, headers, enqueued_at)
SELECT * FROM gone
