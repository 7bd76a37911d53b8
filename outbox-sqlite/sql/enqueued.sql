-- The waiting messages behind a position, and then the delayed ones behind a number, with the columns of a claim's
-- rows, and the delay in microseconds.
SELECT *
  FROM (SELECT position, line, id, topic, key, headers, payload, 0 AS deliver_after
          FROM {prefix}message
         WHERE position > ?1
        UNION ALL
        SELECT number, line, id, topic, key, headers, payload, deliver_after
          FROM {prefix}delayed
         WHERE number > ?2)
 ORDER BY deliver_after > 0, position
