//! The example, as a person runs it.

orders::command_tests!(
    env!("CARGO_BIN_EXE_orders-amqp"),
    "RabbitMQ",
    ["--amqp-url", "amqp://somebody:secret@127.0.0.1:1/%2f"]
);
