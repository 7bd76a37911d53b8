-- A backlog of $3 messages for each of $2 keys, with payloads of at least $4 bytes that begin with the
-- message's number, and the business rows that say so; in one transaction, as a migration of an
-- application might do it.
WITH made AS MATERIALIZED (
    SELECT 'key-' || key AS key, n, gen_random_uuid() AS id
      FROM generate_series(1, $3::integer) AS n
     CROSS JOIN generate_series(1, $2::integer) AS key
     ORDER BY n, key
),
business AS (
    INSERT INTO {schema}.business (key, n, id) SELECT key, n, id FROM made
)
INSERT INTO {schema}.message (id, topic, key, payload)
SELECT id, $1::text, key, convert_to(rpad(n::text, greatest($4::integer, length(n::text))), 'UTF8') FROM made
