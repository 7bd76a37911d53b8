-- A page of dead messages behind a position, without their payload. Text comes as bytes: one that is
-- no UTF-8 may be why the message is here, and must not hide the others.
SELECT position, id, CAST(topic AS BLOB), CAST(key AS BLOB), octet_length(payload), enqueued_at, died_at,
       parked, failures, error_kind, error, halted
  FROM {prefix}dead
 WHERE position > ?1
 ORDER BY position
 LIMIT ?2
