-- Locks the lane if no claim holds it.
SELECT lane FROM {schema}.lane WHERE lane = $1 FOR UPDATE SKIP LOCKED
