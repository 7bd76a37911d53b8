//! What every [`Store`] must do.
//!
//! A store joins with a [`StoreHarness`] and one call:
//!
//! ```
//! mod memory {
//!     use std::sync::Arc;
//!     use outbox_conformance::store::{Counts, Dead, OpenStore, StoreHarness, Transaction};
//!     use outbox_core::memory::{MemoryStore, MemoryTransaction};
//!     use outbox_core::{Message, Store, Uuid, async_trait};
//!
//!     struct Harness;
//!
//!     #[async_trait]
//!     impl StoreHarness for Harness {
//!         async fn open(&self) -> Box<dyn OpenStore> {
//!             Box::new(Open(MemoryStore::new()))
//!         }
//!     }
//!
//!     struct Open(MemoryStore);
//!
//!     #[async_trait]
//!     impl OpenStore for Open {
//!         fn store(&self) -> Arc<dyn Store> {
//!             Arc::new(self.0.clone())
//!         }
//!         async fn begin(&self) -> Box<dyn Transaction> {
//!             Box::new(Begun(self.0.begin()))
//!         }
//!         // …
//! #       async fn counts(&self) -> Counts { Counts::default() }
//! #       async fn dead(&self) -> Vec<Dead> { Vec::new() }
//! #       async fn replay(&self, _ids: &[Uuid]) {}
//! #       async fn discard(&self, _ids: &[Uuid]) {}
//! #       async fn cancel(&self, _id: Uuid) -> bool { false }
//!     }
//! #   struct Begun(MemoryTransaction);
//! #   #[async_trait]
//! #   impl Transaction for Begun {
//! #       async fn enqueue(&mut self, message: &Message) { self.0.enqueue(message) }
//! #       async fn commit(self: Box<Self>) { self.0.commit() }
//! #       async fn rollback(self: Box<Self>) { self.0.rollback() }
//! #   }
//!
//!     outbox_conformance::store_suite!(Harness);
//! }
//! ```
//!
//! What is not asked: that a claim holds all that it could (a store may lock more than one key
//! together), that messages of different keys come in any order, and that concurrent transactions
//! have one. What must happen is waited for, up to [`OpenStore::patience`]; what must not happen is
//! looked for after all that must happen has.
//!
//! Where to read next: the cases, by what they are about: [`claiming`], [`visibility`], [`settling`],
//! [`delaying`], [`parking`], [`giving_up`], [`content`], [`concurrency`].

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use outbox_core::{Message, Store, Uuid, async_trait};

use crate::runner;

mod kit;

pub mod claiming;
pub mod concurrency;
pub mod content;
pub mod delaying;
pub mod giving_up;
pub mod parking;
pub mod settling;
pub mod visibility;

pub use kit::Outbox;

/// Opens outboxes of one implementation. A method that cannot do its work panics.
#[async_trait]
pub trait StoreHarness: Send + Sync + 'static {
    /// A new, empty outbox that nothing else uses.
    async fn open(&self) -> Box<dyn OpenStore>;
}

/// An outbox as a case sees it. A method that cannot do its work panics.
#[async_trait]
pub trait OpenStore: Send + Sync + 'static {
    /// The store under test. Up to ten claims are held at once.
    fn store(&self) -> Arc<dyn Store>;

    /// Begins a transaction. Up to three are open at once, or one where there is
    /// [one writer](Self::one_writer): then it waits for the one that is open.
    async fn begin(&self) -> Box<dyn Transaction>;

    /// Whether the database lets one transaction write at a time, so that none commits late. The cases
    /// of late commits then check that, and that what waited comes after what it waited for.
    fn one_writer(&self) -> bool {
        false
    }

    /// How many messages are in which place.
    async fn counts(&self) -> Counts;

    /// What was given up, in any order.
    async fn dead(&self) -> Vec<Dead>;

    /// Puts dead messages back; ids that are not dead are passed over.
    async fn replay(&self, ids: &[Uuid]);

    /// Drops dead messages; ids that are not dead are passed over.
    async fn discard(&self, ids: &[Uuid]);

    /// Drops a delayed message in a transaction of its own; whether there was one.
    async fn cancel(&self, id: Uuid) -> bool;

    /// How long a case waits for what must happen before it fails.
    fn patience(&self) -> Duration {
        Duration::from_secs(15)
    }

    /// Cleans up after a case that passed.
    async fn close(self: Box<Self>) {}
}

/// A transaction of the application.
#[async_trait]
pub trait Transaction: Send {
    /// Enqueues a message; its position is drawn now, or its delay begins.
    async fn enqueue(&mut self, message: &Message);

    /// Commits.
    async fn commit(self: Box<Self>);

    /// Rolls back.
    async fn rollback(self: Box<Self>);
}

/// How many messages are in which place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Those that were never set aside.
    pub waiting: usize,
    /// Those that were set aside, due or not. Whether one that waits behind another of its key counts
    /// here or above before a claim has met it is the store's business.
    pub parked: usize,
    /// Those given up.
    pub dead: usize,
    /// Those that were enqueued with a delay and did not become due yet.
    pub delayed: usize,
}

/// A message that was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dead {
    /// The message id.
    pub id: Uuid,
    /// The reason, as [`PublishError::reason`](outbox_core::PublishError::reason) gave it.
    pub reason: String,
}

/// One thing that a store must do.
pub struct StoreCase {
    name: &'static str,
    run: Run,
}

type Run = for<'a> fn(&'a Arc<Outbox>) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

