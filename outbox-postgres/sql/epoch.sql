-- Tells one life of the server from another: its start, and the timeline of its write-ahead log.
pg_postmaster_start_time()::text || ' ' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)
