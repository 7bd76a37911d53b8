//! What the real server's answers become, one kind at a time.

mod support;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lapin::ExchangeKind;
use lapin::options::ExchangeDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};
use outbox_amqp::{AmqpConfig, AmqpPublisher, Routing};
use outbox_conformance::publisher::refusal;
use outbox_core::{Message, PublishErrorKind, PublisherExt};
use support::{Server, new_name, rabbitmqctl, url};

const WITHIN: Duration = Duration::from_secs(60);

fn publisher(config: AmqpConfig) -> AmqpPublisher {
    AmqpPublisher::new(config).expect("a configuration that is accepted")
}

fn message(topic: &str, key: &str, payload: impl Into<Vec<u8>>) -> Message {
    let payload: Vec<u8> = payload.into();
    Message::to(topic).key(key).bytes(payload).expect("valid")
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

/// The URL of the shared server with another user.
fn url_for(user: &str, password: &str) -> String {
    let url = url();
    let (scheme, rest) = url.split_once("://").expect("a URL");
    let (_, host) = rest.split_once('@').expect("a URL with a user");
    format!("{scheme}://{user}:{password}@{host}")
}

/// Lets a queue answer nothing, for a minute at most.
async fn suspend(queue: &str) {
    on_queue(
        queue,
        "sys:suspend(Pid), spawn(fun() -> receive after 60000 -> catch sys:resume(Pid) end end)",
    )
    .await;
}

async fn resume(queue: &str) {
    on_queue(queue, "sys:resume(Pid)").await;
}

async fn on_queue(queue: &str, what: &str) {
    let code = format!(
        "{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<\"/\">>, queue, <<\"{queue}\">>)), \
         Pid = amqqueue:get_pid(Q), {what}."
    );
    rabbitmqctl("rabbitmq", &["eval", &code]).await;
}

#[tokio::test]
async fn a_confirmed_message_is_in_the_queue() {
    let server = Server::connect(&url()).await;
    let queue = new_name();
    server.queue(&queue).await;
    let batch = [
        Message::to(&queue)
            .key("7")
            .header("trace", "abc")
            .bytes("hello")
            .expect("valid"),
        Message::to(&queue).tombstone().expect("valid"),
    ];
    let publisher = publisher(AmqpConfig::new(url()));
    let answers = publisher.publish_all(&batch, WITHIN).await;
    assert_eq!(answers, [Some(Ok(())), Some(Ok(()))]);

    let received = server.read(&queue).await;
    assert_eq!(received.len(), 2);
    assert_eq!(received[0].routing_key, queue);
    assert_eq!(received[0].message_id, Some(batch[0].id().to_string()));
    assert_eq!(received[0].delivery_mode, Some(2));
    assert_eq!(received[0].body, b"hello");
    assert_eq!(
        received[0].headers,
        BTreeMap::from([
            ("outbox-key".to_owned(), text("7")),
            ("trace".to_owned(), text("abc")),
        ])
    );
    assert_eq!(received[1].message_id, Some(batch[1].id().to_string()));
    assert_eq!(received[1].delivery_mode, Some(2));
    assert_eq!(received[1].body, b"");
    assert_eq!(
        received[1].headers,
        BTreeMap::from([("outbox-tombstone".to_owned(), AMQPValue::Boolean(true))])
    );
    server.delete_queue(&queue).await;
    server.close().await;
}

#[tokio::test]
async fn a_topic_is_the_routing_key_in_one_exchange() {
    let server = Server::connect(&url()).await;
    let (exchange, queue) = (new_name(), new_name());
    server.queue(&queue).await;
    server
        .exchange(&exchange, ExchangeKind::Topic, &queue, "orders.*")
        .await;
    let publisher = publisher(AmqpConfig::new(url()).routing(Routing::Exchange(exchange.clone())));
    let batch = [
        message("orders.placed", "k", "1"),
        message("customers.moved", "k", "2"),
        message("orders.paid", "k", "3"),
    ];
    let answers = publisher.publish_all(&batch, WITHIN).await;
    assert_eq!((&answers[0], &answers[2]), (&Some(Ok(())), &Some(Ok(()))));
    let (kind, reason) = refusal(&answers[1]);
    assert_eq!(kind, PublishErrorKind::TopicUnavailable);
    assert_eq!(
        reason,
        format!(
            "312 NO_ROUTE: no queue is bound to exchange {exchange:?} for routing key \
             \"customers.moved\""
        )
    );
    let routing_keys: Vec<String> = server
        .read(&queue)
        .await
        .into_iter()
        .map(|received| received.routing_key)
        .collect();
    assert_eq!(routing_keys, ["orders.placed", "orders.paid"]);
    server.delete_exchange(&exchange).await;
    server.delete_queue(&queue).await;
    server.close().await;
}

#[tokio::test]
async fn a_key_is_the_routing_key_where_each_topic_has_an_exchange() {
    let server = Server::connect(&url()).await;
    let (exchange, queue) = (new_name(), new_name());
    server.queue(&queue).await;
    server
        .exchange(&exchange, ExchangeKind::Direct, &queue, "7")
        .await;
    let publisher = publisher(AmqpConfig::new(url()).routing(Routing::ExchangePerTopic));
    let batch = [
        message(&exchange, "7", "1"),
        message(&exchange, "8", "2"),
        message(&exchange, &"k".repeat(256), "3"),
        message(&exchange, "7", "4"),
    ];
    let answers = publisher.publish_all(&batch, WITHIN).await;
    assert_eq!((&answers[0], &answers[3]), (&Some(Ok(())), &Some(Ok(()))));
    assert_eq!(refusal(&answers[1]).0, PublishErrorKind::TopicUnavailable);
    let (kind, reason) = refusal(&answers[2]);
    assert_eq!(kind, PublishErrorKind::Rejected);
    assert!(reason.contains("256 bytes"), "{reason}");
    assert_eq!(server.count(&queue).await, 2);
    server.delete_exchange(&exchange).await;
    server.delete_queue(&queue).await;
    server.close().await;
}

/// The client gives each return to whichever confirm comes next, hundreds of times here.
#[tokio::test]
async fn messages_that_came_back_are_told_from_their_neighbours() {
    let server = Server::connect(&url()).await;
    let (there, missing) = (new_name(), new_name());
    server.queue(&there).await;
    let publisher = publisher(AmqpConfig::new(url()));
    let is_bad = |n: usize| n % 3 == 1 || (400..430).contains(&n);
    for _ in 0..5 {
        let batch: Vec<Message> = (0..1_000)
            .map(|n| match is_bad(n) {
                true => message(&missing, "bad", n.to_string()),
                false => message(&there, "good", n.to_string()),
            })
            .collect();
        let answers = publisher.publish_all(&batch, WITHIN).await;
        for (n, answer) in answers.iter().enumerate() {
            if is_bad(n) {
                let (kind, reason) = refusal(answer);
                assert_eq!(kind, PublishErrorKind::TopicUnavailable, "{n}: {reason}");
                let expected = format!("312 NO_ROUTE: no queue is named {missing:?}");
                assert_eq!(reason, expected);
            } else {
                assert_eq!(answer, &Some(Ok(())), "{n}");
            }
        }
    }
    server.delete_queue(&there).await;
    server.close().await;
}

#[tokio::test]
async fn of_two_messages_with_one_id_the_returned_one_fails() {
    let server = Server::connect(&url()).await;
    let (there, missing) = (new_name(), new_name());
    server.queue(&there).await;
    let publisher = publisher(AmqpConfig::new(url()));
    let good = message(&there, "k", "1");
    let bad = Message::to(&missing)
        .id(good.id())
        .bytes("2")
        .expect("valid");
    for batch in [[good.clone(), bad.clone()], [bad, good]] {
        let answers = publisher.publish_all(&batch, WITHIN).await;
        for (message, answer) in batch.iter().zip(&answers) {
            let is_good = message.topic() == there;
            assert_eq!(answer == &Some(Ok(())), is_good, "{answer:?}");
        }
    }
    server.delete_queue(&there).await;
    server.close().await;
}

#[tokio::test]
async fn a_missing_exchange_is_its_topics_trouble_until_it_is_there() {
    let server = Server::connect(&url()).await;
    let (there, missing, queue) = (new_name(), new_name(), new_name());
    server.queue(&queue).await;
    server
        .exchange(&there, ExchangeKind::Fanout, &queue, "")
        .await;
    let publisher = publisher(AmqpConfig::new(url()).routing(Routing::ExchangePerTopic));
    let batch: Vec<Message> = (0..100)
        .map(|n| {
            message(
                if n % 2 == 0 { &there } else { &missing },
                "k",
                n.to_string(),
            )
        })
        .collect();
    let answers = publisher.publish_all(&batch, WITHIN).await;
    for (n, answer) in answers.iter().enumerate() {
        if n % 2 == 0 {
            assert_eq!(answer, &Some(Ok(())), "{n}");
        } else {
            let (kind, reason) = refusal(answer);
            assert_eq!(kind, PublishErrorKind::TopicUnavailable, "{reason}");
            assert!(
                reason.starts_with("404 NOT_FOUND - no exchange"),
                "{reason}"
            );
        }
    }
    // The first message to an exchange goes alone, so nothing was sent twice.
    assert_eq!(server.count(&queue).await, 50);

    server
        .exchange(&missing, ExchangeKind::Fanout, &queue, "")
        .await;
    let answers = publisher.publish_all(&batch, WITHIN).await;
    assert_eq!(answers, vec![Some(Ok(())); 100]);
    server.delete_exchange(&there).await;
    server.delete_exchange(&missing).await;
    server.delete_queue(&queue).await;
    server.close().await;
}

#[tokio::test]
async fn an_exchange_that_is_deleted_takes_nobody_with_it() {
    let server = Server::connect(&url()).await;
    let (there, gone, queue) = (new_name(), new_name(), new_name());
    server.queue(&queue).await;
    for exchange in [&there, &gone] {
        server
            .exchange(exchange, ExchangeKind::Fanout, &queue, "")
            .await;
    }
    let publisher = publisher(AmqpConfig::new(url()).routing(Routing::ExchangePerTopic));
    let batch: Vec<Message> = (0..600)
        .map(|n| message(if n % 3 == 2 { &gone } else { &there }, "k", n.to_string()))
        .collect();
    let answers = publisher.publish_all(&batch, WITHIN).await;
    assert_eq!(answers, vec![Some(Ok(())); 600]);

    server.delete_exchange(&gone).await;
    let answers = publisher.publish_all(&batch, WITHIN).await;
    for (n, answer) in answers.iter().enumerate() {
        if n % 3 == 2 {
            let (kind, reason) = refusal(answer);
            assert_eq!(kind, PublishErrorKind::TopicUnavailable, "{n}: {reason}");
        } else {
            assert_eq!(answer, &Some(Ok(())), "{n}");
        }
    }
    server.delete_exchange(&there).await;
    server.delete_queue(&queue).await;
    server.close().await;
}

/// A name so long that the server cuts its own words short: then the culprit has to be searched.
#[tokio::test]
async fn a_culprit_that_is_not_named_is_found() {
    let server = Server::connect(&url()).await;
    let (there, queue) = (new_name(), new_name());
    let long = format!("{}{}", new_name(), "x".repeat(210));
    server.queue(&queue).await;
    for exchange in [&there, &long] {
        server
            .exchange(exchange, ExchangeKind::Fanout, &queue, "")
            .await;
    }
    let publisher = publisher(AmqpConfig::new(url()).routing(Routing::ExchangePerTopic));
    let batch: Vec<Message> = (0..50)
        .map(|n| message(if n == 33 { &long } else { &there }, "k", n.to_string()))
        .collect();
    let answers = publisher.publish_all(&batch, WITHIN).await;
    assert_eq!(answers, vec![Some(Ok(())); 50]);

    server.delete_exchange(&long).await;
    let answers = publisher.publish_all(&batch, WITHIN).await;
    for (n, answer) in answers.iter().enumerate() {
        if n == 33 {
            let (kind, reason) = refusal(answer);
            assert_eq!(kind, PublishErrorKind::TopicUnavailable, "{reason}");
            assert!(reason.starts_with("404 NOT_FOUND"), "{reason}");
            assert!(!reason.contains("in vhost"), "not cut short: {reason}");
        } else {
            assert_eq!(answer, &Some(Ok(())), "{n}");
        }
    }
    server.delete_exchange(&there).await;
    server.delete_queue(&queue).await;
    server.close().await;
}

#[tokio::test]
async fn a_right_that_is_missing_is_the_topics_trouble() {
    let server = Server::connect(&url()).await;
    let (open, closed, queue, user) = (new_name(), new_name(), new_name(), new_name());
    server.queue(&queue).await;
    for exchange in [&open, &closed] {
        server
            .exchange(exchange, ExchangeKind::Topic, &queue, "#")
            .await;
    }
    rabbitmqctl("rabbitmq", &["add_user", &user, "secret"]).await;
    let write = format!("^{open}$");
    rabbitmqctl("rabbitmq", &["set_permissions", &user, "^$", &write, "^$"]).await;
    let topics = ["set_topic_permissions", &user, &open, "^public", ".*"];
    rabbitmqctl("rabbitmq", &topics).await;

    let config = || AmqpConfig::new(url_for(&user, "secret"));
    let publisher = publisher(config().routing(Routing::ExchangePerTopic));
    let batch = [
        message(&open, "public.a", "1"),
        message(&closed, "public.b", "2"),
        message(&open, "private", "3"),
        message(&open, "public.c", "4"),
    ];
    let answers = publisher.publish_all(&batch, WITHIN).await;
    assert_eq!((&answers[0], &answers[3]), (&Some(Ok(())), &Some(Ok(()))));
    for (answer, named) in [
        (&answers[1], format!("access to exchange '{closed}'")),
        (&answers[2], "access to topic 'private'".to_owned()),
    ] {
        let (kind, reason) = refusal(answer);
        assert_eq!(kind, PublishErrorKind::TopicUnavailable, "{reason}");
        assert!(reason.starts_with("403 ACCESS_REFUSED"), "{reason}");
        assert!(reason.contains(&named), "{reason}");
    }
    let write = format!("^({open}|{closed})$");
    rabbitmqctl("rabbitmq", &["set_permissions", &user, "^$", &write, "^$"]).await;
    let answers = publisher.publish_all(&batch[..2], WITHIN).await;
    assert_eq!(answers, [Some(Ok(())), Some(Ok(()))]);
    drop(publisher);
    rabbitmqctl("rabbitmq", &["delete_user", &user]).await;
    server.delete_exchange(&open).await;
    server.delete_exchange(&closed).await;
    server.delete_queue(&queue).await;
    server.close().await;
}

#[tokio::test]
async fn an_internal_exchange_is_its_topics_trouble() {
    let server = Server::connect(&url()).await;
    let (there, internal, queue) = (new_name(), new_name(), new_name());
    server.queue(&queue).await;
    server
        .exchange(&there, ExchangeKind::Fanout, &queue, "")
        .await;
    let options = ExchangeDeclareOptions {
        internal: true,
        ..ExchangeDeclareOptions::default()
    };
    server
        .channel
        .exchange_declare(
            internal.as_str().into(),
            ExchangeKind::Fanout,
            options,
            FieldTable::default(),
        )
        .await
        .expect("an exchange");
    let publisher = publisher(AmqpConfig::new(url()).routing(Routing::ExchangePerTopic));
    let batch = [&there, &internal, &there].map(|exchange| message(exchange, "k", "1"));
    let answers = publisher.publish_all(&batch, WITHIN).await;
    assert_eq!((&answers[0], &answers[2]), (&Some(Ok(())), &Some(Ok(()))));
    let (kind, reason) = refusal(&answers[1]);
    assert_eq!(kind, PublishErrorKind::TopicUnavailable, "{reason}");
    assert!(
        reason.starts_with("403 ACCESS_REFUSED - cannot publish to internal exchange"),
        "{reason}"
    );
    server.delete_exchange(&there).await;
    server.delete_exchange(&internal).await;
    server.delete_queue(&queue).await;
    server.close().await;
}

#[tokio::test]
async fn a_vhost_that_is_deleted_is_an_outage_until_it_is_there_again() {
    let (vhost, queue) = (new_name(), new_name());
    let in_vhost = url().replace("%2f", &vhost);
    let (_, rest) = in_vhost.split_once("://").expect("a URL");
    let user = rest.split(':').next().expect("a URL with a user");
    let publisher = publisher(AmqpConfig::new(&in_vhost));
    let batch = [message(&queue, "k", "1"), message(&queue, "l", "2")];
    for _ in 0..2 {
        rabbitmqctl("rabbitmq", &["add_vhost", &vhost]).await;
        let all = ["set_permissions", "-p", &vhost, user, ".*", ".*", ".*"];
        rabbitmqctl("rabbitmq", &all).await;
        let server = Server::connect(&in_vhost).await;
        server.queue(&queue).await;
        server.close().await;
        let answers = publisher.publish_all(&batch, WITHIN).await;
        assert_eq!(answers, [Some(Ok(())), Some(Ok(()))]);

        rabbitmqctl("rabbitmq", &["delete_vhost", &vhost]).await;
        let deadline = Instant::now() + WITHIN;
        // The connection may live on for a moment, in a vhost without anything.
        loop {
            let answers = publisher.publish_all(&batch, WITHIN).await;
            let (kind, reason) = refusal(&answers[0]);
            if kind == PublishErrorKind::BrokerUnavailable {
                assert!(reason.starts_with("530 NOT_ALLOWED"), "{reason}");
                assert_eq!(answers[0], answers[1]);
                break;
            }
            assert_eq!(kind, PublishErrorKind::TopicUnavailable, "{reason}");
            assert!(Instant::now() < deadline, "the vhost is still there");
        }
    }
}

#[tokio::test]
async fn credentials_and_vhosts_that_are_wrong_are_an_outage() {
    let nobody = url_for("nobody", "hunter2");
    let elsewhere = url().replace("%2f", "no-such-vhost");
    for (url, code) in [
        (nobody, "403 ACCESS_REFUSED"),
        (elsewhere, "530 NOT_ALLOWED"),
    ] {
        let answers = publisher(AmqpConfig::new(url))
            .publish_all(&[message("t", "k", "1")], WITHIN)
            .await;
        let (kind, reason) = refusal(&answers[0]);
        assert_eq!(kind, PublishErrorKind::BrokerUnavailable, "{reason}");
        assert!(reason.starts_with(code), "{reason}");
        assert!(!reason.contains("hunter2"), "{reason}");
    }
}

#[tokio::test]
async fn a_message_over_the_servers_limit_is_rejected_with_both_sizes() {
    const LIMIT: usize = 8 * 1024 * 1024;
    let server = Server::connect(&url()).await;
    let queue = new_name();
    server.queue(&queue).await;
    let publisher = publisher(AmqpConfig::new(url()));
    let batch = [
        message(&queue, "a", "small"),
        message(&queue, "b", vec![b'x'; LIMIT]),
        message(&queue, "c", vec![b'x'; LIMIT + 1]),
        message(&queue, "d", "small"),
    ];
    // The server says it the first time, and then it is known.
    for said in [
        "406 PRECONDITION_FAILED - message size 8388609",
        "payload has 8388609 bytes, the server's max_message_size is 8388608",
    ] {
        let answers = publisher.publish_all(&batch, WITHIN).await;
        for good in [0, 1, 3] {
            assert_eq!(answers[good], Some(Ok(())), "{good}");
        }
        let (kind, reason) = refusal(&answers[2]);
        assert_eq!(kind, PublishErrorKind::Rejected);
        assert!(reason.starts_with(said), "{reason}");
        assert!(reason.contains("8388608"), "{reason}");
    }
    server.delete_queue(&queue).await;
    server.close().await;
}

#[tokio::test]
async fn headers_that_do_not_fit_into_a_frame_are_rejected_alone() {
    let server = Server::connect(&url()).await;
    let queue = new_name();
    server.queue(&queue).await;
    let publisher = publisher(AmqpConfig::new(format!("{}?frame_max=8192", url())));
    let with_header = |bytes: usize| {
        Message::to(&queue)
            .header("h", "v".repeat(bytes))
            .bytes("")
            .expect("valid")
    };
    // The frame has 71 bytes beside the value.
    let batch = [with_header(10), with_header(8_122), with_header(8_121)];
    let answers = publisher.publish_all(&batch, WITHIN).await;
    assert_eq!((&answers[0], &answers[2]), (&Some(Ok(())), &Some(Ok(()))));
    let (kind, reason) = refusal(&answers[1]);
    assert_eq!(kind, PublishErrorKind::Rejected);
    assert!(reason.contains("8193 bytes"), "{reason}");
    assert!(reason.contains("frame_max, of 8192 bytes"), "{reason}");
    server.delete_queue(&queue).await;
    server.close().await;
}

#[tokio::test]
async fn a_full_queue_that_rejects_is_the_messages_trouble_for_now() {
    let server = Server::connect(&url()).await;
    let (full, queue) = (new_name(), new_name());
    server.queue(&queue).await;
    let limits = [
        ("x-max-length", AMQPValue::LongInt(1)),
        ("x-overflow", text("reject-publish")),
    ];
    server.queue_with(&full, &limits).await;
    let publisher = publisher(AmqpConfig::new(url()));
    let first = [message(&full, "k", "0")];
    assert_eq!(publisher.publish_all(&first, WITHIN).await, [Some(Ok(()))]);
    let batch = [
        message(&full, "a", "1"),
        message(&queue, "b", "2"),
        message(&full, "c", "3"),
    ];
    let answers = publisher.publish_all(&batch, WITHIN).await;
    for refused in [0, 2] {
        let (kind, reason) = refusal(&answers[refused]);
        assert_eq!(kind, PublishErrorKind::Retryable, "{reason}");
        assert!(reason.contains("nack"), "{reason}");
    }
    assert_eq!(answers[1], Some(Ok(())));
    server.delete_queue(&full).await;
    server.delete_queue(&queue).await;
    server.close().await;
}

#[tokio::test]
async fn a_queue_that_does_not_answer_is_the_topics_trouble() {
    let server = Server::connect(&url()).await;
    let (stuck, queue) = (new_name(), new_name());
    server.queue(&queue).await;
    server.queue(&stuck).await;
    let publisher = publisher(AmqpConfig::new(url()).confirm_timeout(Duration::from_millis(1_500)));
    suspend(&stuck).await;
    let batch = [
        message(&queue, "a", "1"),
        message(&stuck, "b", "2"),
        message(&queue, "c", "3"),
    ];
    let start = Instant::now();
    let answers = publisher.publish_all(&batch, WITHIN).await;
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "{:?}",
        start.elapsed()
    );
    assert_eq!((&answers[0], &answers[2]), (&Some(Ok(())), &Some(Ok(()))));
    let (kind, reason) = refusal(&answers[1]);
    assert_eq!(kind, PublishErrorKind::TopicUnavailable, "{reason}");
    assert!(
        reason.contains("within 1.5s, though the broker answers"),
        "{reason}"
    );

    resume(&stuck).await;
    let answers = publisher.publish_all(&batch, WITHIN).await;
    assert_eq!(answers, vec![Some(Ok(())); 3]);
    server.delete_queue(&stuck).await;
    server.delete_queue(&queue).await;
    server.close().await;
}

