-- Enqueues what is due; a time is in microseconds since the epoch, and NULL at the beginning of all.
SELECT due.messages,
       (extract(epoch FROM due.last) * 1000000)::bigint,
       due.last_number,
       (extract(epoch FROM due.clock) * 1000000)::bigint
  FROM {schema}.deliver_due(
      coalesce('epoch'::timestamptz + $1::bigint * interval '1 microsecond', '-infinity'),
      $2::bigint,
      'epoch'::timestamptz + $3::bigint * interval '1 microsecond',
      $4::integer,
      $5::bigint) AS due
