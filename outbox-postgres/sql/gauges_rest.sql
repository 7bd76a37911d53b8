-- What else a monitor watches, in one cheap statement: lanes that are held, as in status_lanes.sql; how far the
-- lowest floor is behind; paused topics; and the server's clock.
SELECT (SELECT count(*)
          FROM {schema}.lane
          JOIN pg_locks AS holder
            ON holder.locktype = 'transactionid' AND holder.granted AND holder.mode = 'ExclusiveLock'
           AND holder.transactionid = lane.xmax),
       greatest(coalesce(pg_sequence_last_value('{schema}.message_position'::regclass), 0)
                - (SELECT min(lane.floor) FROM {schema}.lane), 0),
       (SELECT count(*) FROM {schema}.paused),
       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
