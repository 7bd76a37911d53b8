-- A line with parked messages is blocked. When it is tried is said by what follows.
INSERT INTO {prefix}blocked (line, due_at)
SELECT value, NULL FROM json_each(?1) WHERE true
    ON CONFLICT (line) DO NOTHING
