-- The columns that a consumer gives; the time is the table's. Reading and deleting is for what is old.
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT ON {schema}.migration TO {role};
GRANT SELECT, INSERT (consumer, message_id), DELETE ON {schema}.inbox TO {role};
GRANT EXECUTE ON FUNCTION {schema}.first_time(text, uuid) TO {role};
