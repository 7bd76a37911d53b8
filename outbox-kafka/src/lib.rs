//! Publishes outbox messages to Apache Kafka.
