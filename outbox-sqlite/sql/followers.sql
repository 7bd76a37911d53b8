-- The last position, among the first ?2 of a lane, of a message whose line is blocked; NULL: there is none.
SELECT max(front.position)
  FROM (SELECT position, line FROM {prefix}message WHERE lane = ?1 ORDER BY position LIMIT ?2) AS front
 WHERE EXISTS (SELECT 1 FROM {prefix}blocked AS blocked WHERE blocked.line = front.line)
