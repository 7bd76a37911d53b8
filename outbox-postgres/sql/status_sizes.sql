-- How large the tables are, in pages, and what the statistics say of them: rows, and rows that came and went
-- since they were last reset, by a crash perhaps.
SELECT t.relname::text, pg_relation_size(t.relid) / current_setting('block_size')::bigint,
       t.n_live_tup, t.n_tup_ins, t.n_tup_del
  FROM pg_stat_all_tables AS t
 WHERE t.schemaname = '{schema}' AND t.relname IN ('message', 'parked', 'dead', 'delayed')
