-- Exactly the columns that a client gives; place and time are the table's. Reading is not granted, so
-- RETURNING does not work: the function gives back the id.
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT ON {schema}.migration TO {role};
GRANT INSERT (id, topic, key, payload, headers) ON {schema}.message TO {role};
GRANT INSERT (deliver_after, id, topic, key, payload, headers) ON {schema}.delayed TO {role};
GRANT EXECUTE ON FUNCTION
    {schema}.new_message_id(),
    {schema}.cancel(uuid),
    {schema}.enqueue(text, bytea, text, jsonb, uuid, interval),
    {schema}.enqueue_json(text, json, text, jsonb, uuid, interval)
TO {role};
