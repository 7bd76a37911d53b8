-- Copies dead messages back, with the position that they had, so that each stands in its place among
-- those of its key. The caller removes them where they were.
INSERT INTO {prefix}parked (position, line, id, topic, key, headers, enqueued_at, payload)
SELECT position, line, id, topic, key, headers, enqueued_at, payload
  FROM {prefix}dead
 WHERE id IN (SELECT unhex(value) FROM json_each(?1))
