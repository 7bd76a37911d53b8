-- The next rows of the lanes that this transaction has locked: `row`, with the head of its key where that
-- is blocked, and `size.bytes`, what of it counts against the bound.
--
-- Most lanes have no blocked key. In those that have one each key is looked up.
unnest($4::smallint[], $5::integer[], $6::bigint[], $7::bigint[])
    WITH ORDINALITY AS held(lane, base, cleared, floor, number)
  JOIN bound ON bound.base = held.base
  JOIN {schema}.lane ON lane.lane = held.lane
 CROSS JOIN LATERAL (
      SELECT ctid, position, id, topic, key, payload, headers,
             coalesce(hashtextextended(key, 0), position) AS key_hash
        FROM {schema}.message
       WHERE message.lane = held.lane
         AND message.position > greatest(held.floor, least(held.cleared, bound.g))
       ORDER BY message.lane, message.position
       LIMIT $8::integer
  ) AS row
  LEFT JOIN LATERAL (
      SELECT blocked.head
        FROM {schema}.blocked
       WHERE lane.blocked AND blocked.key_hash = row.key_hash
       LIMIT 1
  ) AS blocked ON true
 CROSS JOIN LATERAL (
      SELECT CASE WHEN blocked.head IS NULL
                  THEN octet_length(row.topic)
                       + coalesce(octet_length(row.key), 0)
                       + coalesce(octet_length(row.payload), 0)
                       + coalesce(pg_column_size(row.headers), 0)
                  ELSE 0 END AS bytes
  ) AS size
