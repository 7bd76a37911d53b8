-- Remembers a migration, in the transaction that applied it.
INSERT INTO {prefix}migration (version, name, checksum, compatible_from) VALUES (?1, ?2, ?3, ?4)
