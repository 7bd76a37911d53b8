-- The next messages of the lanes that this transaction has locked, bounded by count and by bytes. It is
-- a statement of its own, because the snapshot of the one that locked is older than the lock: it would
-- show what the last holder has deleted.
--
-- The first row that the byte bound cuts off comes too, without its content: it says that there is more.
-- A row of a blocked key is read without its content: it only moves behind its head.
-- Nothing is detoasted before the byte bound has let it pass.
WITH {bound}
SELECT row.lane, row.position, row.key_hash, row.blocked_head,
       row.fits, row.bytes_so_far > $10::bigint AS is_last,
       tidsend(row.ctid), row.id, row.topic, row.key,
       CASE WHEN row.fits AND row.blocked_head IS NULL THEN row.payload END AS payload,
       CASE WHEN row.fits AND row.blocked_head IS NULL THEN row.headers::text END AS headers
  FROM (
      SELECT walked.*,
             walked.bytes_so_far <= $10::bigint
             -- One message that is larger than the bound goes alone.
             OR ($11::boolean AND walked.bytes_so_far = walked.bytes) AS fits
        FROM (
            SELECT message.*, held.number, blocked.head AS blocked_head, size.bytes,
                   sum(size.bytes) OVER (ORDER BY held.number, message.position
                                         ROWS UNBOUNDED PRECEDING) AS bytes_so_far
              FROM unnest($4::smallint[], $5::integer[], $6::bigint[], $7::bigint[])
                   WITH ORDINALITY AS held(lane, base, cleared, floor, number)
              JOIN bound ON bound.base = held.base
             CROSS JOIN LATERAL (
                 SELECT ctid, lane, position, id, topic, key, payload, headers,
                        coalesce(hashtextextended(key, 0), position) AS key_hash
                   FROM {schema}.message
                  WHERE message.lane = held.lane
                    AND message.position > greatest(held.floor, least(held.cleared, bound.g))
                  ORDER BY message.lane, message.position
                  LIMIT $8::integer
             ) AS message
              LEFT JOIN LATERAL (
                 SELECT blocked.head
                   FROM {schema}.blocked
                  WHERE blocked.key_hash = message.key_hash
                  LIMIT 1
             ) AS blocked ON true
             CROSS JOIN LATERAL (
                 SELECT CASE WHEN blocked.head IS NULL
                             THEN octet_length(message.topic)
                                  + coalesce(octet_length(message.key), 0)
                                  + coalesce(octet_length(message.payload), 0)
                                  + coalesce(pg_column_size(message.headers), 0)
                             ELSE 0 END AS bytes
             ) AS size
        ) AS walked
       WHERE walked.bytes_so_far - walked.bytes <= $10::bigint
  ) AS row
 ORDER BY row.number, row.position
 LIMIT $9::integer
