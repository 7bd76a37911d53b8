-- Changes nothing, since nothing equals NULL, and fails where nothing can be changed. `BEGIN IMMEDIATE`
-- would not: on a database that is read-only, SQLite takes it for a transaction that reads.
DELETE FROM {prefix}blocked WHERE line = NULL
