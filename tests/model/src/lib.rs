//! A model of the lane of a Postgres store: its lock, the lower bound of a scan, and commits that come late.
//!
//! The proof in `ARCHITECTURE.md` argues about single snapshots; what workers, producers and crashes do to
//! each other between any two statements is easier to enumerate than to think through. So here is the whole
//! of it as a small machine: a server that knows snapshots (`server.rs`), what a store knows of a lane
//! (`knowledge.rs`), and every step that a producer or a worker can take (`system.rs`). `explore.rs` goes
//! through all their orders and asks of each that no committed message is lost, none published before one
//! that was enqueued earlier, none again after its settle has succeeded, and none that did not commit.
//!
//! `tests/explored.rs` explores small sizes fully, and shows that each mistake put into the algorithm breaks
//! a promise. `tests/replayed.rs` takes courses of events from the model and replays them with the real store
//! on a real server, statement by statement.
//!
//! Not here: parked and dead messages, several lanes (they share only the marks), and what a publisher does
//! (`tests/simulation`). Where to read next: `docs/model.md`.

mod explore;
mod knowledge;
mod server;
mod system;

pub use explore::{Explored, explore};
pub use system::{Mutation, Op, Setup, State, Step, Violation};
