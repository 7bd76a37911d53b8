-- The first lines that are held up, of ?1 at most: how many, how many of them are halted, since when the
-- oldest is, and when the first is due. And when the oldest waiting message was enqueued.
SELECT count(*), count(*) - count(due_at), min(blocked_at), min(due_at),
       (SELECT enqueued_at FROM {prefix}message ORDER BY position LIMIT 1), CAST(round(unixepoch('subsec') * 1000) AS INTEGER)
  FROM (SELECT due_at, blocked_at FROM {prefix}blocked ORDER BY line LIMIT ?1)
