-- The same by ids, as a JSON array of hexadecimal numbers.
WITH candidate AS MATERIALIZED (
    SELECT dead.position, ifnull(octet_length(dead.payload), 0) AS bytes, dead.died_at, {matches} AS fits
      FROM {prefix}dead AS dead
     WHERE dead.id IN (SELECT unhex(value) FROM json_each(?5)) AND +dead.position > ?1
     ORDER BY dead.position
     LIMIT ?2
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
