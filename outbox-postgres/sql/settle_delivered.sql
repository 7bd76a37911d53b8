-- Removes hot rows that were delivered. By ctid, which is half the work of finding each through the
-- primary key again. (`lane = $1 AND position = ANY($2)`, with the statistics of an empty table, which is
-- what an outbox usually has, would scan the whole lane.)
-- The position is compared too: what somebody deletes by hand while it is claimed may leave its place to
-- another row. IS TRUE keeps that a test of each row, by hash, where the planner would make a join of it.
DELETE FROM {schema}.message
 WHERE ctid = ANY ($1::text[]::tid[])
   AND (position IN (SELECT unnest($2::bigint[]))) IS TRUE
