//! The relay: its settings, how it starts and stops, what it delivers, and what is packaged with it.

mod configuration;
mod delivery;
mod packaging;
mod start;
mod stop;
mod watching;
