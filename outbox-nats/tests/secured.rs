//! TLS and logins, on servers of the tests' own. An operator's mistake is an outage until it is mended.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use async_nats::{Client, ConnectOptions};
use outbox_conformance::secured::{self, Secret, certificate};
use outbox_nats::{NatsConfig, NatsPublisher};
use support::server::Server;
use support::{PATIENCE, create, new_subject, payloads, stream};

/// A configuration with one user, `app`, and a certificate. `more` goes with the certificate.
fn config(certificate_name: &str, password: &str, more: &str) -> String {
    let path = |ending: &str| certificate(&format!("{certificate_name}{ending}"));
    format!(
        "jetstream: {{ store_dir: STORE }}
         tls: {{ cert_file: {:?}, key_file: {:?}, {more} }}
         authorization: {{ user: app, password: \"{password}\" }}",
        path(".pem"),
        path(".key"),
    )
}

/// Logs in as `app`, to whom `authority` has certified.
fn options(authority: &str, password: &str) -> ConnectOptions {
    ConnectOptions::with_user_and_password("app".to_owned(), password.to_owned())
        .require_tls(true)
        .add_root_certificates(certificate(authority))
        .reconnect_delay_callback(|_| Duration::from_millis(50))
}

async fn publisher(server: &Server, options: ConnectOptions) -> (Client, NatsPublisher) {
    let options = options.retry_on_initial_connect();
    let client = options.connect(server.tls_url()).await.unwrap();
    let publisher = NatsPublisher::new(client.clone(), NatsConfig::new()).unwrap();
    (client, publisher)
}

/// As soon as the client is connected.
async fn delivers(client: &Client, publisher: &NatsPublisher) {
    let connected = async { client.flush().await.unwrap() };
    tokio::time::timeout(PATIENCE, connected).await.unwrap();
    let subject = new_subject();
    create(client, stream(&subject)).await;
    secured::delivers(publisher, &subject).await;
    assert_eq!(payloads(client, &subject).await, ["0", "1", "2"]);
}

/// The client says this of it, every message is an outage, and nobody tells the secret. Gives back a
/// publisher that goes on trying.
async fn is_refused(
    server: &Server,
    options: impl Fn() -> ConnectOptions,
    said: &str,
    secret: &Secret,
) -> (Client, NatsPublisher) {
    let error = options().connect(server.tls_url()).await.unwrap_err();
    assert!(error.to_string().contains(said), "{error}");
    secret.is_not_in(&format!("{error:?} {error}"));

    let (client, publisher) = publisher(server, options()).await;
    let said = "there is no connection to the server yet";
    secured::is_refused(&publisher, "t", said, secret).await;
    secret.was_not_logged();
    (client, publisher)
}

#[tokio::test]
async fn a_stranger_gets_nothing_until_the_server_proves_who_it_is() {
    let secret = Secret::new();
    let mut server = Server::start_with(&config("other-server", secret.password(), ""));
    let right = || options("ca.pem", secret.password());
    let (client, publisher) = is_refused(&server, right, "certificate", &secret).await;
    server.kill();
    server.configure(&config("server", secret.password(), ""));
    server.start_again();
    delivers(&client, &publisher).await;

    let wrong = || options("other-ca.pem", secret.password());
    is_refused(&server, wrong, "certificate", &secret).await;
}

#[tokio::test]
async fn a_wrong_password_is_an_outage_until_it_is_the_right_one() {
    let secret = Secret::new();
    let mut server = Server::start_with(&config("server", "right", ""));
    let options = || options("ca.pem", secret.password());
    let (client, publisher) = is_refused(&server, options, "authorization", &secret).await;
    server.kill();
    server.configure(&config("server", secret.password(), ""));
    server.start_again();
    delivers(&client, &publisher).await;
    secret.was_not_logged();
}

#[tokio::test]
async fn a_certificate_is_shown_to_a_server_that_asks_for_one() {
    let secret = Secret::new();
    let asks = format!("verify: true, ca_file: {:?}", certificate("ca.pem"));
    let server = Server::start_with(&config("server", secret.password(), &asks));
    let without = || options("ca.pem", secret.password());
    is_refused(&server, without, "BadCertificate", &secret).await;
    let own = (certificate("client.pem"), certificate("client.key"));
    let options = without().add_client_certificate(own.0, own.1);
    let (client, publisher) = publisher(&server, options).await;
    delivers(&client, &publisher).await;
}
