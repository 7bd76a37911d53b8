-- Writes down that the last claims of lanes, which this transaction holds, ended without a settle.
--
-- The first time any message of a claim may be the cause ($3); after that, any of those that a claim of
-- the lane took. Of them the next claim takes a 32nd part: each process that dies of the message narrows
-- them down to that, while a claim that ends well costs little, and so it is the deaths that are few.
-- A message that was tried alone is the cause. How many deaths of it are kept has a limit, since the one
-- for giving it up may be high.
UPDATE {schema}.lane
   SET (suspects, step) = (
           SELECT left_over.number, (left_over.number + 31) / 32
             FROM (SELECT CASE WHEN lane.alone IS NOT NULL THEN 1
                               WHEN lane.suspects = 0 THEN $3::integer
                               ELSE least(lane.suspects, lane.step) END) AS left_over(number)),
       deaths = CASE WHEN lane.alone IS NOT NULL AND cardinality(lane.deaths) < 1000
                     THEN lane.deaths || unclean.xid
                     ELSE lane.deaths END
  FROM unnest($1::smallint[], $2::bigint[]) AS unclean(lane, xid)
 WHERE lane.lane = unclean.lane
