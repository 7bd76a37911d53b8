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
/// size or for one record in it, and then every record of it gets the code.
pub(crate) fn may_be_about_a_neighbour(code: RDKafkaErrorCode) -> bool {
    code == RDKafkaErrorCode::InvalidDifferentRecord || classify(code) == PublishErrorKind::Rejected
}

/// The code in an error of the client.
pub(crate) fn code(error: &KafkaError) -> RDKafkaErrorCode {
    error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The codes that a producer can meet, and what each must mean.
    const TABLE: &[(RDKafkaErrorCode, PublishErrorKind)] = {
        use PublishErrorKind::*;
        use RDKafkaErrorCode as Code;
        &[
            (Code::BrokerTransportFailure, BrokerUnavailable),
            (Code::AllBrokersDown, BrokerUnavailable),
            (Code::Resolve, BrokerUnavailable),
            (Code::MessageTimedOut, BrokerUnavailable),
            (Code::OperationTimedOut, BrokerUnavailable),
            (Code::TimedOutQueue, BrokerUnavailable),
            (Code::QueueFull, BrokerUnavailable),
            (Code::BrokerNotAvailable, BrokerUnavailable),
            (Code::NetworkException, BrokerUnavailable),
            (Code::SSL, BrokerUnavailable),
            (Code::Authentication, BrokerUnavailable),
            (Code::SaslAuthenticationFailed, BrokerUnavailable),
            (Code::UnsupportedSASLMechanism, BrokerUnavailable),
            (Code::ClusterAuthorizationFailed, BrokerUnavailable),
            (Code::UnsupportedVersion, BrokerUnavailable),
            (Code::UnsupportedCompressionType, BrokerUnavailable),
            (Code::Fatal, BrokerUnavailable),
            (Code::Fenced, BrokerUnavailable),
            (Code::ProducerFenced, BrokerUnavailable),
            (Code::PurgeQueue, BrokerUnavailable),
            (Code::PurgeInflight, BrokerUnavailable),
            (Code::OutOfOrderSequenceNumber, BrokerUnavailable),
            (Code::InvalidProducerEpoch, BrokerUnavailable),
            (Code::InvalidProducerIdMapping, BrokerUnavailable),
            (Code::UnknownProducerId, BrokerUnavailable),
            (Code::UnknownTopic, TopicUnavailable),
            (Code::UnknownTopicOrPartition, TopicUnavailable),
            (Code::UnknownPartition, TopicUnavailable),
            (Code::LeaderNotAvailable, TopicUnavailable),
            (Code::NotLeaderForPartition, TopicUnavailable),
            (Code::ReplicaNotAvailable, TopicUnavailable),
            (Code::NotEnoughReplicas, TopicUnavailable),
            (Code::NotEnoughReplicasAfterAppend, TopicUnavailable),
            (Code::RequestTimedOut, TopicUnavailable),
            (Code::KafkaStorageError, TopicUnavailable),
            (Code::TopicAuthorizationFailed, TopicUnavailable),
            (Code::ThrottlingQuotaExceeded, TopicUnavailable),
            (Code::InvalidTimestamp, TopicUnavailable),
            (Code::MessageSizeTooLarge, Rejected),
            (Code::MessageBatchTooLarge, Rejected),
            (Code::InvalidMessageSize, Rejected),
            (Code::InvalidRecord, Rejected),
            (Code::InvalidTopic, Rejected),
            (Code::PolicyViolation, Rejected),
            (Code::InvalidMessage, Retryable),
            (Code::InvalidDifferentRecord, Retryable),
            (Code::Fail, Retryable),
            (Code::InvalidArgument, Retryable),
            (Code::Unknown, Retryable),
        ]
    };

    #[test]
    fn each_code_means_what_the_table_says() {
        for (code, kind) in TABLE {
            assert_eq!(classify(*code), *kind, "{code}");
        }
    }

    #[test]
    fn an_operators_mistake_kills_no_message() {
        for code in [
            RDKafkaErrorCode::Authentication,
            RDKafkaErrorCode::ClusterAuthorizationFailed,
            RDKafkaErrorCode::TopicAuthorizationFailed,
            RDKafkaErrorCode::UnknownTopicOrPartition,
            RDKafkaErrorCode::InvalidTimestamp,
        ] {
            let kind = classify(code);
            let counts = matches!(
                kind,
                PublishErrorKind::Retryable | PublishErrorKind::Rejected
            );
            assert!(!counts, "{code} becomes {kind}");
        }
    }

    #[test]
    fn silence_and_neighbours_are_looked_into() {
        for (code, kind) in TABLE {
            let silence = matches!(
                code,
                RDKafkaErrorCode::MessageTimedOut
                    | RDKafkaErrorCode::OperationTimedOut
                    | RDKafkaErrorCode::TimedOutQueue
            );
            let neighbour = *kind == PublishErrorKind::Rejected
                || *code == RDKafkaErrorCode::InvalidDifferentRecord;
            assert_eq!(is_silence(*code), silence, "{code}");
            assert_eq!(may_be_about_a_neighbour(*code), neighbour, "{code}");
        }
    }

    #[test]
    fn an_error_without_a_code_is_counted() {
        assert_eq!(
            classify(code(&KafkaError::Canceled)),
            PublishErrorKind::Retryable
        );
        assert_eq!(
            code(&KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull)),
            RDKafkaErrorCode::QueueFull
        );
    }
}
