-- The migrations that were applied; fails where there is no outbox yet.
SELECT version, checksum, compatible_from FROM {prefix}migration ORDER BY version
