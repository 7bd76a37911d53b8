-- The parked messages whose keys are due in the lanes that this transaction has locked: the head of
-- each and what waits behind it, in order. A key that is blocked without a parked message (deleted by
-- hand) comes back without one, so that the settle can unblock it.
SELECT kept.lane, kept.key_hash, kept.head, kept.due_at,
       kept.tried, kept.tried_parked, kept.tried_failures,
       kept.position, kept.parked, kept.failures,
       kept.id, kept.topic, kept.key, kept.payload, kept.headers::text
  FROM (
      SELECT held.lane, blocked.key_hash, blocked.head, blocked.tried,
             blocked.parked AS tried_parked, blocked.failures AS tried_failures,
             (extract(epoch FROM blocked.due_at) * 1000000)::bigint AS due_at,
             parked.position, parked.parked, parked.failures,
             parked.id, parked.topic, parked.key, parked.payload, parked.headers,
             row_number() OVER walk AS number,
             size.bytes,
             sum(size.bytes) OVER walk AS bytes_so_far
        FROM unnest($1::smallint[], $2::bigint[]) AS held(lane, due_floor)
       CROSS JOIN LATERAL (
           SELECT *
             FROM {schema}.blocked
            WHERE blocked.lane = held.lane
              AND blocked.due_at > 'epoch'::timestamptz + held.due_floor * interval '1 microsecond'
              AND blocked.due_at <= statement_timestamp()
            ORDER BY blocked.lane, blocked.due_at
            LIMIT $3::integer
       ) AS blocked
        LEFT JOIN LATERAL (
           SELECT *
             FROM {schema}.parked
            WHERE parked.key_hash = blocked.key_hash
              AND parked.position >= blocked.head
            ORDER BY parked.key_hash, parked.position
            LIMIT $3::integer
       ) AS parked ON true
       CROSS JOIN LATERAL (
           SELECT coalesce(octet_length(parked.topic), 0)
                  + coalesce(octet_length(parked.key), 0)
                  + coalesce(octet_length(parked.payload), 0)
                  + coalesce(pg_column_size(parked.headers), 0) AS bytes
       ) AS size
      WINDOW walk AS (ORDER BY blocked.due_at, blocked.key_hash, parked.position
                      ROWS UNBOUNDED PRECEDING)
  ) AS kept
 WHERE kept.number <= $3::integer
   -- One message that is larger than the bound goes alone.
   AND (kept.bytes_so_far <= $4::bigint OR kept.bytes_so_far = kept.bytes)
 ORDER BY kept.number
