-- The outbox's tables and what vacuum does for them.
SELECT class.relname::text, pg_relation_size(class.oid), stat.n_live_tup, stat.n_dead_tup,
       (extract(epoch FROM clock_timestamp() - greatest(stat.last_autovacuum, stat.last_vacuum)) * 1000000)::bigint,
       coalesce('autovacuum_enabled=false' = ANY (class.reloptions)
                OR 'autovacuum_enabled=off' = ANY (class.reloptions), false),
       class.relname <> 'message' OR coalesce('autovacuum_vacuum_scale_factor=0' = ANY (class.reloptions), false),
       current_setting('autovacuum')::boolean AND current_setting('track_counts')::boolean
  FROM pg_class AS class
  JOIN pg_stat_all_tables AS stat ON stat.relid = class.oid
 WHERE class.relnamespace = '{schema}'::regnamespace
   AND class.relname IN ('message', 'delayed', 'parked', 'blocked', 'dead')
 ORDER BY class.relname
