-- Removes dead messages, by their positions as a JSON array.
DELETE FROM {prefix}dead WHERE position IN (SELECT value FROM json_each(?1))
