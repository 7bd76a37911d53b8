-- Removes dead messages, by ids as a JSON array of hexadecimal numbers.
DELETE FROM {prefix}dead WHERE id IN (SELECT unhex(value) FROM json_each(?1))
