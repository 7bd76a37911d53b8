-- A setting that a direct connection has from its start, and that a pooler does not pass on.
SELECT coalesce(current_setting('outbox.doctor', true), '')
