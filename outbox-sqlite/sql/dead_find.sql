-- The next dead messages in the order of enqueue: up to ?3 that fit of ?2 that are looked at, so that one look has
-- a bound also where nothing fits. One row without a message then.
WITH candidate AS MATERIALIZED (
    SELECT dead.position, ifnull(octet_length(dead.payload), 0) AS bytes, dead.died_at, {matches} AS fits
    {source}
),
looked AS MATERIALIZED (
    SELECT count(*) AS number, max(candidate.position) AS last, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS now
      FROM candidate
),
fitting AS MATERIALIZED (
    SELECT * FROM candidate WHERE candidate.fits ORDER BY candidate.position LIMIT ?3
)
SELECT looked.number, looked.last, looked.now, fitting.position, fitting.bytes, looked.now - fitting.died_at
  FROM looked
  LEFT JOIN fitting ON true
 ORDER BY fitting.position