#[tokio::test]
async fn what_is_confirmed_is_reported_while_another_answer_is_awaited() {
    let server = Server::connect(&url()).await;
    let (stuck, queue) = (new_name(), new_name());
    server.queue(&queue).await;
    server.queue(&stuck).await;
    for (exchange, queue) in [(&stuck, &stuck), (&queue, &queue)] {
        server
            .exchange(exchange, ExchangeKind::Fanout, queue, "")
            .await;
    }
    suspend(&stuck).await;
    for routing in [Routing::Queue, Routing::ExchangePerTopic] {
        let publisher = publisher(AmqpConfig::new(url()).routing(routing));
        let batch = [
            message(&stuck, "a", "1"),
            message(&queue, "b", "2"),
            message(&stuck, "c", "3"),
            message(&queue, "d", "4"),
        ];
        let answers = publisher.publish_all(&batch, Duration::from_secs(5)).await;
        assert_eq!(answers, [None, Some(Ok(())), None, Some(Ok(()))]);

        // The channel that the dropped call left behind is nobody's, and the connection is as good as
        // new.
        let good = [message(&queue, "e", "5")];
        assert_eq!(publisher.publish_all(&good, WITHIN).await, [Some(Ok(()))]);
    }
    resume(&stuck).await;
    for name in [&stuck, &queue] {
        server.delete_exchange(name).await;
        server.delete_queue(name).await;
    }
    server.close().await;
}
