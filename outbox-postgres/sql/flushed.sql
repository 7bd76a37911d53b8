-- Whether the server's disk holds everything that was written before $1. What an application commits
-- with synchronous_commit = off is visible before that, and a crash would take it back.
SELECT pg_current_wal_flush_lsn() >= $1::pg_lsn
