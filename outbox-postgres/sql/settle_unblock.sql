-- Says of lanes that none of their keys is blocked any more, where that is so. Rare: see `lane.blocked`.
UPDATE {schema}.lane
   SET blocked = false
  FROM unnest($1::smallint[]) AS held(lane)
  LEFT JOIN LATERAL (
      SELECT true AS here
        FROM {schema}.blocked
       WHERE blocked.lane = held.lane
       ORDER BY blocked.lane, blocked.due_at
       LIMIT 1
  ) AS blocks ON true
 WHERE lane.lane = held.lane AND lane.blocked AND blocks.here IS NULL
