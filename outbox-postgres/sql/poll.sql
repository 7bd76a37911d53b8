-- Looks at some lanes, in the order in which they are given, and locks some that have work. Without work
-- it locks nothing, so it takes no transaction id and writes nothing.
--
-- A lane is probed from the bound upwards. Where the bound fell far back (a long transaction has just
-- ended) or nothing is known yet, the probe could meet a great many dead entries: such a lane is not
-- probed but wanted, a few of them a claim, and read from there.
--
-- A lane with a message that is to be tried alone is locked only by a poll for it ($12), whatever is in it.
--
-- The last holder of a lane is still in the xmax of its row, and how it ended in the commit log: neither
-- is written for our sake. It is read with the row that is about to be locked, and its end asked for
-- when that is done.
--
-- LATERAL with LIMIT 1 everywhere: EXISTS and = ANY turn into plans that scan a lane.
WITH {bound},
sequence AS MATERIALIZED (
    SELECT coalesce(pg_sequence_last_value('{schema}.message_position'::regclass), 0) AS q
),
probe AS MATERIALIZED (
    SELECT known.lane, known.turn, start.floor, start.shallow AS probed, head.position, due.due_at,
           lane.blocked, lane.alone IS NOT NULL AS alone
      FROM unnest($4::smallint[], $5::integer[], $6::bigint[], $7::boolean[], $8::bigint[])
           WITH ORDINALITY AS known(lane, base, cleared, look, due_floor, turn)
      JOIN bound ON bound.base = known.base
      JOIN {schema}.lane ON lane.lane = known.lane
     CROSS JOIN sequence
     CROSS JOIN LATERAL (
          -- A floor above the sequence comes from another life of this database.
          SELECT CASE WHEN lane.floor > sequence.q THEN 0 ELSE lane.floor END AS floor,
                 NOT known.look AND least(known.cleared, sequence.q) - bound.g <= $9::bigint AS shallow
      ) AS start
      LEFT JOIN LATERAL (
          SELECT message.position
            FROM {schema}.message
           WHERE start.shallow
             AND message.lane = known.lane
             AND message.position > greatest(start.floor, least(known.cleared, bound.g))
           ORDER BY message.lane, message.position
           LIMIT 1
      ) AS head ON true
      LEFT JOIN LATERAL (
          SELECT blocked.due_at
            FROM {schema}.blocked
           WHERE blocked.lane = known.lane
             AND blocked.due_at > 'epoch'::timestamptz + known.due_floor * interval '1 microsecond'
             AND blocked.due_at < 'infinity'
           ORDER BY blocked.lane, blocked.due_at
           LIMIT 1
      ) AS due ON true
),
wanted AS MATERIALIZED (
    SELECT candidate.lane, candidate.turn
      FROM (SELECT probe.lane,
                   probe.probed,
                   probe.turn,
                   row_number() OVER (PARTITION BY probe.probed ORDER BY probe.turn) AS number
              FROM probe
             WHERE $12::boolean
                OR (NOT probe.alone
                    AND (NOT probe.probed
                         OR probe.position IS NOT NULL
                         OR probe.due_at <= statement_timestamp()))) AS candidate
     WHERE candidate.probed OR candidate.number <= $11::integer
),
locked AS MATERIALIZED (
    SELECT lane.lane, lane.suspects, lane.step, lane.alone, lane.deaths, lane.xmax AS holder
      FROM wanted
      JOIN {schema}.lane ON lane.lane = wanted.lane
     ORDER BY wanted.turn
     LIMIT $10::integer
       FOR UPDATE OF lane SKIP LOCKED
),
-- See delays.rs. Here for the sake of the round trip: what is due is moved in a transaction of its own.
delayed AS MATERIALIZED (
    SELECT delayed.deliver_at
      FROM {schema}.delayed
     WHERE (delayed.deliver_at, delayed.number)
           > (coalesce('epoch'::timestamptz + $13::bigint * interval '1 microsecond', statement_timestamp()),
              $14::bigint)
     ORDER BY delayed.deliver_at, delayed.number
     LIMIT 1
)
-- The arrays are in one order, whichever that is.
SELECT array_agg(probe.lane),
       array_agg(probe.floor),
       array_agg(probe.probed),
       array_agg(probe.position),
       array_agg((extract(epoch FROM probe.due_at) * 1000000)::bigint),
       array_agg(locked.lane IS NOT NULL),
       array_agg(probe.blocked),
       (SELECT count(*) FROM wanted),
       (extract(epoch FROM statement_timestamp()) * 1000000)::bigint,
       (SELECT sequence.q FROM sequence),
       pg_current_snapshot()::text,
       {epoch},
       -- Assigned by the locks above.
       pg_current_xact_id_if_assigned()::text::bigint,
       array_agg(probe.alone),
       -- Lanes whose last holder did not commit, and its id: the latest with these 32 bits before our own.
       ARRAY(SELECT unnest(ARRAY[locked.lane, last.xid])
               FROM locked
              CROSS JOIN LATERAL (SELECT pg_current_xact_id_if_assigned()::text::bigint AS xid) AS own
              CROSS JOIN LATERAL (
                  SELECT own.xid - ((own.xid - locked.holder::text::bigint) & 4294967295) AS xid
              ) AS last
              WHERE CASE WHEN last.xid > 2 THEN pg_xact_status(last.xid::text::xid8) = 'aborted' END),
       (SELECT ARRAY[locked.lane, locked.step, locked.alone, cardinality(locked.deaths)]
          FROM locked
         WHERE locked.suspects > 0
         LIMIT 1),
       (SELECT (extract(epoch FROM delayed.deliver_at) * 1000000)::bigint FROM delayed)
  FROM probe
  LEFT JOIN locked ON locked.lane = probe.lane
