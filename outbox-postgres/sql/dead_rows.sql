-- Dead messages by their positions. The payload stays where it is: a page of the largest would not fit into
-- memory.
SELECT dead.position, dead.id, dead.topic, dead.key, octet_length(dead.payload)::bigint,
       (extract(epoch FROM dead.enqueued_at) * 1000000)::bigint,
       (extract(epoch FROM dead.died_at) * 1000000)::bigint,
       dead.parked, dead.failures, dead.error_kind, dead.error, dead.halted
  FROM unnest($1::bigint[]) AS found(position)
 CROSS JOIN LATERAL (SELECT * FROM {schema}.dead WHERE dead.position = found.position LIMIT 1) AS dead
 ORDER BY dead.position
