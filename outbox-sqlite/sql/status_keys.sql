-- The first lines that are held up, of ?1 at most: how many, how many of them are halted, since when the
-- oldest is, and when the first is due. And when the oldest waiting message was enqueued, and, of ?1 at most, how
-- many messages are delayed and when the first is due.
SELECT count(*), count(*) - count(due_at), min(blocked_at), min(due_at),
       (SELECT enqueued_at FROM {prefix}message ORDER BY position LIMIT 1), CAST(round(unixepoch('subsec') * 1000) AS INTEGER),
       (SELECT count(*) FROM (SELECT 1 FROM {prefix}delayed LIMIT ?1)),
       (SELECT min(deliver_at) FROM {prefix}delayed)
  FROM (SELECT due_at, blocked_at FROM {prefix}blocked ORDER BY line LIMIT ?1)