impl StoreCase {
    /// The name of the function that is the case.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Runs the case on a new outbox and a runtime of its own.
    ///
    /// # Errors
    ///
    /// What the store did wrong.
    pub fn check(&self, harness: impl StoreHarness) -> Result<(), String> {
        let run = self.run;
        runner::check(async move {
            let outbox = Arc::new(Outbox::new(harness.open().await));
            run(&outbox).await;
            // A case ends its tasks before it returns.
            if let Some(outbox) = Arc::into_inner(outbox) {
                outbox.close().await;
            }
        })
    }
}

/// The case of this name.
pub fn case(name: &str) -> Option<&'static StoreCase> {
    CASES.iter().find(|case| case.name == name)
}

/// Runs one case as a test: what [`store_suite!`](crate::store_suite) makes a test of.
///
/// # Panics
///
/// With what the store did wrong.
pub fn run(name: &str, harness: impl StoreHarness) {
    let case = case(name).expect("the name of a case");
    if let Err(wrong) = case.check(harness) {
        panic!("{name}: {wrong}");
    }
}

/// Makes one test of every case, with a new harness from the expression for each.
#[macro_export]
macro_rules! store_suite {
    ($harness:expr) => {
        $crate::__store_cases! { [$crate::__store_tests] ($harness) }
    };
}

/// The list of all cases, for the two macros that make something of it.
#[doc(hidden)]
#[macro_export]
macro_rules! __store_cases {
    ([$($make:tt)*] $($argument:tt)*) => {
        $($make)*! { $($argument)*
            claiming::an_empty_outbox_is_waited_for;
            claiming::a_commit_ends_the_wait;
            claiming::a_due_message_ends_the_wait;
            claiming::the_end_of_another_claim_ends_the_wait;
            claiming::a_claim_keeps_to_the_number;
            claiming::a_claim_keeps_to_the_bytes;
            claiming::a_larger_message_goes_alone;
            claiming::claims_share_no_key;
            claiming::claims_go_side_by_side;
            claiming::a_dropped_claim_is_released;
            claiming::a_cancelled_call_holds_nothing;
            claiming::an_overdue_claim_is_taken_away;

            visibility::uncommitted_is_not_claimed;
            visibility::rolled_back_is_never_claimed;
            visibility::a_late_commit_is_delivered;
            visibility::a_late_commit_comes_before_what_was_enqueued_after_it;
            visibility::a_commit_during_a_claim_keeps_the_order;
            visibility::a_transaction_keeps_the_order_of_its_statements;

            delaying::a_delayed_message_comes_when_it_is_due;
            delaying::a_delayed_message_holds_nothing_up;
            delaying::delayed_messages_come_in_the_order_of_their_times;
            delaying::what_is_enqueued_after_a_message_was_due_comes_after_it;
            delaying::a_delayed_message_waits_behind_a_parked_one;
            delaying::a_rolled_back_delay_never_comes;
            delaying::a_delay_that_commits_late_is_delivered;
            delaying::a_cancelled_message_never_comes;
            delaying::many_claimers_get_a_delayed_message_once;

            settling::each_message_gets_its_own_outcome;
            settling::each_message_of_one_key_gets_its_own_outcome;
            settling::a_wrong_number_of_outcomes_records_nothing;
            settling::released_changes_nothing;

            parking::a_parked_message_delays_only_its_key;
            parking::a_parked_message_comes_back_when_due;
            parking::each_park_is_counted;
            parking::an_uncounted_park_counts_no_failure;
            parking::a_park_has_no_longest_time;
            parking::followers_return_in_order;
            parking::many_followers_return_in_batches;
            parking::new_messages_wait_behind_a_parked_one;
            parking::late_commits_wait_behind_a_parked_one;
            parking::a_message_in_the_middle_is_parked;
            parking::released_followers_wait_behind_a_parked_one;
            parking::two_parked_of_one_key_return_in_order;
            parking::a_follower_keeps_its_counters;
            parking::followers_go_on_when_their_head_dies;
            parking::a_dropped_claim_of_parked_messages_is_released;
            parking::behind_nothing_is_released;
            parking::keyless_messages_park_alone;
            parking::an_empty_key_is_a_key;

            giving_up::a_dead_message_is_kept_with_its_reason;
            giving_up::a_dead_message_lets_its_key_go_on;
            giving_up::a_halted_key_waits_for_a_replay;
            giving_up::a_halted_key_waits_for_a_discard;
            giving_up::another_decision_does_not_end_a_halt;
            giving_up::a_replayed_message_returns_to_its_place;
            giving_up::two_replays_return_it_once;
            giving_up::a_halt_without_a_key_halts_nothing;

            content::text_comes_back_unchanged;
            content::any_message_comes_back_unchanged;
            content::bytes_come_back_unchanged;
            content::empty_is_not_absent;
            content::large_fields_come_back_unchanged;
            content::given_ids_come_back_unchanged;
            content::set_aside_comes_back_unchanged;

            concurrency::many_claimers_settle_each_message_once;
            concurrency::order_is_kept_through_failures;
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __store_tests {
    (($harness:expr) $($module:ident::$case:ident;)*) => {
        $(
            #[test]
            fn $case() {
                $crate::store::run(stringify!($case), $harness);
            }
        )*
    };
}

macro_rules! table {
    ($($module:ident::$case:ident;)*) => {
        /// Every case.
        pub const CASES: &[StoreCase] = &[
            $(StoreCase {
                name: stringify!($case),
                run: |outbox| Box::pin($module::$case(outbox)),
            },)*
        ];
    };
}

crate::__store_cases! { [table] }
