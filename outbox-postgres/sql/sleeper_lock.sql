-- As long as this lock is held producers notify. Tried and not waited for: a producer that has it shared
-- is at work, and another sleeper that has it is woken for all.
SELECT pg_try_advisory_lock(hashtextextended($1, 0))
