-- The schema, unless an administrator made it before, and the list of what was applied to it.
DO $outbox$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('outbox migration:{schema}', 0));
    IF NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = '{schema}') THEN
        CREATE SCHEMA {schema};
    END IF;
    IF to_regclass('{schema}.migration') IS NULL THEN
        CREATE TABLE {schema}.migration (
            version integer PRIMARY KEY,
            name text NOT NULL,
            checksum bytea NOT NULL,
            -- A program that knows the migrations up to this one may still use the schema.
            compatible_from integer NOT NULL,
            applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
        );
    END IF;
END
$outbox$;
