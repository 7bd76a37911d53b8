-- What is where, counted to a bound, how long the oldest waiting message has waited, and of the first lines
-- that are held up how many are halted and how long the oldest is.
SELECT (SELECT count(*) FROM (SELECT 1 FROM {prefix}message LIMIT ?1)),
       (SELECT count(*) FROM (SELECT 1 FROM {prefix}parked LIMIT ?1)),
       (SELECT count(*) FROM (SELECT 1 FROM {prefix}dead LIMIT ?1)),
       held.lines,
       now.millis - (SELECT enqueued_at FROM {prefix}message ORDER BY position LIMIT 1),
       held.halted,
       now.millis - held.since,
       (SELECT count(*) FROM {prefix}paused),
       (SELECT count(*) FROM (SELECT 1 FROM {prefix}delayed LIMIT ?1))
  FROM (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS millis) AS now
 CROSS JOIN (
     SELECT count(*) AS lines, count(*) - count(due_at) AS halted, min(blocked_at) AS since
       FROM (SELECT due_at, blocked_at FROM {prefix}blocked ORDER BY line LIMIT ?1)
 ) AS held
