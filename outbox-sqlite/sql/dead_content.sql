-- One dead message whole. An id that an application has used twice means the first of its messages.
SELECT dead.position, dead.id, CAST(dead.topic AS BLOB), CAST(dead.key AS BLOB), octet_length(dead.payload),
       dead.enqueued_at, dead.died_at, dead.parked, dead.failures, dead.error_kind, dead.error, dead.halted,
       dead.payload, CAST(dead.headers AS BLOB)
  FROM {prefix}dead AS dead
 WHERE dead.id = ?1
 ORDER BY dead.position
 LIMIT 1
