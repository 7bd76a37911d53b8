//! The mistakes.

/// One thing that a publisher does wrong. Everything else it does right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    // Confirming.
    /// Waits for the first answer, also where there is none to come.
    HangsOnNothing,
    /// Forgets the last message of a batch once it is sent.
    NeverReportsOne,
    /// Confirms what is in its own queue; the queue is sent with the next call.
    ConfirmsBeforeTheBroker,
    /// Confirms one message in ten that it never sends.
    LosesOne,
    /// Reports when the whole batch is answered.
    ReportsAtTheEnd,
    /// Takes a full queue for a failure of the message.
    FailsWhenItsQueueIsFull,
    /// Sends a batch as one request, which has a limit.
    RefusesLargeBatches,
    /// A call finds another one under way and goes home.
    OneCallAtATime,
    /// Reports when it has written to the socket, and waits for the broker after that.
    ReportsWhenWritten,
    /// A dropped call leaves the connection in the middle of something.
    BreaksWhenDropped,

    // Order.
    /// Every tenth message is sent again, after the others.
    ReordersABatch,
    /// Two connections take turns, and the second is faster.
    SwapsBatches,
    /// A message of the empty key goes to any partition.
    EmptyKeyGoesAnywhere,

    // Content.
    DropsAHeader,
    DropsTheKey,
    ReplacesTheId,
    PayloadIsText,
    EndsPayloadsAtNul,
    EmptyPayloadIsAbsent,
    AbsentPayloadIsEmpty,
    EmptyKeyIsAbsent,
    KeysAreAscii,
    NewIdForARepeat,
    PanicsOnOddHeaders,
    DropsOddHeaders,
    TrimsHeaders,
    HeaderNamesIgnoreCase,
    DoesNotNameTheHeader,
    CutsHeaders,
    ReplacesOddCharactersInTopics,
    TakesImpossibleTopicsForMissing,
    CutsLongKeys,

    // Failing.
    FailsTheBatch,
    StopsAtTheFirstFailure,
    /// The answers are one place off.
    AnswersForTheNeighbour,
    /// What the broker has no place for is gone, and called delivered.
    DropsUnroutable,
    RemembersMissingTopics,
    TakesTooLargeForTransient,
    /// Looks at the whole batch before it sends anything.
    ValidatesTheBatch,
    /// Takes a batch that failed as a whole for a lost connection, and never opens another.
    BreaksAfterFailures,

    // Chaining.
    /// Sends what is behind a failure of its key.
    IgnoresChains,
    /// One key's failure stops the others.
    StopsEveryKey,
    /// Confirms what it has rightly not sent.
    ConfirmsBehindAFailure,
    /// A key that has stopped stays so.
    NeverGoesOn,
    /// Sends a chain over two connections.
    PartsAChain,
    /// Chains, and does not say so.
    HidesThatItChains,
}
