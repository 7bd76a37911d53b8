-- The next messages of the lanes that this transaction has locked, bounded by their bytes in all. What
-- `read.sql` says of snapshots and blocked keys is true here too.
--
-- The first row that the byte bound cuts off comes too, without its content: it says that there is more.
-- Nothing is detoasted before the byte bound has let it pass.
WITH {bound}
SELECT row.position, row.key_hash, row.head,
       -- True: cut off here. False: the last, since it alone is larger than the bound.
       CASE WHEN row.bytes_so_far > $9::bigint THEN NOT row.fits END AS cut,
       tidsend(row.ctid), row.id, row.topic, row.key,
       CASE WHEN row.fits AND row.head IS NULL THEN row.payload END AS payload,
       CASE WHEN row.fits AND row.head IS NULL THEN row.headers::text END AS headers
  FROM (
      SELECT walked.*,
             walked.bytes_so_far <= $9::bigint
             -- One message that is larger than the bound goes alone.
             OR ($10::boolean AND walked.bytes_so_far = walked.bytes) AS fits
        FROM (
            SELECT row.*, held.number, blocked.head, size.bytes,
                   sum(size.bytes) OVER (ORDER BY held.number, row.position
                                         ROWS UNBOUNDED PRECEDING) AS bytes_so_far
              FROM {walk}
        ) AS walked
       WHERE walked.bytes_so_far - walked.bytes <= $9::bigint
  ) AS row
 ORDER BY row.number, row.position
