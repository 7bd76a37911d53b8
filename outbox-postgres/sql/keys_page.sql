-- A page of the keys that are held up. Those behind the head are counted to a bound. One row without a
-- key where nothing fits.
WITH {found}
SELECT looked.number, looked.last, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint,
       page.key_hash, page.position, page.id, page.topic, page.key,
       (extract(epoch FROM page.enqueued_at) * 1000000)::bigint,
       page.parked, page.failures, page.error_kind, page.error,
       (extract(epoch FROM page.blocked_at) * 1000000)::bigint,
       CASE WHEN page.halted THEN NULL ELSE (extract(epoch FROM page.due_at) * 1000000)::bigint END,
       behind.number - CASE WHEN page.is_dead OR page.position IS NULL THEN 0 ELSE 1 END,
       page.halted
  FROM (SELECT count(*) AS number, max(found.key_hash) AS last FROM found) AS looked
  LEFT JOIN LATERAL (SELECT * FROM fitting ORDER BY fitting.key_hash LIMIT $6) AS page ON true
 CROSS JOIN LATERAL (
      SELECT count(*) AS number
        FROM (SELECT
                FROM {schema}.parked
               WHERE parked.key_hash = page.key_hash AND parked.position >= page.head
               LIMIT $7 + 2) AS few
  ) AS behind
 ORDER BY page.key_hash
