-- The first parked messages of a line that is due, at most ?2 of them and ?3 bytes. With ?4 the first one
-- comes whatever its size: a message that is larger than a claim may hold goes alone.
--
-- Sizes are summed up before any content is read; octet_length does not read what lies outside the page.
SELECT parked.position, parked.line, parked.id, parked.topic, parked.key, parked.headers, parked.payload,
       parked.parked, parked.failures
  FROM (SELECT position,
               sum(bytes) OVER (ORDER BY position ROWS UNBOUNDED PRECEDING) AS bytes_so_far,
               row_number() OVER (ORDER BY position) AS number
          FROM (SELECT position,
                       octet_length(topic) + ifnull(octet_length(key), 0)
                       + ifnull(octet_length(headers), 0) + ifnull(octet_length(payload), 0) AS bytes
                  FROM {prefix}parked
                 WHERE line = ?1
                 ORDER BY position
                 LIMIT ?2)) AS sized
 CROSS JOIN {prefix}parked AS parked ON parked.position = sized.position
 WHERE sized.bytes_so_far <= ?3 OR ?4 AND sized.number = 1
 ORDER BY sized.position
