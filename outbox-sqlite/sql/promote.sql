-- Makes lines due that no dead message halts.
UPDATE {prefix}blocked
   SET due_at = CAST(round(unixepoch('subsec') * 1000) AS INTEGER), error_kind = NULL, error = NULL
 WHERE line IN (SELECT value FROM json_each(?1))
   AND NOT EXISTS (SELECT 1 FROM {prefix}dead AS dead WHERE dead.line = {prefix}blocked.line AND dead.halted = 1)
