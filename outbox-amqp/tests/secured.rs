//! TLS and logins, at the secured listener of the server that tests share. An operator's mistake is an
//! outage until it is mended.

#![allow(clippy::unwrap_used)]

mod support;

use outbox_amqp::{AmqpConfig, AmqpPublisher, OwnedIdentity, OwnedTLSConfig};
use outbox_conformance::address;
use outbox_conformance::secured::{Secret, certificate, delivers, is_refused};
use support::{Server, new_name, rabbitmqctl, url};
use tracing::Level;

/// At TRACE the client prints each frame, and so what it logs in with; the crate's `README.md` says so.
const LOGGED: Level = Level::DEBUG;

/// The address of the secured listener, for a user.
fn secured(user: &str, password: &str) -> String {
    let url = address("OUTBOX_TEST_RABBITMQ_TLS_URL");
    url.replace("guest:guest", &format!("{user}:{password}"))
}

/// Logs in to whom `authority` has certified, and shows a certificate of its own.
fn publisher(authority: &str, user: &str, password: &str) -> AmqpPublisher {
    let read = |name: &str| std::fs::read(certificate(name)).unwrap();
    let tls = OwnedTLSConfig {
        cert_chain: Some(String::from_utf8(read(authority)).unwrap()),
        identity: Some(OwnedIdentity::PKCS8 {
            pem: read("client.pem"),
            key: read("client.key"),
        }),
    };
    let config = AmqpConfig::new(secured(user, password)).tls(tls);
    AmqpPublisher::new(config).unwrap()
}

#[tokio::test]
async fn messages_are_delivered_to_a_broker_that_proves_who_it_is() {
    let (queue, secret) = (new_name(), Secret::new());
    let server = Server::connect(&url()).await;
    server.queue(&queue).await;
    // The password of the user is known to everybody, and no secret.
    delivers(&publisher("ca.pem", "guest", "guest"), &queue).await;
    assert_eq!(server.count(&queue).await, 3);

    let stranger = publisher("other-ca.pem", "guest", secret.password());
    is_refused(&stranger, &queue, "invalid peer certificate", &secret).await;
    secret.was_not_logged_at(LOGGED);
    assert_eq!(server.count(&queue).await, 3);
    server.delete_queue(&queue).await;
    server.close().await;
}

#[tokio::test]
async fn a_wrong_password_is_an_outage_until_it_is_the_right_one() {
    let (queue, user, secret) = (new_name(), new_name(), Secret::new());
    let server = Server::connect(&url()).await;
    server.queue(&queue).await;
    // One call for a user and what it may, since each starts a program.
    let add = format!(
        "U = <<\"{user}\">>, By = <<\"test\">>,
         rabbit_auth_backend_internal:add_user(U, <<\"right\">>, By),
         rabbit_auth_backend_internal:set_permissions(
             U, <<\"/\">>, <<\"^$\">>, <<\".*\">>, <<\"^$\">>, By)."
    );
    rabbitmqctl("rabbitmq", &["eval", &add]).await;
    let publisher = publisher("ca.pem", &user, secret.password());
    is_refused(&publisher, &queue, "403 ACCESS_REFUSED", &secret).await;
    rabbitmqctl("rabbitmq", &["change_password", &user, secret.password()]).await;
    delivers(&publisher, &queue).await;
    assert_eq!(server.count(&queue).await, 3);
    secret.was_not_logged_at(LOGGED);
    drop(publisher);
    rabbitmqctl("rabbitmq", &["delete_user", &user]).await;
    server.delete_queue(&queue).await;
    server.close().await;
}
