-- One dead message whole. An id that an application has used twice means the first of its messages.
SELECT dead.position, dead.id, dead.topic, dead.key, octet_length(dead.payload)::bigint,
       (extract(epoch FROM dead.enqueued_at) * 1000000)::bigint,
       (extract(epoch FROM dead.died_at) * 1000000)::bigint,
       dead.parked, dead.failures, dead.error_kind, dead.error, dead.halted,
       dead.payload, dead.headers::text
  FROM {schema}.dead
 WHERE dead.id = $1
 ORDER BY dead.position
 LIMIT 1
