-- Exactly the pattern that was paused.
DELETE FROM {prefix}paused WHERE topic = ?1
