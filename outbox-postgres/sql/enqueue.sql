-- Exactly the columns that a producer has the right to.
INSERT INTO {schema}.message (id, topic, key, payload, headers) VALUES ($1, $2, $3, $4, $5::jsonb)
