-- A topic that is paused already stays paused since then, by whoever did it.
INSERT INTO {schema}.paused (topic, paused_by) VALUES ($1, $2) ON CONFLICT (topic) DO NOTHING
