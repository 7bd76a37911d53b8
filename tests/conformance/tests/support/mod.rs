//! The table of what is wrong and which case must say so.

/// Makes a test of each fault and case, `Fault::fails::case`, and a list of all, `CAUGHT`.
///
/// Whatever uses it has an enum `Fault` and a `must_fail` at its root.
macro_rules! faults {
    ($($fault:ident { $($case:ident: $reason:literal,)* })*) => {
        const CAUGHT: &[(&str, &str)] = &[$($((stringify!($fault), stringify!($case)),)*)*];

        $(mod $fault {
            mod fails {
                $(#[test]
                fn $case() {
                    crate::must_fail(crate::Fault::$fault, stringify!($case), $reason);
                })*
            }
        })*
    };
}

/// A case has failed, and for the reason that the table gives.
pub(crate) fn failed_for(reason: &str, outcome: Result<(), String>) {
    let failure = outcome.expect_err("what is wrong passes the case that was written for it");
    assert!(
        failure.contains(reason),
        "it failed for another reason: {failure}"
    );
}

/// Every case is in the table.
pub(crate) fn all_catch_something<'a>(
    cases: impl Iterator<Item = &'a str>,
    caught: &[(&str, &str)],
) {
    let toothless: Vec<&str> = cases
        .filter(|name| !caught.iter().any(|(_, case)| case == name))
        .collect();
    assert!(toothless.is_empty(), "nothing wrong fails {toothless:?}");
}
