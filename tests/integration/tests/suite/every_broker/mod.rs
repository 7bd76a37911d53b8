//! What must hold with every broker.
//!
//! A test here is a function of the broker, and in the list below, which makes a test of it for each: a
//! broker joins with one line in `main.rs`.
//!
//! Where to read next: `support/broker.rs` for what a broker brings.

pub(crate) mod content;
pub(crate) mod faults;
pub(crate) mod order;
pub(crate) mod relays;

/// The tests of the broker that is in the module of this name in `support`.
macro_rules! tests_with {
    ($broker:ident) => {
        mod $broker {
            tests_with! { $broker:
                content {
                    every_content_arrives_unchanged_from_rust_and_from_sql,
                }
                faults {
                    messages_wait_while_the_broker_is_stopped_and_go_on_by_themselves,
                    a_batch_that_the_broker_crashed_on_between_send_and_confirmation_is_delivered,
                    a_relay_stops_in_time_while_the_broker_is_away,
                }
                order {
                    per_key_sends_nothing_of_a_key_before_what_fails,
                    per_key_sends_nothing_of_a_halted_key_until_a_person_decides,
                    pipelined_sends_all_of_a_key_again_after_what_fails,
                    pipelined_sends_all_of_a_halted_key_again_when_a_person_has_decided,
                    unordered_lets_no_message_wait_for_another,
                }
                relays {
                    two_relays_deliver_each_message_once_and_in_order_while_producers_run,
                    relays_killed_one_after_another_lose_nothing_and_keep_the_order,
                }
            }
        }
    };
    ($broker:ident: $($about:ident { $($test:ident,)* })*) => {
        $(mod $about {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                crate::every_broker::$about::$test(&crate::support::$broker::BROKER).await;
            })*
        })*
    };
}
