-- The first messages of a lane, at most ?3 of them and ?4 bytes, of at most ?2 rows that are looked at.
-- With ?5 the first one comes whatever its size. Those of blocked lines are passed over: they only move.
--
-- Sizes are summed up before any content is read; octet_length does not read what lies outside the page.
SELECT message.position, message.line, message.id, message.topic, message.key, message.headers,
       message.payload, 0, 0
  FROM (SELECT position,
               sum(bytes) OVER (ORDER BY position ROWS UNBOUNDED PRECEDING) AS bytes_so_far,
               row_number() OVER (ORDER BY position) AS number
          FROM (SELECT position, line,
                       octet_length(topic) + ifnull(octet_length(key), 0)
                       + ifnull(octet_length(headers), 0) + ifnull(octet_length(payload), 0) AS bytes
                  FROM {prefix}message
                 WHERE lane = ?1
                 ORDER BY position
                 LIMIT ?2) AS front
         WHERE NOT EXISTS (SELECT 1 FROM {prefix}blocked AS blocked WHERE blocked.line = front.line)
         ORDER BY position
         LIMIT ?3) AS sized
 CROSS JOIN {prefix}message AS message ON message.position = sized.position
 WHERE sized.bytes_so_far <= ?4 OR ?5 AND sized.number = 1
 ORDER BY sized.position
