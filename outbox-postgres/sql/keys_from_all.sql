-- The next keys that are held up, in the order of their hash: a filter is applied to them, so that one
-- look has a bound also where nothing fits it.
SELECT * FROM {schema}.blocked WHERE blocked.key_hash >= $1 ORDER BY blocked.key_hash LIMIT $2
