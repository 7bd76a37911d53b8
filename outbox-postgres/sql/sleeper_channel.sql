-- The channel on which producers wake sleepers, the same as `wake_relay` in the schema makes of the name
-- of the lock. `LISTEN` takes no expression, so the name is asked for first.
SELECT 'outbox:' || hashtextextended($1, 0)::text
