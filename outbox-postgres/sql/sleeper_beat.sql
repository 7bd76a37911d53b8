-- Keeps the listening session from being idle for too long, and finds out whether it is still there.
SELECT 1
