-- The next dead messages of one line, and so of one key and of others with its hash.
FROM {prefix}dead AS dead WHERE dead.line = ?6 AND dead.position > ?1 ORDER BY dead.position LIMIT ?2
