-- Lines that are held up, each with the message that does it: the first parked one, or the first dead one that
-- halts the line. Text comes as bytes where it may be no UTF-8.
held AS MATERIALIZED (
    SELECT blocked.line, blocked.due_at, blocked.blocked_at, blocked.error_kind, blocked.error,
           blocked.due_at IS NULL AS halted,
           (SELECT parked.position
              FROM {prefix}parked AS parked
             WHERE parked.line = blocked.line
             ORDER BY parked.position
             LIMIT 1) AS waiting,
           CASE WHEN blocked.due_at IS NULL THEN
               (SELECT dead.position
                  FROM {prefix}dead AS dead
                 WHERE dead.line = blocked.line AND dead.halted = 1
                 ORDER BY dead.position
                 LIMIT 1) END AS halting
      FROM {prefix}blocked AS blocked
     WHERE blocked.line BETWEEN ?1 AND ?2
     ORDER BY blocked.line
     LIMIT ?3
),
found AS MATERIALIZED (
    SELECT held.*, ifnull(held.halting, held.waiting) AS head, ifnull(dead.id, parked.id) AS id,
           ifnull(dead.topic, parked.topic) AS topic,
           CASE WHEN held.halting IS NULL THEN parked.key ELSE dead.key END AS key,
           ifnull(dead.enqueued_at, parked.enqueued_at) AS enqueued_at,
           ifnull(dead.parked, parked.parked) AS parked, ifnull(dead.failures, parked.failures) AS failures,
           ifnull(held.error_kind, dead.error_kind) AS last_error_kind, ifnull(held.error, dead.error) AS last_error
      FROM held
      LEFT JOIN {prefix}parked AS parked ON parked.position = held.waiting
      LEFT JOIN {prefix}dead AS dead ON dead.position = held.halting
),
looked AS MATERIALIZED (
    SELECT count(*) AS number, max(found.line) AS last FROM found
),
fitting AS MATERIALIZED (
    SELECT *
      FROM found
     WHERE (?4 IS NULL OR found.key = ?4)
       AND (?5 IS NULL OR found.topic GLOB ?5)
       AND (?6 IS NULL OR found.halted = ?6)
)
