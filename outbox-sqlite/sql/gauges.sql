-- What is where, counted to a bound, and how long the oldest waiting message has waited.
SELECT (SELECT count(*) FROM (SELECT 1 FROM {prefix}message LIMIT ?1)),
       (SELECT count(*) FROM (SELECT 1 FROM {prefix}parked LIMIT ?1)),
       (SELECT count(*) FROM (SELECT 1 FROM {prefix}dead LIMIT ?1)),
       (SELECT count(*) FROM (SELECT 1 FROM {prefix}blocked LIMIT ?1)),
       CAST(round(unixepoch('subsec') * 1000) AS INTEGER)
       - (SELECT enqueued_at FROM {prefix}message ORDER BY position LIMIT 1)
