-- The lines of dead messages, by ids as a JSON array of hexadecimal numbers, and whether one of these
-- messages halts the line.
SELECT line, max(halted)
  FROM {prefix}dead
 WHERE id IN (SELECT unhex(value) FROM json_each(?1))
 GROUP BY line
