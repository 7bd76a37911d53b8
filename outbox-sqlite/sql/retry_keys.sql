-- Makes lines due, by a JSON array of them. What was counted stays.
UPDATE {prefix}blocked
   SET due_at = CAST(round(unixepoch('subsec') * 1000) AS INTEGER)
 WHERE line IN (SELECT value FROM json_each(?1)) AND due_at > CAST(round(unixepoch('subsec') * 1000) AS INTEGER)
