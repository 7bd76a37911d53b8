-- The database's own log of commits: what the audit holds the consumer's record against. A producer writes
-- to it in the transaction that enqueues. And a witness of what must not happen, since a failure leaves no
-- trace in the outbox once the message is delivered.
CREATE SCHEMA log;

CREATE TABLE log.enqueued (
    id uuid PRIMARY KEY,
    key text,
    n bigint NOT NULL,
    payload bytea,
    header_names text[] NOT NULL,
    header_values text[] NOT NULL
);

CREATE TABLE log.failure (
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    kind text,
    error text
);

CREATE FUNCTION log.see_failure() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO log.failure (kind, error) VALUES (NEW.error_kind, NEW.error);
    RETURN NULL;
END
$$;

CREATE TRIGGER see_first_failure AFTER INSERT ON outbox.blocked
    FOR EACH ROW WHEN (NEW.failures > 0) EXECUTE FUNCTION log.see_failure();
-- The row is also written when nothing was counted: for a key that waits because of an outage.
CREATE TRIGGER see_next_failure AFTER UPDATE ON outbox.blocked
    FOR EACH ROW WHEN (
        NEW.failures > 0
        AND (NEW.tried IS DISTINCT FROM OLD.tried OR NEW.failures > OLD.failures)
    ) EXECUTE FUNCTION log.see_failure();
CREATE TRIGGER see_failure AFTER INSERT ON outbox.dead
    FOR EACH ROW EXECUTE FUNCTION log.see_failure();
