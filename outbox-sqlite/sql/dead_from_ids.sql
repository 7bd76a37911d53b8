-- The dead messages with these ids, a JSON array of hexadecimal numbers. No index is to find the position.
FROM {prefix}dead AS dead
WHERE dead.id IN (SELECT unhex(value) FROM json_each(?5)) AND +dead.position > ?1
ORDER BY dead.position
LIMIT ?2
