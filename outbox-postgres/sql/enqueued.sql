-- The messages of the transaction that asks, those of its savepoints among them: rows that it sees and whose
-- transaction has not ended. A row has the lower half of its transaction's number only; the whole one is the
-- one nearest to this transaction's. Delayed ones come last.
SELECT m.id, m.topic, m.key, m.payload, m.headers::text,
       coalesce((extract(epoch FROM m.deliver_after) * 1000000)::bigint, 0)
  FROM (SELECT pg_current_xact_id()::text::bigint + 2147483648 AS above) AS own,
       LATERAL (
           SELECT message.id, message.topic, message.key, message.payload, message.headers,
                  NULL::interval AS deliver_after, message.position AS nth,
                  own.above - ((own.above - message.xmin::text::bigint) & 4294967295) AS transaction
             FROM {schema}.message
            UNION ALL
           SELECT delayed.id, delayed.topic, delayed.key, delayed.payload, delayed.headers,
                  delayed.deliver_after, delayed.number,
                  own.above - ((own.above - delayed.xmin::text::bigint) & 4294967295)
             FROM {schema}.delayed
       ) AS m
 WHERE pg_xact_status(m.transaction::text::xid8) = 'in progress'
 ORDER BY m.deliver_after IS NOT NULL, m.nth
