-- A page of what was given up, in the order of enqueue. The payload stays where it is: a page of the
-- largest would not fit into memory.
SELECT position, id, topic, key, octet_length(payload)::bigint,
       (extract(epoch FROM enqueued_at) * 1000000)::bigint,
       (extract(epoch FROM died_at) * 1000000)::bigint,
       parked, failures, error_kind, error, halted
  FROM {schema}.dead
 WHERE position > $1
 ORDER BY position
 LIMIT $2
