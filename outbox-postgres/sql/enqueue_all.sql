-- Rows are inserted, and draw their positions, in the order in which the SELECT gives them.
INSERT INTO {schema}.message (id, topic, key, payload, headers)
SELECT m.id, m.topic, m.key, m.payload, m.headers::jsonb
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bytea[], $5::text[]) WITH ORDINALITY
    AS m (id, topic, key, payload, headers, ordinality)
ORDER BY m.ordinality
