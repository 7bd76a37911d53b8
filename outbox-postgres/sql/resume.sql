-- Exactly the pattern that was paused.
DELETE FROM {schema}.paused WHERE topic = $1
