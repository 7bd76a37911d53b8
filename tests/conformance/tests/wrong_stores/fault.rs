//! The mistakes.

/// One thing that a store does wrong. Everything else it does right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    // Claiming.
    /// A claim of an empty outbox comes back at once: a hot loop.
    DoesNotWait,
    /// It looks when the call begins and when its wait is over.
    NeverWakes,
    /// It is woken by commits, and by no due time and no end of another claim.
    WakesOnCommitsOnly,
    IgnoresTheNumber,
    IgnoresTheBytes,
    /// A message larger than the limit is never claimed, nor what is behind it.
    StopsAtLargerMessages,
    /// Keys are kept, and mean nothing.
    ForgetsKeys,
    OneClaimAtATime,
    /// A dropped claim holds its messages for as long as the connection lives.
    KeepsDroppedClaims,
    /// What a call was about to give when it was dropped stays held.
    KeepsCancelledClaims,
    /// A frozen worker keeps its messages.
    HoldsForEver,

    // Delays.
    IgnoresTheDelay,
    /// Says that it has dropped a message, and drops none.
    CancelsNothing,

    // Visibility.
    ReadsUncommitted,
    CommitsRollbacks,
    /// The cursor: what commits with a position below the last delivered one is never seen.
    LosesLateCommits,
    /// The cursor with a sweep: it is seen when there is nothing else to do.
    SweepsForLateCommits,
    /// Says that there is one writer at a time, and lets others write beside it.
    OneWriterBesideOthers,
    /// Settles everything up to the position that the sequence has reached by then.
    LosesCommitsDuringAClaim,
    ReversesTransactions,

    // Settling.
    /// Settles everything up to the last delivered message.
    SettlesARange,
    /// All messages of a key get what became of the first.
    SettlesKeysAsOne,
    /// Takes the outcomes that it got, whatever their number.
    SettlesWhatItGot,
    /// Records outcome by outcome and then notices that the number is wrong.
    RecordsBeforeItCounts,
    /// Says that it recorded, and did not, one time in seven.
    LosesSomeSettles,
    CountsReleases,

    // Parking.
    /// While one message is parked nothing is claimed.
    ParksEverything,
    ForgetsHowLong,
    ForgetsCounters,
    /// Knows that a message was parked, and not how often.
    CountsOnce,
    /// Takes an uncounted park for a failure.
    CountsEveryPark,
    OverflowsLongParks,
    /// Parks the head alone: it goes to the back of its key when its time is over.
    ForgetsFollowers,
    OneFollowerAClaim,
    /// What is enqueued for a parked key is not behind it.
    LetsNewMessagesPass,
    /// What commits late to a parked key is not behind it.
    LetsLateCommitsPass,
    /// Parks a message only if it is the first of its key in the claim.
    ParksOnlyFirsts,
    /// Only what was set `Behind` waits, not what was released.
    LetsReleasedPass,
    /// A message that waits behind another one begins to count anew.
    ForgetsCountersOfFollowers,
    /// Sets aside without a time what nothing is in front of.
    ParksBehindNothing,
    DropForgetsCounters,
    /// Keeps followers behind a parked head that died.
    KeepsFollowersOfTheDead,
    /// Absent is a key like any other.
    OneKeyForKeyless,
    /// The empty key is taken for none.
    EmptyKeyIsNoKey,

    // Giving up.
    DropsTheDead,
    CutsReasons,
    AlwaysHalts,
    NeverHalts,
    /// A discarded message is no longer shown, and halts its key all the same.
    DiscardKeepsTheHalt,
    /// Whatever is decided about any message of a key ends its halt.
    AnyDecisionEndsAHalt,
    ReplaysAtTheEnd,
    ReplaysTwice,

    // Content.
    DropsAHeader,
    PayloadIsText,
    EmptyIsAbsent,
    CutsLongKeys,
    ReplacesTheNilId,
    /// The table of the dead has no column for headers.
    DropsHeadersOfTheDead,
}
