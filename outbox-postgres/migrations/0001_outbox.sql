-- The outbox: three tables, one for each way of life, and the lanes that workers hold.
--
-- `message` is hot: a row is inserted once, deleted once and never updated. `parked` holds what failed
-- and what waits behind it, `blocked` says which keys those are and when each is tried again, `dead`
-- holds what was given up. A million parked or dead rows cost the hot table nothing. `delayed` comes before:
-- what is not due yet.

CREATE TABLE {schema}.lane (
    lane smallint PRIMARY KEY CHECK (lane BETWEEN 0 AND 63),
    -- Nothing is left at or below this position. It only shortens the first look after a start, so it
    -- is written rarely: every write leaves a dead version behind.
    floor bigint NOT NULL DEFAULT 0,
    -- False: no key of the lane is blocked, so that a claim need not ask for each message.
    blocked boolean NOT NULL DEFAULT false,
    -- Written only after a claim of the lane has ended without a settle, which means that a process may
    -- have died of a message. So many of the lane's next messages may be the one,
    suspects integer NOT NULL DEFAULT 0,
    -- a claim takes so many of them,
    step integer NOT NULL DEFAULT 0,
    -- this one, by its position, is tried alone,
    alone bigint,
    -- and these transactions tried it and ended so.
    deaths bigint[] NOT NULL DEFAULT '{}'
);
INSERT INTO {schema}.lane (lane) SELECT generate_series(0, 63);

-- CACHE must stay 1: a session that draws positions in advance would use one below a position that
-- was already delivered.
CREATE SEQUENCE {schema}.message_position AS bigint CACHE 1 NO CYCLE;

CREATE TABLE {schema}.message (
    -- Both are set by the trigger below, whatever the client says.
    lane smallint NOT NULL,
    position bigint NOT NULL,
    -- A UUIDv7 of the trigger where the client gives none.
    id uuid NOT NULL,
    topic text COLLATE "C" NOT NULL,
    key text COLLATE "C",
    payload bytea,
    headers jsonb,
    enqueued_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The limits of a message, the same as in every other client; those of the headers are a trigger's.
    CONSTRAINT message_topic_1_to_255_bytes CHECK (octet_length(topic) BETWEEN 1 AND 255),
    CONSTRAINT message_key_at_most_65536_bytes CHECK (octet_length(key) <= 65536),
    CONSTRAINT message_payload_at_most_134217728_bytes CHECK (octet_length(payload) <= 134217728),
    -- The only index. A generated lane in it would make every delete fail under a publication
    -- FOR ALL TABLES on Postgres 18.
    PRIMARY KEY (lane, position)
) WITH (
    -- A fixed threshold: the table's size says nothing about how many dead rows a scan can meet.
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 100000,
    -- Truncating takes a lock that makes producers wait, and the space is used again at once.
    vacuum_truncate = off,
    toast.autovacuum_vacuum_scale_factor = 0,
    toast.autovacuum_vacuum_threshold = 10000,
    toast.vacuum_truncate = off
);

-- A UUIDv7, which Postgres has of its own only from 18: 48 bits of milliseconds, the rest random.
CREATE FUNCTION {schema}.new_message_id() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN encode(
    set_bit(set_bit(
        overlay(uuid_send(gen_random_uuid())
                PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
                FROM 1 FOR 6),
        52, 1), 53, 1),
    'hex')::uuid;

-- Refuses headers that a message cannot have, and names the header.
CREATE FUNCTION {schema}.check_headers() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    written text COLLATE "C" := NEW.headers::text;
    name text;
    value jsonb;
    names integer := 0;
    bytes bigint := 0;
