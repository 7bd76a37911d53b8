-- The delayed messages that are due first, by index.
SELECT delayed.id, delayed.topic, delayed.key, octet_length(delayed.payload)::bigint,
       (extract(epoch FROM delayed.enqueued_at) * 1000000)::bigint,
       (extract(epoch FROM delayed.deliver_at) * 1000000)::bigint
  FROM {schema}.delayed
 ORDER BY delayed.deliver_at, delayed.number
 LIMIT $1
