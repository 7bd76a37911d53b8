-- All paused topics: as many as people have paused.
SELECT topic, (extract(epoch FROM paused_at) * 1000000)::bigint, paused_by FROM {schema}.paused ORDER BY topic