BEGIN
    IF jsonb_typeof(NEW.headers) <> 'object' THEN
        RAISE EXCEPTION 'headers are JSON of type %, not an object', jsonb_typeof(NEW.headers)
            USING ERRCODE = 'check_violation';
    END IF;
    -- The usual few headers cost a fifth here of what the loop does. What is written in 255 bytes has
    -- neither a name that is too long nor too many of them.
    IF octet_length(written) <= 255 AND strpos(lower(written), '"outbox-') = 0 AND strpos(written, '"": ') = 0
       AND NOT jsonb_path_exists(NEW.headers, 'strict $.* ? (@.type() != "string")') THEN
        RETURN NEW;
    END IF;
    FOR name, value IN SELECT h.key, h.value FROM jsonb_each(NEW.headers) h LOOP
        IF octet_length(name) BETWEEN 1 AND 255 AND jsonb_typeof(value) = 'string'
           AND lower(left(name, 7) COLLATE "C") <> 'outbox-' THEN
            names := names + 1;
            bytes := bytes + octet_length(name) + octet_length(value #>> '{}');
        ELSIF name = '' THEN
            RAISE EXCEPTION 'header name is empty' USING ERRCODE = 'check_violation';
        ELSIF octet_length(name) > 255 THEN
            RAISE EXCEPTION 'header name "%…" has % bytes, the limit is 255', left(name, 40), octet_length(name)
                USING ERRCODE = 'check_violation';
        ELSIF jsonb_typeof(value) <> 'string' THEN
            RAISE EXCEPTION 'header "%" is JSON of type %, not a string', name, jsonb_typeof(value)
                USING ERRCODE = 'check_violation';
        ELSE
            RAISE EXCEPTION 'header "%": names that begin with `outbox-` are reserved', name
                USING ERRCODE = 'check_violation';
        END IF;
    END LOOP;
    IF names > 128 THEN
        RAISE EXCEPTION 'headers: % given, the limit is 128', names USING ERRCODE = 'check_violation';
    ELSIF bytes > 65536 THEN
        RAISE EXCEPTION 'headers has % bytes, the limit is 65536', bytes USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER check_headers BEFORE INSERT ON {schema}.message
    FOR EACH ROW WHEN (NEW.headers IS NOT NULL) EXECUTE FUNCTION {schema}.check_headers();

-- Takes the transaction id, then draws the position, then sets the lane. The order is what makes a late
-- commit findable: a transaction with an id at or above one of the relay's draws positions above
-- whatever the relay had seen before. SECURITY DEFINER, so that a producer needs no right on the
-- sequence and cannot choose a position.
CREATE FUNCTION {schema}.place_message() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    transaction_id xid8;
BEGIN
    transaction_id := pg_current_xact_id();
    NEW.position := nextval('{schema}.message_position');
    NEW.lane := coalesce(hashtextextended(NEW.key, 0), NEW.position) & 63;
    IF NEW.id IS NULL THEN
        NEW.id := {schema}.new_message_id();
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER place_message BEFORE INSERT ON {schema}.message
    FOR EACH ROW EXECUTE FUNCTION {schema}.place_message();

-- Wakes a sleeping relay, and costs a producer nothing while it is awake: the relay holds the lock
-- exclusively only while it sleeps. A producer that uses PREPARE TRANSACTION cannot notify; it says
-- SET outbox.wake_up = off (also for a role or a database), and polling delivers.
CREATE FUNCTION {schema}.wake_relay() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    lock_key bigint := hashtextextended('outbox:{schema}', 0);
BEGIN
    IF current_setting('outbox.wake_up', true) IS DISTINCT FROM 'off'
       AND NOT pg_try_advisory_xact_lock_shared(lock_key) THEN
        PERFORM pg_notify('outbox:' || lock_key::text, '');
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER wake_relay AFTER INSERT ON {schema}.message
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.wake_relay();

-- Messages that are not due yet. A due one is enqueued, by the relay, in a transaction that moves it from here to
-- `message` as a producer would have written it. So it has its place in the order of its key from then on,
-- and neither the claim nor a producer without delays knows of this table.
CREATE TABLE {schema}.delayed (
    -- Both are set by a trigger and by the table, so that nobody can choose them. The time is the database's.
    deliver_at timestamptz NOT NULL,
    number bigint GENERATED ALWAYS AS IDENTITY,
    deliver_after interval NOT NULL,
    enqueued_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    id uuid NOT NULL DEFAULT {schema}.new_message_id(),
    topic text COLLATE "C" NOT NULL,
    key text COLLATE "C",
    payload bytea,
    headers jsonb,
    CONSTRAINT delayed_deliver_after_above_0_and_at_most_366_days
        CHECK (extract(epoch FROM deliver_after) > 0 AND extract(epoch FROM deliver_after) <= 31622400),
    CONSTRAINT delayed_topic_1_to_255_bytes CHECK (octet_length(topic) BETWEEN 1 AND 255),
    CONSTRAINT delayed_key_at_most_65536_bytes CHECK (octet_length(key) <= 65536),
    CONSTRAINT delayed_payload_at_most_134217728_bytes CHECK (octet_length(payload) <= 134217728),
    PRIMARY KEY (deliver_at, number)
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000,
    vacuum_truncate = off
);
-- For who cancels one.
CREATE INDEX delayed_by_id ON {schema}.delayed (id);

-- A delay is a length, the same in every time zone and on the day when clocks change: a day is 24 hours, a month
-- 30 days, a year 365.25. What is beyond the limits is refused by the table.
CREATE FUNCTION {schema}.time_delayed() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.deliver_at := clock_timestamp()
        + make_interval(secs => greatest(0, least(extract(epoch FROM NEW.deliver_after), 31622400)));
    RETURN NEW;
END
$$;
CREATE TRIGGER time_delayed BEFORE INSERT ON {schema}.delayed
    FOR EACH ROW EXECUTE FUNCTION {schema}.time_delayed();
CREATE TRIGGER check_headers BEFORE INSERT ON {schema}.delayed
    FOR EACH ROW WHEN (NEW.headers IS NOT NULL) EXECUTE FUNCTION {schema}.check_headers();
-- A relay that sleeps polls every 10 s, and then knows when it is needed next.
CREATE TRIGGER wake_relay AFTER INSERT ON {schema}.delayed
    FOR EACH ROW WHEN (NEW.deliver_at < clock_timestamp() + interval '15 seconds')
    EXECUTE FUNCTION {schema}.wake_relay();

-- Enqueues the next messages that are due, of those from `since` (and `since_number`) on and below `before`,
-- in the order of their times: at most so many, and so many bytes unless one alone has more. One transaction
-- does so at a time, so that two of a key keep their order; `messages` is NULL where another is at it.
-- `last` and `last_number` are those of the last one where there may be more. What a transaction that is open is
-- about to cancel is left to a later call. SECURITY DEFINER, so that a relay can enqueue nothing else.
CREATE FUNCTION {schema}.deliver_due(
    since timestamptz,
    since_number bigint,
    before timestamptz,
    most_messages integer,
    most_bytes bigint,
    OUT messages integer,
    OUT last timestamptz,
    OUT last_number bigint,
    OUT clock timestamptz
) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
-- As a claim tells the planner: statistics are those of another time, and every scan here is short and by index.
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    seen integer;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('outbox delayed:{schema}', 0)) THEN
        RETURN;
    END IF;
    clock := clock_timestamp();
    -- An insert of nothing would wake every relay that sleeps, this one too.
    PERFORM FROM {schema}.delayed AS d
      WHERE (d.deliver_at, d.number) > (since, since_number) AND d.deliver_at < least(before, clock)
      ORDER BY d.deliver_at, d.number
      LIMIT 1;
    IF NOT FOUND THEN
        messages := 0;
        RETURN;
    END IF;
    WITH due AS MATERIALIZED (
        SELECT d.ctid AS place, d.deliver_at, d.number,
               octet_length(d.topic) + coalesce(octet_length(d.key), 0) + coalesce(octet_length(d.payload), 0)
               + coalesce(pg_column_size(d.headers), 0) AS bytes
          FROM {schema}.delayed AS d
         WHERE (d.deliver_at, d.number) > (since, since_number) AND d.deliver_at < least(before, clock)
         ORDER BY d.deliver_at, d.number
         LIMIT most_messages
           FOR UPDATE SKIP LOCKED
    ), summed AS MATERIALIZED (
        SELECT due.*, sum(due.bytes) OVER (ORDER BY due.deliver_at, due.number) - due.bytes AS before_it FROM due
    ), fitting AS MATERIALIZED (
        SELECT summed.* FROM summed WHERE summed.before_it = 0 OR summed.before_it + summed.bytes <= most_bytes
    ), taken AS (
        DELETE FROM {schema}.delayed AS d
         WHERE d.ctid = ANY (ARRAY(SELECT fitting.place FROM fitting))
        RETURNING d.deliver_at, d.number, d.id, d.topic, d.key, d.payload, d.headers
    ), enqueued AS (
        INSERT INTO {schema}.message (id, topic, key, payload, headers, enqueued_at)
        SELECT taken.id, taken.topic, taken.key, taken.payload, taken.headers, taken.deliver_at
          FROM taken
         ORDER BY taken.deliver_at, taken.number
    )
    SELECT (SELECT count(*) FROM due), (SELECT count(*) FROM fitting), end_of.deliver_at, end_of.number
      INTO seen, messages, last, last_number
      FROM (VALUES (0)) AS one
      LEFT JOIN LATERAL (
          SELECT fitting.deliver_at, fitting.number FROM fitting
           ORDER BY fitting.deliver_at DESC, fitting.number DESC LIMIT 1
      ) AS end_of ON true;
    IF seen < most_messages AND messages = seen THEN
        last := NULL;
        last_number := NULL;
    END IF;
