-- A page of what was given up, in the order of enqueue: up to `$3` messages of `$2` that are looked at. The
-- payload stays where it is: a page of the largest would not fit into memory. One row without a message
-- where nothing fits.
WITH candidate AS MATERIALIZED (
    SELECT dead.position, {matches} AS fits
    {source}
)
SELECT looked.number, looked.last, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
       fitting.position, fitting.id, fitting.topic, fitting.key, fitting.payload_bytes,
       fitting.enqueued_at, fitting.died_at,
       fitting.parked, fitting.failures, fitting.error_kind, fitting.error, fitting.halted
  FROM (SELECT count(*) AS number, max(candidate.position) AS last FROM candidate) AS looked
  LEFT JOIN LATERAL (
      SELECT dead.position, dead.id, dead.topic, dead.key, octet_length(dead.payload)::bigint AS payload_bytes,
             (extract(epoch FROM dead.enqueued_at) * 1000000)::bigint AS enqueued_at,
             (extract(epoch FROM dead.died_at) * 1000000)::bigint AS died_at,
             dead.parked, dead.failures, dead.error_kind, dead.error, dead.halted
        FROM (SELECT candidate.position
                FROM candidate
               WHERE candidate.fits
               ORDER BY candidate.position
               LIMIT $3) AS fits
       CROSS JOIN LATERAL (SELECT * FROM {schema}.dead WHERE dead.position = fits.position LIMIT 1) AS dead
  ) AS fitting ON true
 ORDER BY fitting.position
