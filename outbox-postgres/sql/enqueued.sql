-- The messages of the transaction that asks, those of its savepoints among them: rows that it sees and whose
-- transaction has not ended. A row has the lower half of its transaction's number only; the whole one is the
-- one nearest to this transaction's.
SELECT m.id, m.topic, m.key, m.payload, m.headers::text
  FROM (SELECT pg_current_xact_id()::text::bigint + 2147483648 AS above) AS own,
       LATERAL (
           SELECT message.*, own.above - ((own.above - message.xmin::text::bigint) & 4294967295) AS transaction
             FROM {schema}.message
       ) AS m
 WHERE pg_xact_status(m.transaction::text::xid8) = 'in progress'
 ORDER BY m.position