END
$$;

-- For applications in any language: drops a delayed message in the caller's transaction. False: none of this
-- id is delayed, perhaps since it is due and was enqueued. SECURITY DEFINER, since a producer reads no message.
CREATE FUNCTION {schema}.cancel(message_id uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
    DELETE FROM {schema}.delayed AS d WHERE d.id = message_id;
    RETURN FOUND;
END
$$;

-- Messages set aside, inserted and deleted, and hardly ever changed. `key_hash` stands for the key, since an index
-- on text of 64 KiB fails, or for the position where there is no key.
CREATE TABLE {schema}.parked (
    key_hash bigint NOT NULL,
    position bigint NOT NULL,
    id uuid NOT NULL,
    topic text COLLATE "C" NOT NULL,
    key text COLLATE "C",
    payload bytea,
    headers jsonb,
    enqueued_at timestamptz NOT NULL,
    -- What was counted for a message that failed and then waited behind another of its key, which
    -- happens without order only. Those of the head are in `blocked`, so that a retry writes no wide row.
    parked integer NOT NULL DEFAULT 0,
    failures integer NOT NULL DEFAULT 0,
    PRIMARY KEY (key_hash, position)
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000,
    vacuum_truncate = off
);

-- One narrow row for each key that is held up. Every parked message has one for its key, so that it
-- always has a next step.
CREATE TABLE {schema}.blocked (
    key_hash bigint PRIMARY KEY,
    lane smallint NOT NULL,
    -- No parked message of the key lies below it.
    head bigint NOT NULL,
    -- When the key is tried again; infinity while it is halted behind a dead message.
    due_at timestamptz NOT NULL,
    -- The message that the counters and the error speak of.
    tried bigint,
    parked integer NOT NULL DEFAULT 0,
    failures integer NOT NULL DEFAULT 0,
    error_kind text,
    error text,
    blocked_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000,
    vacuum_truncate = off
);
CREATE INDEX blocked_due ON {schema}.blocked (lane, due_at);

-- Whoever blocks a key says so at its lane, which a claim may hold; then this waits for its end. So no
-- claim reads the lane, or finds that nothing is blocked there any more, in between.
CREATE FUNCTION {schema}.say_blocked() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM {schema}.lane
      WHERE lane.lane IN (SELECT inserted.lane FROM inserted) ORDER BY lane.lane FOR UPDATE;
    UPDATE {schema}.lane SET blocked = true
     WHERE NOT lane.blocked AND lane.lane IN (SELECT inserted.lane FROM inserted);
    RETURN NULL;
END
$$;
CREATE TRIGGER say_blocked AFTER INSERT ON {schema}.blocked
    REFERENCING NEW TABLE AS inserted FOR EACH STATEMENT EXECUTE FUNCTION {schema}.say_blocked();

-- Given up, and kept until a person replays or discards it.
CREATE TABLE {schema}.dead (
    position bigint PRIMARY KEY,
    key_hash bigint NOT NULL,
    id uuid NOT NULL,
    topic text COLLATE "C" NOT NULL,
    key text COLLATE "C",
    payload bytea,
    headers jsonb,
    enqueued_at timestamptz NOT NULL,
    died_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    parked integer NOT NULL,
    failures integer NOT NULL,
    error_kind text NOT NULL,
    error text NOT NULL,
    -- Whether the later messages of the key wait for a decision about this one.
    halted boolean NOT NULL
);
CREATE INDEX dead_by_key ON {schema}.dead (key_hash, position);
-- Whether a key is halted is asked whenever one of its dead messages is decided about.
CREATE INDEX dead_halting ON {schema}.dead (key_hash, position) WHERE halted;
CREATE INDEX dead_by_id ON {schema}.dead (id);

-- Topics that a person has stopped, as patterns in which each * stands for any characters.
CREATE TABLE {schema}.paused (
    topic text COLLATE "C" PRIMARY KEY CHECK (octet_length(topic) BETWEEN 1 AND 255),
    paused_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    paused_by text NOT NULL
);

-- What was delivered, where the relay is told to keep it: a partition for each day, in UTC, which is dropped whole.
-- A day that has none goes into the last partition, so that no settle fails for want of one.
CREATE TABLE {schema}.delivered (
    position bigint NOT NULL,
    id uuid NOT NULL,
    topic text COLLATE "C" NOT NULL,
    key text COLLATE "C",
    payload bytea,
    headers jsonb,
    enqueued_at timestamptz NOT NULL,
    delivered_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (delivered_at, position)
) PARTITION BY RANGE (delivered_at);
CREATE TABLE {schema}.delivered_other PARTITION OF {schema}.delivered DEFAULT;

-- Makes the partitions of today and the next two days, and drops those that are older as a whole. For the relay,
-- which need not own them. One process at a time does it; the others have nothing to do. While somebody reads a
-- day, it cannot be dropped, and while somebody reads the last partition, none can be made. Whoever inserts waits
-- behind a drop, so that waits only a moment. False: there may be more to do, in a while. A partition is attached, and
-- not made where it is to be, since that would wait for who inserts, too.
CREATE FUNCTION {schema}.keep_delivered(age interval) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
SET timezone = 'UTC' AS $$
DECLARE
    most CONSTANT integer := 10000;
    today date := clock_timestamp()::date;
    oldest text := 'delivered_' || to_char(clock_timestamp() - age, 'YYYYMMDD');
    day date;
    name text;
    rows_there bigint;
    bytes_there bigint;
    deleted bigint;
    done boolean := true;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('outbox delivered:{schema}', 0)) THEN
        RETURN true;
    END IF;
    FOR day IN SELECT today + n FROM generate_series(0, 2) AS n LOOP
        name := 'delivered_' || to_char(day, 'YYYYMMDD');
        CONTINUE WHEN to_regclass('{schema}.' || name) IS NOT NULL;
        -- Rows of that day in the last partition would refuse it, so they are moved, unless who settles would wait
        -- for that for long: then they stay until they are old.
        SELECT count(*), coalesce(sum(octet_length(found.payload)), 0)
          INTO rows_there, bytes_there
          FROM (SELECT other.payload FROM {schema}.delivered_other AS other
                 WHERE other.delivered_at >= day AND other.delivered_at < day + 1
                 LIMIT most + 1) AS found;
        CONTINUE WHEN rows_there > most OR bytes_there > 67108864;
        BEGIN
            IF day < today + 2 THEN
                -- Who settles today, or just after midnight, waits here and then goes into the new day. At the last
                -- partition it would be refused, once that is no longer the one for the day.
                LOCK TABLE ONLY {schema}.delivered IN SHARE ROW EXCLUSIVE MODE;
            END IF;
            EXECUTE format('CREATE TABLE {schema}.%I (LIKE {schema}.delivered INCLUDING ALL)', name);
            EXECUTE format('WITH gone AS (DELETE FROM {schema}.delivered_other'
                           ' WHERE delivered_at >= %2$L AND delivered_at < %3$L RETURNING *)'
                           ' INSERT INTO {schema}.%1$I SELECT * FROM gone',
                           name, day::timestamptz, (day + 1)::timestamptz);
            EXECUTE format('ALTER TABLE {schema}.delivered ATTACH PARTITION {schema}.%I'
                           ' FOR VALUES FROM (%L) TO (%L)',
                           name, day::timestamptz, (day + 1)::timestamptz);
        EXCEPTION WHEN lock_not_available THEN
            done := false;
        END;
    END LOOP;
    DELETE FROM {schema}.delivered_other
     WHERE ctid = ANY (ARRAY(SELECT ctid FROM {schema}.delivered_other
                              WHERE delivered_at < clock_timestamp() - age LIMIT most));
    GET DIAGNOSTICS deleted = ROW_COUNT;
    done := done AND deleted < most;
    -- One at a time and at the end, since the lock stays until then.
    SELECT child.relname
      INTO name
      FROM pg_inherits
      JOIN pg_class AS child ON child.oid = pg_inherits.inhrelid
     WHERE pg_inherits.inhparent = '{schema}.delivered'::regclass
       AND child.relname ~ '^delivered_[0-9]{8}$' AND child.relname < oldest
     ORDER BY child.relname
     LIMIT 1;
    IF FOUND THEN
        done := false;
        BEGIN
            EXECUTE format('DROP TABLE {schema}.%I', name);
        EXCEPTION WHEN lock_not_available THEN
            NULL;
        END;
    END IF;
    RETURN done;
