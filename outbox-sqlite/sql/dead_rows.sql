-- Dead messages, by their positions as a JSON array, without their payload. Text comes as bytes: one that is
-- no UTF-8 may be why the message is here, and must not hide the others.
SELECT dead.position, dead.id, CAST(dead.topic AS BLOB), CAST(dead.key AS BLOB), octet_length(dead.payload),
       dead.enqueued_at, dead.died_at, dead.parked, dead.failures, dead.error_kind, dead.error, dead.halted
  FROM json_each(?1) AS given
 CROSS JOIN {prefix}dead AS dead ON dead.position = given.value
 ORDER BY dead.position
