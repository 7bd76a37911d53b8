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

CREATE TABLE log.failure (error text);

CREATE FUNCTION log.see_failure() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO log.failure VALUES (NEW.error);
    RETURN NULL;
END
$$;

CREATE TRIGGER see_failure AFTER INSERT OR UPDATE ON outbox.blocked
    FOR EACH ROW WHEN (NEW.failures > 0) EXECUTE FUNCTION log.see_failure();
CREATE TRIGGER see_failure AFTER INSERT ON outbox.dead
    FOR EACH ROW EXECUTE FUNCTION log.see_failure();
