"""An order service in Python with psycopg 3: an order and its message commit together.

docs/from-python.md explains it, and a test of outbox-relay runs it:

    DATABASE_URL=postgres://… python3 place_order.py

It prints the ids of the messages that it has enqueued.
"""

import json
import os

import psycopg
from psycopg.types.json import Jsonb


def place_order(conn, order_id, item):
    with conn.transaction():
        conn.execute("INSERT INTO orders (id, item) VALUES (%s, %s)", (order_id, item))
        row = conn.execute(
            "SELECT outbox.enqueue_json(topic => %s, payload => %s, key => %s, headers => %s)",
            (
                "orders.placed",
                json.dumps({"id": order_id, "item": item}),
                f"order-{order_id}",  # messages of one key arrive in order
                Jsonb({"content-type": "application/json"}),
            ),
        ).fetchone()
    return row[0]  # the message id, a uuid.UUID: it stays the same in every copy


def attach_label(conn, order_id, png):
    with conn.transaction():
        conn.execute("UPDATE orders SET label = %s WHERE id = %s", (png, order_id))
        row = conn.execute(
            "SELECT outbox.enqueue(topic => %s, payload => %s, key => %s, headers => %s)",
            ("orders.labels", png, f"order-{order_id}", Jsonb({"content-type": "image/png"})),
        ).fetchone()
    return row[0]


def import_orders(conn, orders):
    with conn.transaction(), conn.cursor() as cursor:
        cursor.executemany("INSERT INTO orders (id, item) VALUES (%s, %s)", orders)
        with cursor.copy("COPY outbox.message (topic, key, payload) FROM STDIN") as copy:
            for order_id, item in orders:
                payload = json.dumps({"id": order_id, "item": item}).encode()
                copy.write_row(("orders.imported", f"order-{order_id}", payload))


def main():
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as conn:
        print(place_order(conn, 1, "tea"))
        try:
            place_order(conn, 1, "tea again")  # the order is there already
        except psycopg.errors.UniqueViolation:
            pass  # rolled back, and the message with it
        print(attach_label(conn, 1, b"\x89PNG\x00\xff"))
        import_orders(conn, [(2, "coffee"), (3, "größe 東京")])


if __name__ == "__main__":
    main()
