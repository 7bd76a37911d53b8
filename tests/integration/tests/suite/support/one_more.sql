-- One more message for each key that has some.
WITH made AS MATERIALIZED (
    SELECT key, max(n) + 1 AS n, gen_random_uuid() AS id FROM {schema}.business GROUP BY key
),
business AS (
    INSERT INTO {schema}.business (key, n, id) SELECT key, n, id FROM made
)
INSERT INTO {schema}.message (id, topic, key, payload)
SELECT id, '{schema}', key, convert_to(n::text, 'UTF8') FROM made
