-- Due at the next whole millisecond after ?7 microseconds. The line is as in enqueue.sql.
INSERT INTO {prefix}delayed (line, id, topic, key, headers, payload, deliver_after, deliver_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, CAST(unixepoch('subsec') * 1000 AS INTEGER) + 1 + (?7 + 999) / 1000)
