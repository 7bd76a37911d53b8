-- Drops a delayed message.
DELETE FROM {prefix}delayed WHERE id = ?1
