-- Which migrations of this outbox were applied. The content of each is kept by its checksum, and
-- `compatible_from` says which programs may still use the tables after it.
CREATE TABLE IF NOT EXISTS {prefix}migration (
    version INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    checksum TEXT NOT NULL,
    compatible_from INTEGER NOT NULL,
    applied_at INTEGER NOT NULL DEFAULT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER))
) STRICT;
