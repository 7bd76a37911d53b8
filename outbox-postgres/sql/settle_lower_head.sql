-- A message that committed late has moved behind a head of higher position: the head is now the lower.
UPDATE {schema}.blocked
   SET head = least(blocked.head, late.position)
  FROM unnest($1::bigint[], $2::bigint[]) AS late(key_hash, position)
 WHERE blocked.key_hash = late.key_hash
