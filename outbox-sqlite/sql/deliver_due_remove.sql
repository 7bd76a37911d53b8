-- What deliver_due.sql has enqueued.
DELETE FROM {prefix}delayed WHERE number IN (SELECT value FROM json_each(?1))
