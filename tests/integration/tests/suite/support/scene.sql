-- What an application would have beside its outbox: the truth about what committed. And witnesses of
-- what must not happen, since a failure leaves no trace in the outbox once the message is delivered.
CREATE TABLE {schema}.business (
    key text NOT NULL,
    n bigint NOT NULL,
    id uuid NOT NULL,
    PRIMARY KEY (key, n)
);

CREATE TABLE {schema}.failure_seen (error text);

CREATE FUNCTION {schema}.see_failure() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {schema}.failure_seen VALUES (NEW.error);
    RETURN NULL;
END
$$;

CREATE TRIGGER see_failure AFTER INSERT OR UPDATE ON {schema}.blocked
    FOR EACH ROW WHEN (NEW.failures > 0) EXECUTE FUNCTION {schema}.see_failure();
CREATE TRIGGER see_failure AFTER INSERT ON {schema}.dead
    FOR EACH ROW EXECUTE FUNCTION {schema}.see_failure();
