-- As long as this lock is held producers notify. Tried and not waited for: a producer that has it shared is
-- at work, and another sleeper that has it is woken for all. So it is also asked whether one has it.
SELECT pg_try_advisory_lock(name.hash),
       EXISTS (SELECT FROM pg_locks AS held
                WHERE held.locktype = 'advisory' AND held.objsubid = 1 AND held.granted AND held.mode = 'ExclusiveLock'
                  AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
                  AND (held.classid::bigint << 32) | held.objid::bigint = name.hash)
  FROM (SELECT hashtextextended($1, 0) AS hash) AS name
