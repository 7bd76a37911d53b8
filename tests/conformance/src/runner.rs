//! Runs a case: on a runtime of its own, and what it panics with is what went wrong.

/// Runs a case to its end.
///
/// # Errors
///
/// The text of its panic.
pub(crate) fn check(case: impl Future<Output = ()> + Send + 'static) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| format!("no runtime: {error}"))?;
    let case = runtime.spawn(case);
    runtime
        .block_on(case)
        .map_err(|error| match error.try_into_panic() {
            Ok(panic) => panic_text(panic.as_ref()),
            Err(error) => error.to_string(),
        })
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
        (Some(text), _) => text.clone(),
        (_, Some(text)) => (*text).to_owned(),
        _ => "a panic without text".to_owned(),
    }
}
