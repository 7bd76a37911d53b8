-- Which lanes have something, by a step or two into an index for each. A lane whose only lines are halted
-- has nothing. `due_in` is in milliseconds, and not above zero when something is due.
WITH RECURSIVE every (lane) AS (
    VALUES (0) UNION ALL SELECT lane + 1 FROM every WHERE lane < 63
),
probed AS MATERIALIZED (
    SELECT every.lane,
           EXISTS (SELECT 1 FROM {prefix}message AS message WHERE message.lane = every.lane) AS hot,
           EXISTS (SELECT 1 FROM {prefix}blocked AS blocked WHERE blocked.lane = every.lane) AS blocked,
           (SELECT blocked.due_at
              FROM {prefix}blocked AS blocked
             WHERE blocked.lane = every.lane AND blocked.due_at >= 0
             ORDER BY blocked.due_at
             LIMIT 1) - CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS due_in
      FROM every
)
SELECT lane, hot, blocked, due_in FROM probed WHERE hot OR due_in IS NOT NULL
