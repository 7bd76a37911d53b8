-- The messages of one table by topic, in a sample of its pages: all of them where $1 is 100. The sample is
-- of pages and not of rows, so its cost has a bound whatever is in the table or was deleted from it.
SELECT topic, number, (sum(number) OVER ())::bigint
  FROM (SELECT topic, count(*) AS number
          FROM {schema}.{table} TABLESAMPLE SYSTEM ($1)
         GROUP BY topic) AS topics
 ORDER BY number DESC, topic
 LIMIT $2
