-- As the trigger of the hot table does for new messages; without its lock, since people decide rarely.
SELECT pg_notify('outbox:' || hashtextextended('outbox:{schema}', 0)::text, '')
