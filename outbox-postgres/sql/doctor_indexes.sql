-- The outbox's indexes: whether they can be used, and how large they are for the rows that are in them.
SELECT class.relname::text, index.indisvalid AND index.indisready, pg_relation_size(class.oid),
       coalesce(pg_stat_get_live_tuples(index.indrelid), 0)
  FROM pg_index AS index
  JOIN pg_class AS class ON class.oid = index.indexrelid
 WHERE class.relnamespace = '{schema}'::regnamespace
 ORDER BY class.relname