END
$$;

-- What consumers have processed. A row is written in the transaction of the work that it speaks of, never
-- changed, and deleted when it is old. So the key orders by id within a consumer, and a second index by
-- time: an application may give ids of its own, which say nothing of time.
CREATE TABLE {schema}.inbox (
    consumer text COLLATE "C" NOT NULL,
    message_id uuid NOT NULL,
    processed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT inbox_consumer_1_to_255_bytes CHECK (octet_length(consumer) BETWEEN 1 AND 255),
    PRIMARY KEY (consumer, message_id)
) WITH (
    -- Truncating takes a lock that makes consumers wait, and the space is used again soon.
    vacuum_truncate = off
);
CREATE INDEX inbox_by_time ON {schema}.inbox (processed_at);

-- For consumers in any language, in the transaction that does the work: whether this consumer meets the
-- message for the first time, which is remembered from then on. Where another transaction has just written
-- the same, this waits for its end.
CREATE FUNCTION {schema}.first_time(consumer text, message_id uuid) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF first_time.consumer IS NULL OR first_time.consumer = '' THEN
        RAISE EXCEPTION 'consumer name is empty' USING ERRCODE = 'check_violation';
    ELSIF octet_length(first_time.consumer) > 255 THEN
        RAISE EXCEPTION 'consumer name has % bytes, the limit is 255', octet_length(first_time.consumer)
            USING ERRCODE = 'check_violation';
    END IF;
    INSERT INTO {schema}.inbox (consumer, message_id)
    VALUES (first_time.consumer, first_time.message_id) ON CONFLICT DO NOTHING;
    RETURN FOUND;
