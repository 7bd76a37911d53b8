-- The lanes whose keys a decision about these messages concerns, with the messages of each.
SELECT (key_hash & 63)::smallint AS lane, array_agg(DISTINCT id) AS ids
  FROM {schema}.dead
 WHERE id = ANY ($1)
 GROUP BY lane
 ORDER BY lane
