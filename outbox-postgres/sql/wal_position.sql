-- How much has been written to the write-ahead log.
SELECT pg_current_wal_insert_lsn()::text
