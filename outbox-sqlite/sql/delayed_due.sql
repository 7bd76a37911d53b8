-- The delayed messages that are due, at most ?1 of them and ?2 bytes; the first one comes whatever its size.
SELECT number
  FROM (SELECT number, deliver_at,
               sum(bytes) OVER (ORDER BY deliver_at, number ROWS UNBOUNDED PRECEDING) AS bytes_so_far,
               row_number() OVER (ORDER BY deliver_at, number) AS nth
          FROM (SELECT number, deliver_at,
                       octet_length(topic) + ifnull(octet_length(key), 0)
                       + ifnull(octet_length(headers), 0) + ifnull(octet_length(payload), 0) AS bytes
                  FROM {prefix}delayed
                 WHERE deliver_at <= CAST(unixepoch('subsec') * 1000 AS INTEGER)
                 ORDER BY deliver_at, number
                 LIMIT ?1)) AS sized
 WHERE bytes_so_far <= ?2 OR nth = 1
