-- The lanes whose keys a decision about these messages concerns.
SELECT DISTINCT (key_hash & 63)::smallint AS lane FROM {schema}.dead WHERE id = ANY ($1) ORDER BY lane
