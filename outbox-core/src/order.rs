//! What failed, and what that means for the order of a key.

/// What order the messages of one key keep, and what it costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OrderMode {
    /// A message is not sent before the earlier ones of its key are confirmed or dead: the n-th
    /// message of each key travels in the n-th wave.
    #[default]
    PerKey,
    /// The whole batch travels at once; after a failure every later message of the key is sent again
    /// after it. A consumer that processes every copy ends in order; one that drops repeats by id
    /// sees the suffix early and needs [`PerKey`](Self::PerKey).
    PerKeyPipelined,
    /// The whole batch travels at once, and each message stands for itself.
    Unordered,
}

/// Whether a key goes on after one of its messages is dead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDead {
    /// The later messages of the key go on.
    #[default]
    Continue,
    /// The later messages of the key wait until a person replays or discards the dead one.
    HaltKey,
}
