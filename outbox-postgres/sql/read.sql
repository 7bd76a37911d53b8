-- The next messages of the lanes that this transaction has locked, bounded by count and by bytes. It is
-- a statement of its own, because the snapshot of the one that locked is older than the lock: it would
-- show what the last holder has deleted.
--
-- A row of a blocked key is read without its content: it only moves behind its head.
-- Nothing is detoasted before the byte bound has let it pass.
WITH {bound}
SELECT pg_current_xact_id_if_assigned()::text::bigint,
       kept.lane, kept.position, kept.key_hash, kept.blocked_head, kept.scanned,
       kept.id, kept.topic, kept.key, kept.payload, kept.headers
  FROM (SELECT) AS always
  LEFT JOIN (
      SELECT row.lane, row.position, row.key_hash, row.blocked_head, row.scanned, row.id, row.topic,
             row.key,
             CASE WHEN row.blocked_head IS NULL THEN row.payload END AS payload,
             CASE WHEN row.blocked_head IS NULL THEN row.headers::text END AS headers,
             row.number
        FROM (
            SELECT message.*, hash.key_hash, blocked.head AS blocked_head,
                   row_number() OVER walk AS number,
                   count(*) OVER () AS scanned,
                   size.bytes,
                   sum(size.bytes) OVER walk AS bytes_so_far
              FROM unnest($4::smallint[], $5::bigint[], $6::bigint[])
                   WITH ORDINALITY AS held(lane, cleared, floor, number)
             CROSS JOIN bound
             CROSS JOIN LATERAL (
                 SELECT *
                   FROM {schema}.message
                  WHERE message.lane = held.lane
                    AND message.position > greatest(held.floor, least(held.cleared, bound.g))
                  ORDER BY message.lane, message.position
                  LIMIT $7::integer
             ) AS message
             CROSS JOIN LATERAL (
                 SELECT coalesce(hashtextextended(message.key, 0), message.position) AS key_hash
             ) AS hash
              LEFT JOIN LATERAL (
                 SELECT blocked.head
                   FROM {schema}.blocked
                  WHERE blocked.key_hash = hash.key_hash
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
            WINDOW walk AS (ORDER BY held.number, message.position ROWS UNBOUNDED PRECEDING)
        ) AS row
       WHERE row.number <= $8::integer
         AND (row.bytes_so_far <= $9::bigint
              -- One message that is larger than the bound goes alone.
              OR ($10::boolean AND row.bytes_so_far = row.bytes))
  ) AS kept ON true
 ORDER BY kept.number
