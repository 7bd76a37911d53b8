-- The first base: what the scan compares later snapshots with.
SELECT pg_current_snapshot()::text
