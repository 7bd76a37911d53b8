//! TLS and logins, on servers of the tests' own. An operator's mistake is an outage until it is mended.

#![allow(clippy::unwrap_used)]

mod support;

use outbox_conformance::secured::{self, Secret, certificate};
use outbox_redis::{Client, ClientTlsConfig, RedisConfig, RedisPublisher, TlsCertificates};
use support::server::{Server, free_port};
use support::{ask, connection, payloads};

/// A server with one user, `app`, who may add to streams.
struct Secured {
    server: Server,
    tls_port: u16,
}

impl Secured {
    async fn start() -> Self {
        let server = Server::start(&["--tls-auth-clients", "no"]);
        let mut secured = Self {
            server,
            tls_port: 0,
        };
        secured.present("server").await;
        loop {
            let port = free_port();
            let mut connection = connection(&secured.server.client()).await;
            let mut listen = redis::cmd("CONFIG");
            listen.arg("SET").arg("tls-port").arg(port);
            // Unless somebody else took the port first.
            if listen.exec_async(&mut connection).await.is_ok() {
                secured.tls_port = port;
                return secured;
            }
        }
    }

    /// Shows another certificate from now on.
    async fn present(&self, name: &str) {
        let path = |file: String| certificate(&file).display().to_string();
        let words = [
            "CONFIG",
            "SET",
            "tls-cert-file",
            &path(format!("{name}.pem")),
            "tls-key-file",
            &path(format!("{name}.key")),
            "tls-ca-cert-file",
            &path("ca.pem".to_owned()),
        ];
        ask(&self.server.client(), &words).await;
    }

    async fn set_password(&self, password: &str) {
        let password = format!(">{password}");
        let user = [
            "ACL", "SETUSER", "app", "reset", "on", &password, "~*", "+xadd",
        ];
        ask(&self.server.client(), &user).await;
    }

    /// Logs in as `app`, to whom `authority` has certified.
    fn publisher(&self, authority: &str, password: &str) -> RedisPublisher {
        self.publisher_with(authority, password, None)
    }

    fn publisher_with(
        &self,
        authority: &str,
        password: &str,
        client_tls: Option<ClientTlsConfig>,
    ) -> RedisPublisher {
        let url = format!("rediss://app:{password}@127.0.0.1:{}", self.tls_port);
        let certificates = TlsCertificates {
            client_tls,
            root_cert: Some(read(authority)),
        };
        let client = Client::build_with_tls(url, certificates).unwrap();
        RedisPublisher::new(RedisConfig::new(client)).unwrap()
    }

    async fn has(&self, count: usize) {
        assert_eq!(payloads(&self.server.client(), "t").await.len(), count);
    }
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(certificate(name)).unwrap()
}

async fn delivers(publisher: &RedisPublisher) {
    secured::delivers(publisher, "t").await;
}

async fn is_refused(publisher: &RedisPublisher, said: &str, secret: &Secret) {
    secured::is_refused(publisher, "t", said, secret).await;
    secret.was_not_logged();
}

#[tokio::test]
async fn a_stranger_gets_nothing_until_the_server_proves_who_it_is() {
    let (secured, secret) = (Secured::start().await, Secret::new());
    secured.set_password(secret.password()).await;
    let publisher = secured.publisher("ca.pem", secret.password());
    secured.present("other-server").await;
    is_refused(&publisher, "invalid peer certificate", &secret).await;
    secured.present("server").await;
    delivers(&publisher).await;
    secured.has(3).await;

    let publisher = secured.publisher("other-ca.pem", secret.password());
    is_refused(&publisher, "invalid peer certificate", &secret).await;
    secured.has(3).await;
}

#[tokio::test]
async fn a_wrong_password_is_an_outage_until_it_is_the_right_one() {
    let (secured, secret) = (Secured::start().await, Secret::new());
    secured.set_password("right").await;
    let publisher = secured.publisher("ca.pem", secret.password());
    is_refused(&publisher, "Password authentication failed", &secret).await;
    secured.set_password(secret.password()).await;
    delivers(&publisher).await;
    secured.has(3).await;
    secret.was_not_logged();
}

#[tokio::test]
async fn a_certificate_is_shown_to_a_server_that_asks_for_one() {
    let (secured, secret) = (Secured::start().await, Secret::new());
    secured.set_password(secret.password()).await;
    ask(
        &secured.server.client(),
        &["CONFIG", "SET", "tls-auth-clients", "yes"],
    )
    .await;
    let publisher = secured.publisher("ca.pem", secret.password());
    is_refused(&publisher, "connecting: ", &secret).await;
    let own = ClientTlsConfig {
        client_cert: read("client.pem"),
        client_key: read("client.key"),
    };
    let publisher = secured.publisher_with("ca.pem", secret.password(), Some(own));
    delivers(&publisher).await;
    secured.has(3).await;
}

#[tokio::test]
async fn a_server_that_does_not_speak_tls_is_an_outage() {
    let (server, secret) = (Server::start(&[]), Secret::new());
    let secured = Secured {
        tls_port: server.port(),
        server,
    };
    let publisher = secured.publisher("ca.pem", secret.password());
    is_refused(&publisher, "connecting: ", &secret).await;
}
