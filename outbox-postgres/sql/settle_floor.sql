-- Persists how far lanes are cleared, for the first look after a start. Rare: see `lane.floor`.
UPDATE {schema}.lane
   SET floor = cleared.floor
  FROM unnest($1::smallint[], $2::bigint[]) AS cleared(lane, floor)
 WHERE lane.lane = cleared.lane AND lane.floor < cleared.floor
