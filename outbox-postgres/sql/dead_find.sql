-- The next dead messages in the order of enqueue: up to `$3` that fit of `$2` that are looked at, with the
-- lane and the bytes of each. One row without a message where nothing fits.
WITH candidate AS MATERIALIZED (
    SELECT dead.position, (dead.key_hash & 63)::smallint AS lane,
           coalesce(octet_length(dead.payload), 0)::bigint AS bytes,
           dead.died_at, {matches} AS fits
    {source}
)
SELECT looked.number, looked.last, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint,
       fitting.position, fitting.lane, fitting.bytes,
       (extract(epoch FROM statement_timestamp() - fitting.died_at) * 1000000)::bigint
  FROM (SELECT count(*) AS number, max(candidate.position) AS last FROM candidate) AS looked
  LEFT JOIN LATERAL (
      SELECT * FROM candidate WHERE candidate.fits ORDER BY candidate.position LIMIT $3
  ) AS fitting ON true
 ORDER BY fitting.position
