//! Kafka: the cluster's metadata, asked for by a consumer, since a producer's question would make a topic
//! where the broker allows that.

use rdkafka::config::{ClientConfig, FromClientConfig as _};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::metadata::MetadataTopic;

use crate::broker::kafka::client_config;
use crate::settings::Kafka;

use super::{Answer, Away, PATIENCE, Place};

/// Asks for each topic by its name: a cluster has thousands of others.
pub(super) async fn ask(settings: &Kafka, topics: &[String]) -> Result<Answer, Away> {
    let (config, topics) = (client_config(settings), topics.to_vec());
    // The client's calls block. Each has a bound, and so the task ends.
    let asking = tokio::task::spawn_blocking(move || ask_blocking(config, &topics));
    match asking.await {
        Ok(answer) => answer,
        Err(error) => Err(Away(error.to_string())),
    }
}

fn ask_blocking(mut config: ClientConfig, topics: &[String]) -> Result<Answer, Away> {
    config
        .set("allow.auto.create.topics", "false")
        .remove("group.id");
    let consumer = BaseConsumer::from_config(&config).map_err(|error| away(&error))?;
    let all = consumer.fetch_metadata(topics.first().map(String::as_str), PATIENCE);
    let brokers = all.map_err(|error| away(&error))?.brokers().len();
    let places = topics.iter().map(
        |topic| match consumer.fetch_metadata(Some(topic), PATIENCE) {
            Ok(metadata) => metadata
                .topics()
                .iter()
                .find(|found| found.name() == topic)
                .map_or_else(
                    || Place::Missing("the cluster does not know it".to_owned()),
                    place,
                ),
            Err(error) => Place::Unknown(error.to_string()),
        },
    );
    Ok(Answer {
        places: places.collect(),
        broker: match brokers {
            1 => "a cluster of one broker".to_owned(),
            brokers => format!("a cluster of {brokers} brokers"),
        },
    })
}

fn place(topic: &MetadataTopic) -> Place {
    match topic.error().map(RDKafkaErrorCode::from) {
        None | Some(RDKafkaErrorCode::NoError) => {}
        Some(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic) => {
            return Place::Missing("the topic does not exist, or may not be seen".to_owned());
        }
        Some(code) => return Place::Missing(code.to_string()),
    }
    let partitions = topic.partitions();
    if let Some(partition) = partitions.iter().find(|partition| partition.leader() < 0) {
        return Place::Missing(format!("partition {} has no leader", partition.id()));
    }
    Place::Found(match partitions.len() {
        1 => "a topic of one partition".to_owned(),
        partitions => format!("a topic of {partitions} partitions"),
    })
}

fn away(error: &KafkaError) -> Away {
    match error {
        // Without the value, which may be a secret.
        KafkaError::ClientConfig(_, reason, property, _) => Away(format!("`{property}`: {reason}")),
        KafkaError::MetadataFetch(code) => Away(format!(
            "no broker answered within {} s: {code}",
            PATIENCE.as_secs()
        )),
        error => Away(error.to_string()),
    }
}
