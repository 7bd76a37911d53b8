-- Removes parked messages, by their positions as a JSON array.
DELETE FROM {prefix}parked WHERE position IN (SELECT value FROM json_each(?1))
