-- In how many milliseconds the next delayed message is due; not above zero when one is.
SELECT deliver_at - CAST(unixepoch('subsec') * 1000 AS INTEGER)
  FROM {prefix}delayed
 ORDER BY deliver_at, number
 LIMIT 1
