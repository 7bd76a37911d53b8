-- From an outbox table of one's own to this one, without stopping the application. docs/migrate-to-outbox.md
-- explains it, and a test runs it. The old table is public.events (id, topic, order_id, body, created_at, sent_at).
--
-- Stop the old relay first. Everything is in one transaction: producers wait for the lock as long as the
-- copy takes, and go on with the trigger in place. No event is in between, and the order is kept.

BEGIN;

-- Better to fail than to make producers wait behind somebody's long transaction: then try again.
SET LOCAL lock_timeout = '2s';
LOCK TABLE public.events IN ACCESS EXCLUSIVE MODE;

-- What was not sent yet, in its order. Its old id becomes the message id, so that a consumer can tell it
-- from what the old relay had sent but not marked.
INSERT INTO outbox.message (id, topic, key, payload, headers)
SELECT id, topic, order_id::text, convert_to(body::text, 'UTF8'), '{"content-type": "application/json"}'
  FROM public.events
 WHERE sent_at IS NULL
 ORDER BY created_at, id;
UPDATE public.events SET sent_at = now() WHERE sent_at IS NULL;

-- What producers of the old version still write goes to the outbox instead of into the old table.
CREATE FUNCTION public.event_to_outbox() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM outbox.enqueue(
        topic => NEW.topic,
        payload => convert_to(NEW.body::text, 'UTF8'),
        key => NEW.order_id::text,
        headers => '{"content-type": "application/json"}',
        id => NEW.id);
    RETURN NULL;
END
$$;
CREATE TRIGGER event_to_outbox BEFORE INSERT ON public.events
    FOR EACH ROW EXECUTE FUNCTION public.event_to_outbox();

COMMIT;
