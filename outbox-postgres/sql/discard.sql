-- Drops dead messages of one lane, and says which keys they halted.
DELETE FROM {schema}.dead WHERE id = ANY ($1) AND key_hash & 63 = $2 RETURNING key_hash, halted
