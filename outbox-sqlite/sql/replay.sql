-- Copies dead messages back, by their positions as a JSON array, with the position that they had, so that each
-- stands in its place among those of its key. The caller removes them where they were.
INSERT INTO {prefix}parked (position, line, id, topic, key, headers, enqueued_at, payload)
SELECT position, line, id, topic, key, headers, enqueued_at, payload
  FROM {prefix}dead
 WHERE position IN (SELECT value FROM json_each(?1))
