-- The first waiting message, the next due key of each lane and the next delayed message, by index. Behind a great
-- many deleted rows that vacuum may not remove this takes long, so it runs last, and the caller bounds its time.
SELECT (extract(epoch FROM min(first.enqueued_at)) * 1000000)::bigint,
       (extract(epoch FROM min(next.due_at)) * 1000000)::bigint,
       (SELECT (extract(epoch FROM delayed.deliver_at) * 1000000)::bigint
          FROM {schema}.delayed ORDER BY delayed.deliver_at, delayed.number LIMIT 1)
  FROM {schema}.lane
  LEFT JOIN LATERAL (
      SELECT message.enqueued_at
        FROM {schema}.message
       WHERE message.lane = lane.lane AND message.position > lane.floor
       ORDER BY message.lane, message.position
       LIMIT 1
  ) AS first ON true
  LEFT JOIN LATERAL (
      SELECT blocked.due_at
        FROM {schema}.blocked
       WHERE blocked.lane = lane.lane AND blocked.due_at < 'infinity'
       ORDER BY blocked.lane, blocked.due_at
       LIMIT 1
  ) AS next ON true
