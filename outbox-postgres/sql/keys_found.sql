-- Keys that are held up, each with the message that does it: the first parked one, or the first dead one
-- that halts the key.
found AS MATERIALIZED (
    SELECT held.key_hash, held.lane, held.head, held.due_at, held.due_at = 'infinity' AS halted,
           held.blocked_at, held.error_kind, held.error,
           coalesce(halting.position, waiting.position) AS position,
           coalesce(halting.id, waiting.id) AS id,
           coalesce(halting.topic, waiting.topic) AS topic,
           CASE WHEN halting.position IS NULL THEN waiting.key ELSE halting.key END AS key,
           coalesce(halting.enqueued_at, waiting.enqueued_at) AS enqueued_at,
           CASE WHEN halting.position IS NOT NULL THEN halting.parked
                WHEN held.tried = waiting.position THEN held.parked
                ELSE waiting.parked END AS parked,
           CASE WHEN halting.position IS NOT NULL THEN halting.failures
                WHEN held.tried = waiting.position THEN held.failures
                ELSE waiting.failures END AS failures,
           halting.position IS NOT NULL AS is_dead
      FROM ({source}) AS held
      LEFT JOIN LATERAL (
          SELECT parked.position, parked.id, parked.topic, parked.key, parked.enqueued_at,
                 parked.parked, parked.failures
            FROM {schema}.parked
           WHERE parked.key_hash = held.key_hash AND parked.position >= held.head
           ORDER BY parked.key_hash, parked.position
           LIMIT 1
      ) AS waiting ON true
      LEFT JOIN LATERAL (
          SELECT dead.position, dead.id, dead.topic, dead.key, dead.enqueued_at, dead.parked, dead.failures
            FROM {schema}.dead
           WHERE held.due_at = 'infinity' AND dead.key_hash = held.key_hash AND dead.halted
           ORDER BY dead.key_hash, dead.position
           LIMIT 1
      ) AS halting ON true
),
fitting AS MATERIALIZED (
    SELECT *
      FROM found
     WHERE ($3::text IS NULL OR found.key = $3)
       AND ($4::text IS NULL OR found.topic LIKE $4)
       AND ($5::boolean IS NULL OR found.halted = $5)
)
