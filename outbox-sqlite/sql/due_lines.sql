-- The lines of a lane that are due, the longest due first.
SELECT line
  FROM {prefix}blocked
 WHERE lane = ?1 AND due_at BETWEEN 0 AND CAST(round(unixepoch('subsec') * 1000) AS INTEGER)
 ORDER BY due_at
 LIMIT ?2
