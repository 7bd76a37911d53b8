//! A transactional outbox: one crate, one feature per store and broker.
