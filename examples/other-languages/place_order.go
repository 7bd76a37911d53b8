// An order service in Go with database/sql and pgx: an order and its message commit together.
//
// docs/from-go.md explains it, and a test of outbox-relay runs its statements:
//
//	DATABASE_URL=postgres://… go run place_order.go
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"log"
	"os"

	_ "github.com/jackc/pgx/v5/stdlib"
)

type order struct {
	ID   int64  `json:"id"`
	Item string `json:"item"`
}

// enqueue takes a transaction, so that a message cannot be written outside of one.
func enqueue(ctx context.Context, tx *sql.Tx, topic, key string, payload any) (id string, err error) {
	text, err := json.Marshal(payload)
	if err != nil {
		return "", err
	}
	err = tx.QueryRowContext(ctx,
		`SELECT outbox.enqueue_json(topic => $1, payload => $2, key => $3, headers => $4)`,
		topic, string(text), key, `{"content-type": "application/json"}`,
	).Scan(&id)
	return id, err
}

func placeOrder(ctx context.Context, db *sql.DB, o order) (id string, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return "", err
	}
	defer tx.Rollback() // does nothing after the commit
	if _, err = tx.ExecContext(ctx, `INSERT INTO orders (id, item) VALUES ($1, $2)`, o.ID, o.Item); err != nil {
		return "", err
	}
	// Messages of one key arrive in order. The id stays the same in every copy.
	if id, err = enqueue(ctx, tx, "orders.placed", fmt.Sprintf("order-%d", o.ID), o); err != nil {
		return "", err
	}
	return id, tx.Commit()
}

func attachLabel(ctx context.Context, tx *sql.Tx, orderID int64, png []byte) (id string, err error) {
	err = tx.QueryRowContext(ctx,
		`SELECT outbox.enqueue(topic => $1, payload => $2, key => $3)`,
		"orders.labels", png, fmt.Sprintf("order-%d", orderID),
	).Scan(&id)
	return id, err
}

func main() {
	ctx := context.Background()
	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	id, err := placeOrder(ctx, db, order{ID: 1, Item: "tea"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(id)
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	if id, err = attachLabel(ctx, tx, 1, []byte("\x89PNG\x00\xff")); err != nil {
		log.Fatal(err)
	}
	if err = tx.Commit(); err != nil {
		log.Fatal(err)
	}
	fmt.Println(id)
}
