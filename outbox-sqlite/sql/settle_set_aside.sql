-- Copies what a lane has of blocked lines, up to a position, to where it waits: heads that failed, and
-- what comes behind them. The caller removes it with the same condition.
INSERT INTO {prefix}parked (position, line, id, topic, key, headers, enqueued_at, payload)
SELECT message.position, message.line, message.id, message.topic, message.key, message.headers,
       message.enqueued_at, message.payload
  FROM {prefix}message AS message
 WHERE message.lane = ?1 AND message.position <= ?2
   AND EXISTS (SELECT 1 FROM {prefix}blocked AS blocked WHERE blocked.line = message.line)
