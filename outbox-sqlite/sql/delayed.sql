-- The delayed messages that are due first. Text comes as bytes where it may be no UTF-8.
SELECT id, CAST(topic AS BLOB), CAST(key AS BLOB), octet_length(payload), enqueued_at, deliver_at,
       CAST(round(unixepoch('subsec') * 1000) AS INTEGER)
  FROM {prefix}delayed
 ORDER BY deliver_at, number
 LIMIT ?1
