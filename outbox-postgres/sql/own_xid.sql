-- An own transaction id, alone in its transaction: every transaction that gets a later one draws
-- positions above what the sequence was before this statement.
SELECT pg_current_xact_id()::text::bigint
