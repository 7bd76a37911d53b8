-- One snapshot for all of them, so that a message which moves meanwhile is counted once. The oldest is
-- found from the first of each lane, which needs no sort; lanes below their floor are empty.
SELECT (SELECT count(*) FROM {schema}.message),
       (SELECT count(*) FROM {schema}.parked),
       (SELECT count(*) FROM {schema}.dead),
       (SELECT count(*) FROM {schema}.blocked),
       (SELECT count(*) FROM {schema}.blocked WHERE blocked.due_at = 'infinity'),
       (SELECT (extract(epoch FROM clock_timestamp() - min(first.enqueued_at)) * 1000000)::bigint
          FROM {schema}.lane
         CROSS JOIN LATERAL (
             SELECT message.enqueued_at
               FROM {schema}.message
              WHERE message.lane = lane.lane AND message.position > lane.floor
              ORDER BY message.lane, message.position
              LIMIT 1
         ) AS first),
       (SELECT count(*) FROM {schema}.delayed)
