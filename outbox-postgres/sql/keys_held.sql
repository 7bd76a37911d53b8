-- The keys that are held up, counted up to $1, and since when the oldest of these is; and the halted ones of them,
-- counted by their index up to $2 in each lane. No sample of pages: an incident leaves most of them empty behind it,
-- and would hide the few keys of the next one. Beyond $1 the server's statistics know better how many there are.
SELECT held.number,
       (SELECT n_live_tup FROM pg_stat_all_tables WHERE relid = '{schema}.blocked'::regclass),
       held.since, halted.number, halted.more
  FROM (SELECT count(*) AS number, (extract(epoch FROM min(found.blocked_at)) * 1000000)::bigint AS since
          FROM (SELECT blocked_at FROM {schema}.blocked LIMIT $1) AS found) AS held
 CROSS JOIN (SELECT coalesce(sum(of_lane.number), 0)::bigint AS number,
                    coalesce(bool_or(of_lane.number = $2), false) AS more
               FROM {schema}.lane
              CROSS JOIN LATERAL (
                  SELECT count(*) AS number
                    FROM (SELECT FROM {schema}.blocked
                           WHERE blocked.lane = lane.lane AND blocked.due_at = 'infinity'
                           LIMIT $2) AS found) AS of_lane) AS halted
