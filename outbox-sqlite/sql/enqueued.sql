-- The waiting messages behind a position, with the columns of a claim's rows.
SELECT position, line, id, topic, key, headers, payload
  FROM {prefix}message
 WHERE position > ?1
 ORDER BY position
