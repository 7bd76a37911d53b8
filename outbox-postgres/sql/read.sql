-- The next messages of the lanes that this transaction has locked, while they are small: each may take its
-- share of the bytes and no more. One that is larger comes without its content, and then the claim reads
-- with `read_large.sql` instead, which adds up. That costs a fifth of the whole read, mostly for nothing.
--
-- A statement of its own, because the snapshot of the one that locked is older than the lock: it would
-- show what the last holder has deleted. The rows come in no order that could be relied on.
--
-- A row of a blocked key is read without its content: it only moves behind its head.
WITH {bound}
SELECT row.position, row.key_hash, blocked.head,
       CASE WHEN size.bytes > $9::bigint THEN true END AS cut,
       tidsend(row.ctid), row.id, row.topic, row.key,
       CASE WHEN size.bytes <= $9::bigint AND blocked.head IS NULL THEN row.payload END AS payload,
       CASE WHEN size.bytes <= $9::bigint AND blocked.head IS NULL THEN row.headers::text END AS headers
  FROM {walk}
