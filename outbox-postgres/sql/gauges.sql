-- What is where, in one cheap statement: really counted in tables of up to $1 pages, and as the server's
-- statistics say in larger ones.
SELECT t.relname::text, few.counts,
       CASE WHEN NOT few.counts THEN t.n_live_tup
            WHEN t.relname = 'dead' THEN (SELECT count(*) FROM {schema}.dead)
            WHEN t.relname = 'message' THEN (SELECT count(*) FROM {schema}.message)
            WHEN t.relname = 'delayed' THEN (SELECT count(*) FROM {schema}.delayed)
            ELSE (SELECT count(*) FROM {schema}.parked) END
  FROM pg_stat_all_tables AS t
 CROSS JOIN LATERAL (
     SELECT pg_relation_size(t.relid) <= $1 * current_setting('block_size')::bigint AS counts
 ) AS few
 WHERE t.schemaname = '{schema}' AND t.relname IN ('message', 'parked', 'dead', 'delayed')
 ORDER BY t.relname
