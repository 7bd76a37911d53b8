-- Blocks lines, or says anew when one is tried again. No time means that the line is halted.
INSERT INTO {prefix}blocked (line, due_at, error_kind, error)
SELECT given.value ->> 'line',
       CAST(round(unixepoch('subsec') * 1000) AS INTEGER) + (given.value ->> 'after'),
       given.value ->> 'error_kind', given.value ->> 'error'
  FROM json_each(?1) AS given
 WHERE true
    ON CONFLICT (line) DO UPDATE
   SET due_at = excluded.due_at, error_kind = excluded.error_kind, error = excluded.error
