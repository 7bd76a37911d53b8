-- The next dead messages in the order of enqueue, whatever they are: a filter is applied to them, so that
-- one look has a bound also where nothing fits it.
FROM {prefix}dead AS dead WHERE dead.position > ?1 ORDER BY dead.position LIMIT ?2
