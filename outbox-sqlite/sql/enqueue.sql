-- The position is SQLite's; the line is a hash of the key, or of the message id where there is no key.
INSERT INTO {prefix}message (line, id, topic, key, headers, payload) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
