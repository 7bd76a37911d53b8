-- Whether the tables are there.
SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = '{prefix}blocked'
