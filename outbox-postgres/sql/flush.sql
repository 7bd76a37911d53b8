-- Returns when the server's disk holds everything that was written before: the commit of a transaction
-- that wrote something waits for that, and for synchronous standbys. To wait for the position of the log
-- instead would not do, since nothing flushes the last record of a quiet server.
BEGIN;
SET LOCAL synchronous_commit = on;
SELECT pg_logical_emit_message(true, 'outbox', '');
COMMIT;
