-- Removes what was set aside.
DELETE FROM {prefix}message AS message
 WHERE message.lane = ?1 AND message.position <= ?2
   AND EXISTS (SELECT 1 FROM {prefix}blocked AS blocked WHERE blocked.line = message.line)
