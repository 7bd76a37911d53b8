//! The main job, whole: orders in Postgres, events in Kafka, and an audit of both.

fn main() {}
