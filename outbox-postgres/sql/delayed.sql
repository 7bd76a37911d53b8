-- A page of the delayed messages, those that are due first, by index. NULL: from the beginning.
SELECT delayed.id, delayed.topic, delayed.key, octet_length(delayed.payload)::bigint,
       (extract(epoch FROM delayed.enqueued_at) * 1000000)::bigint,
       (extract(epoch FROM delayed.deliver_at) * 1000000)::bigint,
       delayed.number
  FROM {schema}.delayed
 WHERE (delayed.deliver_at, delayed.number)
       > (coalesce('epoch'::timestamptz + $1::bigint * interval '1 microsecond', '-infinity'), $2::bigint)
 ORDER BY delayed.deliver_at, delayed.number
 LIMIT $3
