-- All paused topics: as many as people have paused.
SELECT topic, paused_at, paused_by FROM {prefix}paused ORDER BY topic
