//! The example, as a person runs it.

orders::command_tests!(
    env!("CARGO_BIN_EXE_orders-nats"),
    "NATS",
    ["--nats-url", "nats://somebody:secret@127.0.0.1:1"]
);