END
$$;

-- For applications in any language: a message as from the Rust functions, with the same limits and
-- errors. Gives back the message id.
CREATE FUNCTION {schema}.enqueue(
    topic text,
    payload bytea,
    key text DEFAULT NULL,
    headers jsonb DEFAULT NULL,
    id uuid DEFAULT NULL,
    deliver_after interval DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql AS $$
DECLARE
    -- Not by RETURNING, which would need the right to read messages.
    message_id uuid := coalesce(enqueue.id, {schema}.new_message_id());
BEGIN
    IF enqueue.topic IS NULL OR enqueue.topic = '' THEN
        RAISE EXCEPTION 'topic is empty' USING ERRCODE = 'check_violation';
    ELSIF octet_length(enqueue.topic) > 255 THEN
        RAISE EXCEPTION 'topic has % bytes, the limit is 255', octet_length(enqueue.topic)
            USING ERRCODE = 'check_violation';
    ELSIF octet_length(enqueue.key) > 65536 THEN
        RAISE EXCEPTION 'key has % bytes, the limit is 65536', octet_length(enqueue.key)
            USING ERRCODE = 'check_violation';
    ELSIF octet_length(enqueue.payload) > 134217728 THEN
        RAISE EXCEPTION 'payload has % bytes, the limit is 134217728', octet_length(enqueue.payload)
            USING ERRCODE = 'check_violation';
    ELSIF extract(epoch FROM enqueue.deliver_after) < 0 THEN
        RAISE EXCEPTION 'deliver_after is %, which is in the past', enqueue.deliver_after
            USING ERRCODE = 'check_violation';
    ELSIF extract(epoch FROM enqueue.deliver_after) > 31622400 THEN
        RAISE EXCEPTION 'deliver_after is %, the limit is 366 days', enqueue.deliver_after
            USING ERRCODE = 'check_violation';
    ELSIF extract(epoch FROM enqueue.deliver_after) > 0 THEN
        INSERT INTO {schema}.delayed (deliver_after, id, topic, key, payload, headers)
        VALUES (enqueue.deliver_after, message_id, enqueue.topic, enqueue.key, enqueue.payload, enqueue.headers);
        RETURN message_id;
    END IF;
    INSERT INTO {schema}.message (id, topic, key, payload, headers)
    VALUES (message_id, enqueue.topic, enqueue.key, enqueue.payload, enqueue.headers);
    RETURN message_id;
END
$$;

-- The payload as JSON, kept as it is written: numbers, order and white space are not touched.
CREATE FUNCTION {schema}.enqueue_json(
    topic text,
    payload json,
    key text DEFAULT NULL,
    headers jsonb DEFAULT NULL,
    id uuid DEFAULT NULL,
    deliver_after interval DEFAULT NULL
) RETURNS uuid
LANGUAGE sql
RETURN {schema}.enqueue(topic, convert_to(payload::text, 'UTF8'), key, headers, id, deliver_after);

-- Rights are granted by name, to roles that need them.
REVOKE ALL ON FUNCTION
    {schema}.new_message_id(),
    {schema}.check_headers(),
    {schema}.place_message(),
    {schema}.wake_relay(),
    {schema}.say_blocked(),
    {schema}.keep_delivered(interval),
    {schema}.time_delayed(),
    {schema}.deliver_due(timestamptz, bigint, timestamptz, integer, bigint),
    {schema}.cancel(uuid),
    {schema}.first_time(text, uuid),
    {schema}.enqueue(text, bytea, text, jsonb, uuid, interval),
    {schema}.enqueue_json(text, json, text, jsonb, uuid, interval)
FROM PUBLIC;
