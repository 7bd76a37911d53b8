-- Says of claims that ended without a settle that their process is alive: no message was the cause. That
-- somebody locks the lane is enough where nobody has seen it yet, since the next one looks at the last.
-- Gives back those that have to be said again, since the lane is held just now.
WITH survived AS MATERIALIZED (
    SELECT said.lane, said.xid
      FROM unnest($1::smallint[], $2::bigint[]) AS said(lane, xid)
      JOIN {schema}.lane ON lane.lane = said.lane
     WHERE said.xid = ANY (lane.deaths) OR lane.xmax::text::bigint = (said.xid & 4294967295)
),
free AS MATERIALIZED (
    SELECT lane.lane, survived.xid
      FROM survived
      JOIN {schema}.lane ON lane.lane = survived.lane
       FOR UPDATE OF lane SKIP LOCKED
),
forgiven AS (
    UPDATE {schema}.lane
       SET deaths = array_remove(lane.deaths, free.xid)
      FROM free
     WHERE lane.lane = free.lane AND free.xid = ANY (lane.deaths)
)
SELECT survived.lane FROM survived LEFT JOIN free ON free.lane = survived.lane WHERE free.lane IS NULL
