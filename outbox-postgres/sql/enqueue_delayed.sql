-- Exactly the columns that a producer has the right to. The time is the table's.
INSERT INTO {schema}.delayed (id, topic, key, payload, headers, deliver_after)
VALUES ($1, $2, $3, $4, $5::jsonb, $6::bigint * interval '1 microsecond')
