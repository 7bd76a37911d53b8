-- Frees lines that nothing holds up any more.
DELETE FROM {prefix}blocked
 WHERE line IN (SELECT value FROM json_each(?1))
   AND NOT EXISTS (SELECT 1 FROM {prefix}parked AS parked WHERE parked.line = {prefix}blocked.line)
   AND NOT EXISTS (SELECT 1 FROM {prefix}dead AS dead WHERE dead.line = {prefix}blocked.line AND dead.halted = 1)
