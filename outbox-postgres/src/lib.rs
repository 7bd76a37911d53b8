//! Stores outbox messages in Postgres, in the application's own transaction.
