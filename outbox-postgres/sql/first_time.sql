-- One row: the first time. No row: it is there. While another transaction has written it and is open, the
-- unique index makes this wait. No target is named, since naming one takes the right to read it.
INSERT INTO {schema}.inbox (consumer, message_id) VALUES ($1, $2) ON CONFLICT DO NOTHING
