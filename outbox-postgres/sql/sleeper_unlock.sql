-- Awake again: from now on producers do not notify.
SELECT pg_advisory_unlock(hashtextextended($1, 0))
