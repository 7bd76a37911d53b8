-- One key that is held up.
SELECT *
  FROM {schema}.blocked
 WHERE blocked.key_hash = hashtextextended($3, 0) AND blocked.key_hash >= $1
 LIMIT $2
