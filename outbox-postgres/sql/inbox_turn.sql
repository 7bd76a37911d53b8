-- One process at a time forgets, so that two do not wait for each other's rows. Until the transaction ends.
SELECT pg_try_advisory_xact_lock(hashtextextended('outbox inbox:{schema}', 0))
