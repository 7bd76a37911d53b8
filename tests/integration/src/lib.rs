//! What needs several processes or services.
