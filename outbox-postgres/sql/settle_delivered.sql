-- Removes hot rows that were delivered. By ctid, found row by row through the primary key: with
-- `lane = $1 AND position = ANY($2)` and the statistics of an empty table, which is what an outbox
-- usually has, the whole lane would be scanned.
DELETE FROM {schema}.message
 WHERE ctid = ANY (ARRAY(
     SELECT found.ctid
       FROM unnest($1::smallint[], $2::bigint[]) AS settled(lane, position)
      CROSS JOIN LATERAL (
          SELECT message.ctid
            FROM {schema}.message
           WHERE message.lane = settled.lane AND message.position = settled.position
           LIMIT 1
      ) AS found))
