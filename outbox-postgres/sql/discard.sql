-- Drops dead messages of one lane, and says which keys they halted.
DELETE FROM {schema}.dead
 WHERE {decided}
RETURNING key_hash, halted, (extract(epoch FROM clock_timestamp() - died_at) * 1000000)::bigint
