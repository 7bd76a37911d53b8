-- Which of the messages at these positions, a JSON array, are dead since before the decision began, with their
-- lines, whether they halt them, and how long ago they died.
SELECT dead.position, dead.line, dead.halted, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) - dead.died_at
  FROM json_each(?1) AS given
 CROSS JOIN {prefix}dead AS dead ON dead.position = given.value
 WHERE dead.died_at <= ?2
