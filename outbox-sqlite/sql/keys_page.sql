-- A page of the lines that are held up. Those behind the head are counted to a bound. One row without a line
-- where nothing fits.
WITH {found},
page AS MATERIALIZED (SELECT * FROM fitting ORDER BY fitting.line LIMIT ?7)
SELECT looked.number, looked.last, CAST(round(unixepoch('subsec') * 1000) AS INTEGER),
       page.line, page.head, page.id, CAST(page.topic AS BLOB), CAST(page.key AS BLOB), page.enqueued_at,
       page.parked, page.failures, page.last_error_kind, page.last_error, page.blocked_at, page.due_at,
       (SELECT count(*)
          FROM (SELECT 1 FROM {prefix}parked AS parked WHERE parked.line = page.line LIMIT ?8 + 2))
       - (page.halting IS NULL AND page.waiting IS NOT NULL),
       page.halted
  FROM looked
  LEFT JOIN page ON true
 ORDER BY page.line
