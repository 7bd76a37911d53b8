//! Rules of the house, kept by a test.
