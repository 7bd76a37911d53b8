-- Looks at all lanes at once and locks some that have work. Without work it locks nothing, so it takes
-- no transaction id and writes nothing.
--
-- A lane is probed from the bound upwards. Where the bound fell far back (a long transaction has just
-- ended) or nothing is known yet, the probe could meet a great many dead entries: such a lane is not
-- probed but wanted, at most one a claim, and read from there.
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
           known.cleared,
           known.due_floor,
           NOT known.look AND least(known.cleared, sequence.q) - bound.g <= $7::bigint AS probed
      FROM unnest($4::bigint[], $5::boolean[], $6::bigint[])
           WITH ORDINALITY AS known(cleared, look, due_floor, number)
      JOIN {schema}.lane ON lane.lane = known.number - 1
     CROSS JOIN sequence
     CROSS JOIN bound
),
probe AS MATERIALIZED (
    SELECT view.lane, view.floor, view.probed, head.position, due.due_at
      FROM view
     CROSS JOIN bound
      LEFT JOIN LATERAL (
          SELECT message.position
            FROM {schema}.message
           WHERE view.probed
             AND message.lane = view.lane
             AND message.position > greatest(view.floor, least(view.cleared, bound.g))
           ORDER BY message.lane, message.position
           LIMIT 1
      ) AS head ON true
      LEFT JOIN LATERAL (
          SELECT blocked.due_at
            FROM {schema}.blocked
           WHERE blocked.lane = view.lane
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
                   (probe.lane - $9::integer + 64) % 64 AS turn,
                   row_number() OVER (PARTITION BY probe.probed
                                      ORDER BY (probe.lane - $9::integer + 64) % 64) AS number
              FROM probe
             WHERE NOT probe.probed
                OR probe.position IS NOT NULL
                OR probe.due_at <= statement_timestamp()) AS candidate
     WHERE candidate.probed OR candidate.number = 1
),
locked AS MATERIALIZED (
    SELECT lane.lane
      FROM wanted
      JOIN {schema}.lane ON lane.lane = wanted.lane
     ORDER BY wanted.turn
     LIMIT $8::integer
       FOR UPDATE OF lane SKIP LOCKED
)
SELECT array_agg(probe.floor ORDER BY probe.lane),
       array_agg(probe.probed ORDER BY probe.lane),
       array_agg(probe.position ORDER BY probe.lane),
       array_agg((extract(epoch FROM probe.due_at) * 1000000)::bigint ORDER BY probe.lane),
       array_agg(locked.lane IS NOT NULL ORDER BY probe.lane),
       (SELECT count(*) FROM wanted),
       (extract(epoch FROM statement_timestamp()) * 1000000)::bigint,
       (SELECT bound.g FROM bound),
       (SELECT sequence.q FROM sequence),
       pg_current_snapshot()::text,
       {epoch},
       -- Assigned by the locks above.
       pg_current_xact_id_if_assigned()::text::bigint
  FROM probe
  LEFT JOIN locked ON locked.lane = probe.lane
