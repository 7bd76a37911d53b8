-- The lanes, and who holds each: a locked row carries the transaction of the last one who locked it, which
-- holds it if it is still there. What a role may not see of others is NULL.
SELECT lane.lane, lane.floor,
       greatest(coalesce(pg_sequence_last_value('{schema}.message_position'::regclass), 0) - lane.floor, 0),
       holder.pid, coalesce(activity.application_name, ''), host(activity.client_addr),
       (extract(epoch FROM activity.xact_start) * 1000000)::bigint
  FROM {schema}.lane
  LEFT JOIN pg_locks AS holder
    ON holder.locktype = 'transactionid' AND holder.granted AND holder.mode = 'ExclusiveLock'
   AND holder.transactionid = lane.xmax
  LEFT JOIN pg_stat_activity AS activity ON activity.pid = holder.pid
 ORDER BY lane.lane
