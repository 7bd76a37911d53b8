-- The outbox: three tables, one for each way of life, and the keys that are held up.
--
-- `message` is hot: a row is inserted once, deleted once and never updated. `parked` holds what failed
-- and what waits behind it, `blocked` says which keys those are and when each is tried again, `dead`
-- holds what was given up. A million parked or dead rows cost the hot table nothing. `delayed` comes before:
-- what is not due yet.
--
-- `line` stands for the key, or for the message where there is no key: a hash of 64 bits, which the
-- program computes. Its low six bits are the lane. All times are milliseconds since 1970.

CREATE TABLE {prefix}message (
    -- AUTOINCREMENT: without it SQLite would give the number of the last row again once that row is gone,
    -- and a parked or dead message would meet another one in its place.
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    line INTEGER NOT NULL,
    lane INTEGER NOT NULL GENERATED ALWAYS AS (line & 63) VIRTUAL,
    id BLOB NOT NULL CHECK (octet_length(id) = 16),
    topic TEXT NOT NULL CHECK (octet_length(topic) BETWEEN 1 AND 255),
    key TEXT CHECK (octet_length(key) <= 65536),
    headers TEXT,
    enqueued_at INTEGER NOT NULL DEFAULT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER)),
    -- The last column: what does not fit a page is then not read for the sake of another one.
    payload BLOB CHECK (octet_length(payload) <= 134217728)
) STRICT;
-- Every index holds the position too, so this one gives a lane in its order.
CREATE INDEX {prefix}message_by_lane ON {prefix}message (lane);

-- Messages that are not due yet. The relay moves a due one to `message`, in the order of their times, as a
-- producer would have written it: it has its place in the order of its key from then on.
CREATE TABLE {prefix}delayed (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    deliver_at INTEGER NOT NULL,
    -- Microseconds, as they were asked for.
    deliver_after INTEGER NOT NULL CHECK (deliver_after BETWEEN 1 AND 31622400000000),
    line INTEGER NOT NULL,
    id BLOB NOT NULL CHECK (octet_length(id) = 16),
    topic TEXT NOT NULL CHECK (octet_length(topic) BETWEEN 1 AND 255),
    key TEXT CHECK (octet_length(key) <= 65536),
    headers TEXT,
    enqueued_at INTEGER NOT NULL DEFAULT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER)),
    payload BLOB CHECK (octet_length(payload) <= 134217728)
) STRICT;
-- Every index holds the number too.
CREATE INDEX {prefix}delayed_by_time ON {prefix}delayed (deliver_at);
-- For who cancels one.
CREATE INDEX {prefix}delayed_by_id ON {prefix}delayed (id);

CREATE TABLE {prefix}parked (
    position INTEGER PRIMARY KEY,
    line INTEGER NOT NULL,
    id BLOB NOT NULL,
    topic TEXT NOT NULL,
    key TEXT,
    headers TEXT,
    enqueued_at INTEGER NOT NULL,
    parked INTEGER NOT NULL DEFAULT 0,
    failures INTEGER NOT NULL DEFAULT 0,
    payload BLOB
) STRICT;
CREATE INDEX {prefix}parked_by_line ON {prefix}parked (line);

-- One narrow row for each line that is held up: it has parked messages, or a dead one halts it.
CREATE TABLE {prefix}blocked (
    line INTEGER PRIMARY KEY,
    lane INTEGER NOT NULL GENERATED ALWAYS AS (line & 63) VIRTUAL,
    -- When the line is tried again; NULL while it waits for a decision about a dead message.
    due_at INTEGER,
    error_kind TEXT,
    error TEXT,
    blocked_at INTEGER NOT NULL DEFAULT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER))
) STRICT;
CREATE INDEX {prefix}blocked_by_due ON {prefix}blocked (lane, due_at);

-- Given up, and kept until a person replays or discards it.
CREATE TABLE {prefix}dead (
    position INTEGER PRIMARY KEY,
    line INTEGER NOT NULL,
    id BLOB NOT NULL,
    topic TEXT NOT NULL,
    key TEXT,
    headers TEXT,
    enqueued_at INTEGER NOT NULL,
    died_at INTEGER NOT NULL DEFAULT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER)),
    parked INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    error_kind TEXT NOT NULL,
    error TEXT NOT NULL,
    -- 1: the later messages of the key wait for a decision about this one.
    halted INTEGER NOT NULL,
    payload BLOB
) STRICT;
CREATE INDEX {prefix}dead_by_line ON {prefix}dead (line);
-- Whether a line is halted is asked whenever one of its dead messages is decided about.
CREATE INDEX {prefix}dead_halting ON {prefix}dead (line) WHERE halted = 1;
CREATE INDEX {prefix}dead_by_id ON {prefix}dead (id);

-- Topics that a person has stopped, as patterns in which each * stands for any characters.
CREATE TABLE {prefix}paused (
    topic TEXT PRIMARY KEY CHECK (octet_length(topic) BETWEEN 1 AND 255),
    paused_at INTEGER NOT NULL DEFAULT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER)),
    paused_by TEXT NOT NULL
) STRICT;

-- What consumers have processed. A row is written in the transaction of the work that it speaks of, never
-- changed, and deleted when it is old.
CREATE TABLE {prefix}inbox (
    consumer TEXT NOT NULL CHECK (octet_length(consumer) BETWEEN 1 AND 255),
    message_id BLOB NOT NULL CHECK (octet_length(message_id) = 16),
    processed_at INTEGER NOT NULL DEFAULT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER)),
    PRIMARY KEY (consumer, message_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX {prefix}inbox_by_time ON {prefix}inbox (processed_at);
