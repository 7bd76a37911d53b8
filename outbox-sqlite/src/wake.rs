//! How a store that sleeps learns, within its process, that there may be something to do.
//!
//! SQLite tells nobody of a commit but the connection that made it, and that connection is the
//! application's: a hook on it would be in the way of the application's own. So an enqueue says that a
//! commit may come soon, before it comes, and the store looks more often for a while. What other
//! processes commit is found by polling.

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// One for all outboxes of the process: a look too many costs less than to find out whose it is.
static SOON: Notify = Notify::const_new();

/// Says that something may be committed soon, or was.
pub(crate) fn soon() {
    SOON.notify_waiters();
}

/// Ends with the next call of [`soon`], from when it is enabled.
pub(crate) fn woken() -> Notified<'static> {
    SOON.notified()
}
