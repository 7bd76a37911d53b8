//! Who may depend on whom.

use std::collections::BTreeSet;

use outbox_tidy::{
    cargo::{self, Package},
    keep,
};

const STORES_AND_BROKERS: [&str; 6] = [
    "outbox-postgres",
    "outbox-sqlite",
    "outbox-kafka",
    "outbox-amqp",
    "outbox-nats",
    "outbox-redis",
];

const CLIENTS: [&str; 5] = ["sqlx", "rdkafka", "lapin", "async-nats", "redis"];

fn stores_and_brokers() -> Vec<Package> {
    let mut members = cargo::members();
    members.retain(|package| STORES_AND_BROKERS.contains(&package.name.as_str()));
    members
}

#[test]
fn the_core_knows_no_database_no_broker_and_no_tls() {
    let foreign: Vec<String> = cargo::built_for("outbox-core")
        .into_iter()
        .filter(|name| {
            let family = name.split(['-', '_']).next().unwrap_or_default();
            CLIENTS.contains(&name.as_str())
                || ["sqlx", "rdkafka", "rustls", "openssl", "ring", "aws"].contains(&family)
                || name == "native-tls"
        })
        .collect();
    keep(
        "outbox-core is for every store and broker. Its dependencies must not include, even through others:",
        &foreign,
    );
}

#[test]
fn the_core_knows_no_telemetry_unless_it_is_asked_to() {
    let unasked: Vec<String> = cargo::built_at_least_for("outbox-core")
        .into_iter()
        .filter(|name| name.starts_with("opentelemetry"))
        .collect();
    keep(
        "OpenTelemetry is for those who switch the feature `otel` on. Without features outbox-core must not need:",
        &unasked,
    );
}

#[test]
fn a_store_or_broker_knows_the_core_and_no_other() {
    let members: BTreeSet<String> = cargo::members().into_iter().map(|it| it.name).collect();
    let mut broken = Vec::new();
    for package in stores_and_brokers() {
        if !package
            .dependencies
            .iter()
            .any(|it| it.name == "outbox-core" && !it.dev)
        {
            broken.push(format!("{} does not depend on outbox-core", package.name));
        }
        for dependency in &package.dependencies {
            // Itself, as its tests have it: with the feature for TLS.
            let in_tests = ["outbox-conformance", &package.name];
            let may = dependency.name == "outbox-core"
                || dependency.dev && in_tests.contains(&dependency.name.as_str());
            if members.contains(&dependency.name) && !may {
                broken.push(format!("{} depends on {}", package.name, dependency.name));
            }
        }
    }
    keep(
        "A store or a broker depends on outbox-core, and of its siblings on none:",
        &broken,
    );
}

#[test]
fn a_store_or_broker_has_one_client() {
    let mut broken = Vec::new();
    for package in stores_and_brokers() {
        let clients: BTreeSet<&str> = package
            .dependencies
            .iter()
            .filter(|it| !it.dev && CLIENTS.contains(&it.name.as_str()))
            .map(|it| it.name.as_str())
            .collect();
        if clients.len() != 1 {
            broken.push(format!("{}: {clients:?}", package.name));
        }
    }
    keep("A store or a broker depends on one client crate:", &broken);
}

#[test]
fn an_order_example_builds_the_client_of_its_broker_and_no_other() {
    let mut broken = Vec::new();
    for example in cargo::members() {
        let Some(broker) = example.folder.strip_prefix("examples/orders") else {
            continue;
        };
        let built = cargo::built_for(&example.name);
        let of_brokers = CLIENTS.iter().filter(|&&client| client != "sqlx");
        let clients: Vec<_> = of_brokers.filter(|&&it| built.contains(it)).collect();
        // The one that all share has none.
        if clients.len() != usize::from(!broker.is_empty()) {
            broken.push(format!("{}: {clients:?}", example.folder));
        }
    }
    keep(
        "Who tries one broker does not build the others; an example of a broker needs its client alone:",
        &broken,
    );
}

#[test]
fn a_consumer_builds_the_client_of_its_broker_and_no_adapter() {
    let mut broken = Vec::new();
    for example in cargo::members() {
        let Some(broker) = example.folder.strip_prefix("examples/consumer") else {
            continue;
        };
        let built = cargo::built_for(&example.name);
        let of_brokers = CLIENTS.iter().filter(|&&client| client != "sqlx");
        let clients = of_brokers.filter(|&&it| built.contains(it)).count();
        let adapters = ["outbox-kafka", "outbox-amqp", "outbox-nats", "outbox-redis"];
        let adapters: Vec<_> = adapters.iter().filter(|&&it| built.contains(it)).collect();
        // The one that all share has none.
        if clients != usize::from(!broker.is_empty()) || !adapters.is_empty() {
            broken.push(format!(
                "{}: {clients} clients, {adapters:?}",
                example.folder
            ));
        }
    }
    keep(
        "A consumer needs its broker's client and the inbox, and nothing that publishes:",
        &broken,
    );
}

#[test]
fn no_product_depends_on_tests() {
    let members = cargo::members();
    let tests: BTreeSet<&str> = members
        .iter()
        .filter(|it| it.folder.starts_with("tests/"))
        .map(|it| it.name.as_str())
        .collect();
    let mut broken = Vec::new();
    for package in members.iter().filter(|it| it.is_product()) {
        for dependency in &package.dependencies {
            if tests.contains(dependency.name.as_str()) && (!dependency.dev || dependency.versioned)
            {
                broken.push(format!("{} depends on {}", package.name, dependency.name));
            }
        }
    }
    keep(
        "What we publish may use tests/ as a dev-dependency by path without a version, which cargo leaves out when it publishes, and in no other way:",
        &broken,
    );
}

#[test]
fn ring_is_the_only_tls_provider() {
    let others: Vec<String> = cargo::built()
        .into_iter()
        .filter(|name| name.starts_with("aws-lc") || name == "native-tls")
        .map(|name| format!("{name}, through {:?}", cargo::dependents_of(&name)))
        .collect();
    keep(
        "With two providers in the graph rustls panics at the first connection; switch off the default features that bring:",
        &others,
    );
}

#[test]
fn openssl_is_under_kafka_only() {
    let mut broken = Vec::new();
    for library in ["openssl-sys", "openssl"] {
        for dependent in cargo::dependents_of(library) {
            if !["rdkafka-sys", "openssl"].contains(&dependent.as_str()) {
                broken.push(format!("{dependent} depends on {library}"));
            }
        }
    }
    keep(
        "librdkafka needs OpenSSL for TLS, everything else uses rustls with ring:",
        &broken,
    );
}
