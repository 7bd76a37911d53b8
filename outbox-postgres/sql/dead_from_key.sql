-- The next dead messages of a key, and of others with its hash.
FROM {schema}.dead
WHERE dead.key_hash = hashtextextended($6, 0) AND dead.position > $1
ORDER BY dead.key_hash, dead.position
LIMIT $2
