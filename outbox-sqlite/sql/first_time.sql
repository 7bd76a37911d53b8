-- One row: the first time. Not OR IGNORE, which would also ignore a row that breaks a CHECK.
INSERT INTO {prefix}inbox (consumer, message_id) VALUES (?1, ?2) ON CONFLICT DO NOTHING
