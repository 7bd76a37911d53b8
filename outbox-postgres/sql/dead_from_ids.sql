-- The dead messages with these ids. No LIMIT, and a position that no index knows: else the planner, which
-- often takes the table for empty, might walk all dead messages in the order of their position instead.
FROM {schema}.dead WHERE dead.id = ANY ($5) AND dead.position + 0 > $1
