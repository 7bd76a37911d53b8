//! The suites that every Store and every Publisher must pass.
