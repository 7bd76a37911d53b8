-- How many messages are where, by really counting them.
SELECT (SELECT count(*) FROM {prefix}message),
       (SELECT count(*) FROM {prefix}parked),
       (SELECT count(*) FROM {prefix}dead),
       (SELECT count(*) FROM {prefix}blocked),
       (SELECT count(*) FROM {prefix}blocked WHERE due_at IS NULL),
       CAST(round(unixepoch('subsec') * 1000) AS INTEGER)
       - (SELECT enqueued_at FROM {prefix}message ORDER BY position LIMIT 1),
       (SELECT count(*) FROM {prefix}delayed)
