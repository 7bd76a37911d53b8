-- Rows are inserted, and numbered, in the order in which the SELECT gives them.
INSERT INTO {schema}.delayed (id, topic, key, payload, headers, deliver_after)
SELECT m.id, m.topic, m.key, m.payload, m.headers::jsonb, m.deliver_after * interval '1 microsecond'
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bytea[], $5::text[], $6::bigint[]) WITH ORDINALITY
    AS m (id, topic, key, payload, headers, deliver_after, ordinality)
ORDER BY m.ordinality
