-- Of what was processed more than ?1 milliseconds ago the oldest ?2, by the index on time.
DELETE FROM {prefix}inbox
 WHERE (consumer, message_id) IN (
     SELECT consumer, message_id
       FROM {prefix}inbox
      WHERE processed_at < CAST(round(unixepoch('subsec') * 1000) AS INTEGER) - ?1
      ORDER BY processed_at
      LIMIT ?2)
