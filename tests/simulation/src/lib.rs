//! The relay under seeded faults and paused time.
