-- What else a monitor watches, in one cheap statement: the halted keys and the one that is held up for the
-- longest time, in a sample of about $1 pages; lanes that are held, as in status_lanes.sql; how far the lowest
-- floor is behind; paused topics; and the server's clock.
SELECT part.percent = 100, (keys.halted * 100 / part.percent)::bigint,
       (extract(epoch FROM keys.since) * 1000000)::bigint,
       (SELECT count(*)
          FROM {schema}.lane
          JOIN pg_locks AS holder
            ON holder.locktype = 'transactionid' AND holder.granted AND holder.mode = 'ExclusiveLock'
           AND holder.transactionid = lane.xmax),
       greatest(coalesce(pg_sequence_last_value('{schema}.message_position'::regclass), 0)
                - (SELECT min(lane.floor) FROM {schema}.lane), 0),
       (SELECT count(*) FROM {schema}.paused),
       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
  FROM (SELECT least(100, 100.0 * $1 * current_setting('block_size')::bigint
                          / greatest(pg_relation_size('{schema}.blocked'::regclass), 1))::real AS percent) AS part
 CROSS JOIN LATERAL (
     SELECT count(*) FILTER (WHERE due_at = 'infinity') AS halted, min(blocked_at) AS since
       FROM {schema}.blocked TABLESAMPLE SYSTEM (part.percent)
 ) AS keys
