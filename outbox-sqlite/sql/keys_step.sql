-- The next lines that are not due yet. Halted ones are never due: they wait for a decision. One row without a
-- line where nothing fits.
WITH {found},
late AS MATERIALIZED (
    SELECT fitting.line
      FROM fitting
     WHERE fitting.due_at > CAST(round(unixepoch('subsec') * 1000) AS INTEGER)
     ORDER BY fitting.line
     LIMIT ?7
)
SELECT looked.number, looked.last, late.line FROM looked LEFT JOIN late ON true ORDER BY late.line
