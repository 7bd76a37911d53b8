-- The keys that are held up, those of them that are halted, and since when the oldest is, in a sample of the
-- table's pages: all of them where $1 is 100.
SELECT count(*), count(*) FILTER (WHERE due_at = 'infinity'),
       (extract(epoch FROM min(blocked_at)) * 1000000)::bigint
  FROM {schema}.blocked TABLESAMPLE SYSTEM ($1)
