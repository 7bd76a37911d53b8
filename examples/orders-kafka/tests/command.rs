//! The example, as a person runs it.

orders::command_tests!(
    env!("CARGO_BIN_EXE_orders-kafka"),
    "Kafka",
    ["--kafka-brokers", "127.0.0.1:1"]
);
