-- Enqueues delayed messages, by their numbers in a JSON array, in the order of their times. For what looks at how
-- long a message has waited, it was enqueued when it was due.
INSERT INTO {prefix}message (line, id, topic, key, headers, enqueued_at, payload)
SELECT line, id, topic, key, headers, deliver_at, payload
  FROM {prefix}delayed
 WHERE number IN (SELECT value FROM json_each(?1))
 ORDER BY deliver_at, number
