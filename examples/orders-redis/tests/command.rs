//! The example, as a person runs it.

orders::command_tests!(
    env!("CARGO_BIN_EXE_orders-redis"),
    "Redis",
    ["--redis-url", "redis://:secret@127.0.0.1:1/"]
);
