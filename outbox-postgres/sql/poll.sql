-- Looks at the lanes, all at once or the next few, and locks some that have work. Without work it locks
-- nothing, so it takes no transaction id and writes nothing.
--
-- A lane is probed from the bound upwards. Where the bound fell far back (a long transaction has just
-- ended) or nothing is known yet, the probe could meet a great many dead entries: such a lane is not
-- probed but wanted, at most one a claim, and read from there.
--
-- With much to do only the next few lanes are near enough to be looked at: more would be found than can
-- be locked.
--
-- LATERAL with LIMIT 1 everywhere: EXISTS and = ANY turn into plans that scan a lane.
WITH {bound},
sequence AS MATERIALIZED (
    SELECT coalesce(pg_sequence_last_value('{schema}.message_position'::regclass), 0) AS q
),
view AS MATERIALIZED (
    SELECT lane.lane,
           -- A floor above the sequence comes from another life of this database.
           CASE WHEN lane.floor > sequence.q THEN 0 ELSE lane.floor END AS floor,
           least(known.cleared, bound.g) AS start,
           known.due_floor,
           place.turn,
           place.turn < $11::integer AS near,
           NOT known.look AND least(known.cleared, sequence.q) - bound.g <= $8::bigint AS shallow
      FROM unnest($4::integer[], $5::bigint[], $6::boolean[], $7::bigint[])
           WITH ORDINALITY AS known(base, cleared, look, due_floor, number)
      JOIN bound ON bound.base = known.base
      JOIN {schema}.lane ON lane.lane = known.number - 1
     CROSS JOIN LATERAL (SELECT (lane.lane - $10::integer + 64) % 64 AS turn) AS place
     CROSS JOIN sequence
),
probe AS MATERIALIZED (
    SELECT view.lane, view.floor, view.turn, view.near, view.near AND view.shallow AS probed,
           head.position, due.due_at
      FROM view
      LEFT JOIN LATERAL (
          SELECT message.position
            FROM {schema}.message
           WHERE view.near
             AND view.shallow
             AND message.lane = view.lane
             AND message.position > greatest(view.floor, view.start)
           ORDER BY message.lane, message.position
           LIMIT 1
      ) AS head ON true
      LEFT JOIN LATERAL (
          SELECT blocked.due_at
            FROM {schema}.blocked
           WHERE view.near
             AND blocked.lane = view.lane
             AND blocked.due_at > 'epoch'::timestamptz + view.due_floor * interval '1 microsecond'
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
             WHERE probe.near
               AND (NOT probe.probed
                    OR probe.position IS NOT NULL
                    OR probe.due_at <= statement_timestamp())) AS candidate
     WHERE candidate.probed OR candidate.number = 1
),
locked AS MATERIALIZED (
    SELECT lane.lane
      FROM wanted
      JOIN {schema}.lane ON lane.lane = wanted.lane
     ORDER BY wanted.turn
     LIMIT $9::integer
       FOR UPDATE OF lane SKIP LOCKED
)
SELECT array_agg(probe.floor ORDER BY probe.lane),
       array_agg(probe.near ORDER BY probe.lane),
       array_agg(probe.probed ORDER BY probe.lane),
       array_agg(probe.position ORDER BY probe.lane),
       array_agg((extract(epoch FROM probe.due_at) * 1000000)::bigint ORDER BY probe.lane),
       array_agg(locked.lane IS NOT NULL ORDER BY probe.lane),
       (SELECT count(*) FROM wanted),
       (extract(epoch FROM statement_timestamp()) * 1000000)::bigint,
       (SELECT sequence.q FROM sequence),
       pg_current_snapshot()::text,
       {epoch},
       -- Assigned by the locks above.
       pg_current_xact_id_if_assigned()::text::bigint
  FROM probe
  LEFT JOIN locked ON locked.lane = probe.lane
