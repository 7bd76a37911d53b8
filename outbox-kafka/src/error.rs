//! What the client's and the broker's codes mean: a pure mapping.
//!
//! The names are the client's; codes below zero are its own, the others came from a broker. Most
//! broker codes that a message can cure by waiting never get here: the client repeats them until the
//! delivery timeout and then says [`MessageTimedOut`](RDKafkaErrorCode::MessageTimedOut).

use outbox_core::PublishErrorKind;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

/// What an answer means for what happens next.
///
/// A code that is in no table is `Retryable`: it is counted, so it cannot go round for ever.
pub(crate) fn classify(code: RDKafkaErrorCode) -> PublishErrorKind {
    use PublishErrorKind::*;
    use RDKafkaErrorCode as Code;
    match code {
        // Nobody answered, or not to us.
        Code::BrokerTransportFailure
        | Code::AllBrokersDown
        | Code::Resolve
        | Code::MessageTimedOut
        | Code::OperationTimedOut
        | Code::TimedOutQueue
        | Code::QueueFull
        | Code::BrokerDestroy
        | Code::DestroyBroker
        | Code::UnknownBroker
        | Code::BrokerNotAvailable
        | Code::NetworkException
        | Code::CriticalSystemResource
        // Credentials and rights are the operator's to mend, and no message's fault.
        | Code::SSL
        | Code::Authentication
        | Code::SaslAuthenticationFailed
        | Code::UnsupportedSASLMechanism
        | Code::IllegalSASLState
        | Code::SecurityDisabled
        | Code::ClusterAuthorizationFailed
        | Code::TransactionalIdAuthorizationFailed
        // A broker too old for what is configured.
        | Code::UnsupportedFeature
        | Code::UnsupportedVersion
        | Code::UnsupportedCompressionType
        // The producer's session is lost, and what it held with it.
        | Code::Fatal
        | Code::Fenced
        | Code::ProducerFenced
        | Code::Inconsistent
        | Code::GaplessGuarantee
        | Code::PurgeQueue
        | Code::PurgeInflight
        | Code::OutOfOrderSequenceNumber
        | Code::DuplicateSequenceNumber
        | Code::InvalidProducerEpoch
        | Code::InvalidProducerIdMapping
        | Code::UnknownProducerId => BrokerUnavailable,

        // The topic or its partition, for now.
        Code::UnknownTopic
        | Code::UnknownTopicOrPartition
        | Code::UnknownTopicId
        | Code::UnknownPartition
        | Code::LeaderNotAvailable
        | Code::NotLeaderForPartition
        | Code::ReplicaNotAvailable
        | Code::FencedLeaderEpoch
        | Code::UnknownLeaderEpoch
        | Code::NotEnoughReplicas
        | Code::NotEnoughReplicasAfterAppend
        | Code::ISRInsufficient
        | Code::RequestTimedOut
        | Code::KafkaStorageError
        | Code::LogDirNotFound
        | Code::TopicAuthorizationFailed
        | Code::ThrottlingQuotaExceeded
        | Code::UnsupportedForMessageFormat
        // This host's clock and the topic's limits disagree: it would refuse every message.
        | Code::InvalidTimestamp => TopicUnavailable,

        // The message, for good.
        Code::MessageSizeTooLarge
        | Code::MessageBatchTooLarge
        | Code::InvalidMessageSize
        | Code::InvalidRecord
        | Code::InvalidTopic
        | Code::PolicyViolation => Rejected,

        // Damaged on the way, spoiled by a neighbour, or not known here.
        _ => Retryable,
    }
}

/// Whether nobody answered in time, which does not say if the cluster is away or only the topic.
pub(crate) fn is_silence(code: RDKafkaErrorCode) -> bool {
    matches!(
        code,
        RDKafkaErrorCode::MessageTimedOut
            | RDKafkaErrorCode::OperationTimedOut
            | RDKafkaErrorCode::TimedOutQueue
    )
}

/// Whether the code may be about another message: brokers refuse a record batch as a whole, for its
/// size or for one record in it.
pub(crate) fn may_be_about_a_neighbour(code: RDKafkaErrorCode) -> bool {
    matches!(
        code,
        RDKafkaErrorCode::MessageSizeTooLarge
            | RDKafkaErrorCode::MessageBatchTooLarge
            | RDKafkaErrorCode::InvalidDifferentRecord
    )
}

/// The code in an error of the client.
pub(crate) fn code(error: &KafkaError) -> RDKafkaErrorCode {
    error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail)
}
