-- The first messages of one table by topic, and how many they are in all: ?1 are looked at at most. Text comes
-- as bytes where it may be no UTF-8.
SELECT CAST(topic AS BLOB), count(*) AS number, sum(count(*)) OVER ()
  FROM (SELECT topic FROM {prefix}{table} ORDER BY position LIMIT ?1)
 GROUP BY topic
 ORDER BY number DESC, topic
 LIMIT ?2
