-- From Debezium's outbox event router to this one, without stopping the application.
-- docs/migrate-to-outbox.md explains it, and a test runs it. The old table is the router's own,
-- public.outboxevent (id, aggregatetype, aggregateid, type, payload).
--
-- From the commit on producers write to the outbox, whatever version they are, and the connector sees
-- nothing new. The relay is started when the connector has sent the rest, so that the order is kept.

BEGIN;

-- Better to fail than to make producers wait behind somebody's long transaction: then try again.
SET LOCAL lock_timeout = '2s';
LOCK TABLE public.outboxevent IN ACCESS EXCLUSIVE MODE;

CREATE FUNCTION public.outboxevent_to_outbox() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM outbox.enqueue(
        topic => 'outbox.event.' || NEW.aggregatetype, -- the router's topic, unless it is configured
        payload => convert_to(NEW.payload::text, 'UTF8'),
        key => NEW.aggregateid,
        headers => jsonb_build_object('id', NEW.id, 'eventType', NEW.type),
        id => NEW.id);
    RETURN NULL;
END
$$;
CREATE TRIGGER outboxevent_to_outbox BEFORE INSERT ON public.outboxevent
    FOR EACH ROW EXECUTE FUNCTION public.outboxevent_to_outbox();

COMMIT;

-- What the connector's slot has to reach before the relay is started.
SELECT pg_current_wal_lsn();
