-- Blocks keys behind their heads, or says anew when a head is tried again. No time means that the key
-- is halted. The caller names each key once and has worked out its head: nothing of the key is parked
-- below it.
INSERT INTO {schema}.blocked
       (key_hash, lane, head, due_at, tried, parked, failures, error_kind, error)
SELECT block.key_hash, block.key_hash & 63, block.head,
       coalesce(clock_timestamp() + block.after * interval '1 microsecond', 'infinity'),
       block.tried, block.parked, block.failures, block.error_kind, block.error
  FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::integer[], $6::integer[],
              $7::text[], $8::text[])
       AS block(key_hash, head, after, tried, parked, failures, error_kind, error)
    ON CONFLICT (key_hash) DO UPDATE
   SET head = excluded.head, due_at = excluded.due_at, tried = excluded.tried,
       parked = excluded.parked, failures = excluded.failures,
       error_kind = excluded.error_kind, error = excluded.error
