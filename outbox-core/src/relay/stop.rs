//! The word to stop, from the relay to its workers.

use tokio::sync::watch;

pub(super) fn channel() -> (Sender, Stop) {
    let (sender, receiver) = watch::channel(false);
    (Sender(sender), Stop(receiver))
}

pub(super) struct Sender(watch::Sender<bool>);

impl Sender {
    pub(super) fn request(&self) {
        self.0.send_replace(true);
    }
}

#[derive(Clone)]
pub(super) struct Stop(watch::Receiver<bool>);

impl Stop {
    pub(super) fn requested(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits for the request; a relay that is gone counts as one.
    pub(super) async fn wait(&self) {
        let _ = self.0.clone().wait_for(|requested| *requested).await;
    }

    /// The result of `work`, unless the request comes first: then `work` is dropped.
    pub(super) async fn or<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.wait() => None,
            done = work => Some(done),
        }
    }
}
