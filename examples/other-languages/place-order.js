// An order service in Node with pg: an order and its message commit together.
//
// docs/from-node.md explains it, and a test of outbox-relay runs it:
//
//     DATABASE_URL=postgres://… node place-order.js
//
// It prints the ids of the messages that it has enqueued.

'use strict';

const { Pool } = require('pg');

// Everything in `work` commits together or not at all. It must use the client that it is given: what goes
// through the pool goes through another connection, outside of the transaction.
async function inTransaction(pool, work) {
  const client = await pool.connect();
  try {
    await client.query('BEGIN');
    const result = await work(client);
    await client.query('COMMIT');
    return result;
  } catch (error) {
    await client.query('ROLLBACK');
    throw error;
  } finally {
    client.release();
  }
}

async function placeOrder(pool, id, item) {
  return inTransaction(pool, async (client) => {
    await client.query('INSERT INTO orders (id, item) VALUES ($1, $2)', [id, item]);
    const { rows } = await client.query(
      'SELECT outbox.enqueue_json(topic => $1, payload => $2, key => $3, headers => $4) AS id',
      [
        'orders.placed',
        JSON.stringify({ id, item }),
        `order-${id}`, // messages of one key arrive in order
        { 'content-type': 'application/json' },
      ],
    );
    return rows[0].id; // the message id: it stays the same in every copy
  });
}

async function attachLabel(pool, id, png) {
  return inTransaction(pool, async (client) => {
    await client.query('UPDATE orders SET label = $1 WHERE id = $2', [png, id]);
    const { rows } = await client.query(
      'SELECT outbox.enqueue(topic => $1, payload => $2, key => $3, headers => $4) AS id',
      ['orders.labels', png, `order-${id}`, { 'content-type': 'image/png' }],
    );
    return rows[0].id;
  });
}

async function importOrders(pool, orders) {
  await inTransaction(pool, async (client) => {
    const ids = orders.map((order) => order.id);
    const items = orders.map((order) => order.item);
    await client.query('INSERT INTO orders (id, item) SELECT * FROM unnest($1::bigint[], $2::text[])', [ids, items]);
    await client.query(
      `INSERT INTO outbox.message (topic, key, payload)
       SELECT 'orders.imported', key, convert_to(payload, 'UTF8') FROM unnest($1::text[], $2::text[]) AS o (key, payload)`,
      [ids.map((id) => `order-${id}`), orders.map((order) => JSON.stringify(order))],
    );
  });
}

async function main() {
  const pool = new Pool({ connectionString: process.env.DATABASE_URL });
  console.log(await placeOrder(pool, 1, 'tea'));
  try {
    await placeOrder(pool, 1, 'tea again'); // the order is there already
  } catch (error) {
    if (error.code !== '23505') throw error; // rolled back, and the message with it
  }
  console.log(await attachLabel(pool, 1, Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x00, 0xff])));
  await importOrders(pool, [{ id: 2, item: 'coffee' }, { id: 3, item: 'größe 東京' }]);
  await pool.end();
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
