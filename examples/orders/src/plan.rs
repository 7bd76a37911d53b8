//! Which orders are placed, by whom, and what is said of each: pure, and the same in every run.

/// So many customers place orders. Their names are the keys.
const CUSTOMERS: u64 = 500;

/// Everyone who may place an order.
pub fn customers() -> impl Iterator<Item = String> {
    (0..CUSTOMERS).map(customer_name)
}

/// Who places an order. Drawn by lot.
pub fn customer_of(order: u64) -> String {
    customer_name(customer_number(order))
}

/// What is said of an order, one message each, in one transaction. One customer in five pays at once, so
/// that some transactions write several messages of one key.
pub fn messages_of(order: u64) -> &'static [&'static str] {
    match customer_number(order) % 5 {
        0 => &["order placed", "order paid", "order packed"],
        _ => &["order placed"],
    }
}

/// How many messages so many orders have.
pub fn messages_of_all(orders: u64) -> u64 {
    (0..orders)
        .map(|order| messages_of(order).len() as u64)
        .sum()
}

/// In one of ten cases a first try to place the order is rolled back.
pub fn first_try_fails(order: u64) -> bool {
    order.is_multiple_of(10)
}

/// In one of ten cases a voucher is void: the order stays, and a savepoint takes the message about the
/// voucher back.
pub fn voucher_is_void(order: u64) -> bool {
    order % 10 == 5
}

fn customer_name(number: u64) -> String {
    format!("customer-{number}")
}

fn customer_number(order: u64) -> u64 {
    fastrand::Rng::with_seed(order).u64(..CUSTOMERS)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_customer_places_an_order_in_a_run_of_the_default_size() {
        let placed: HashSet<String> = (0..10_000).map(customer_of).collect();
        assert_eq!(placed, customers().collect());
    }

    #[test]
    fn some_orders_have_one_message_and_some_have_several() {
        let lengths: HashSet<usize> = (0..100).map(|order| messages_of(order).len()).collect();
        assert_eq!(lengths, HashSet::from([1, 3]));
    }

    #[test]
    fn no_order_meets_both_troubles_and_some_meet_each() {
        let met = |trouble: fn(u64) -> bool| (0..100).filter(|&order| trouble(order)).count();
        assert_eq!((met(first_try_fails), met(voucher_is_void)), (10, 10));
        assert_eq!(
            met(|order| first_try_fails(order) && voucher_is_void(order)),
            0
        );
    }
}
