-- The next keys that are not due yet, with their lanes. Halted ones are never due: they wait for a
-- decision. One row without a key where nothing fits.
WITH {found}
SELECT looked.number, looked.last, late.key_hash, late.lane
  FROM (SELECT count(*) AS number, max(found.key_hash) AS last FROM found) AS looked
  LEFT JOIN LATERAL (
      SELECT fitting.key_hash, fitting.lane
        FROM fitting
       WHERE fitting.due_at > statement_timestamp() AND NOT fitting.halted
       ORDER BY fitting.key_hash
       LIMIT $6
  ) AS late ON true
 ORDER BY late.key_hash
