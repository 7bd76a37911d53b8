-- A page of the delayed messages, those that are due first. NULL: from the beginning. Text comes as bytes where it may
-- be no UTF-8.
SELECT id, CAST(topic AS BLOB), CAST(key AS BLOB), octet_length(payload), enqueued_at, deliver_at, number,
       CAST(round(unixepoch('subsec') * 1000) AS INTEGER)
  FROM {prefix}delayed
 WHERE (deliver_at, number) > (ifnull(?1, 0), ?2)
 ORDER BY deliver_at, number
 LIMIT ?3
