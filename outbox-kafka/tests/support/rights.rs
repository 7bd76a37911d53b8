//! Rights on topics, by Kafka's own requests.

use super::protocol::exchange;

const CREATE_ACLS: i16 = 30;
const DELETE_ACLS: i16 = 31;
const TOPIC: u8 = 2;
const LITERAL: u8 = 3;
const ANY: u8 = 1;
const ALLOW: u8 = 3;

/// What a right is for, by the number that Kafka has for it.
#[derive(Clone, Copy)]
pub(crate) enum Right {
    Write = 4,
    Describe = 8,
}

/// Gives everybody a right on a topic.
pub(crate) async fn give_right(topic: &str, right: Right) {
    give_right_to(topic, "User:*", right).await;
}

/// Gives somebody a right on a topic. Until then everybody has every right, and after that no other one.
pub(crate) async fn give_right_to(topic: &str, who: &str, right: Right) {
    let mut request = one_of(TOPIC);
    text(&mut request, topic);
    request.push(LITERAL);
    text(&mut request, who);
    text(&mut request, "*");
    request.extend([right as u8, ALLOW]);
    ask(CREATE_ACLS, request).await;
}

/// Forgets all rights on a topic, so that everybody has every right again.
pub(crate) async fn forget_rights(topic: &str) {
    let mut request = one_of(TOPIC);
    text(&mut request, topic);
    request.push(LITERAL);
    // Whoever has them, from wherever.
    request.extend([0xff, 0xff, 0xff, 0xff, ANY, ANY]);
    ask(DELETE_ACLS, request).await;
}

/// A list of one, which begins with the type of a resource.
fn one_of(resource: u8) -> Vec<u8> {
    vec![0, 0, 0, 1, resource]
}

fn text(request: &mut Vec<u8>, text: &str) {
    let length = i16::try_from(text.len()).expect("a short text");
    request.extend(length.to_be_bytes());
    request.extend(text.as_bytes());
}

/// Sends a request in version 1 and demands that it had no error.
async fn ask(api: i16, request: Vec<u8>) {
    let answer = tokio::task::spawn_blocking(move || exchange(api, 1, &request))
        .await
        .expect("an answer");
    // Correlation id, throttle time and number of results, 4 bytes each.
    let code = i16::from_be_bytes([answer[12], answer[13]]);
    assert_ne!(
        code, 54,
        "the server has no authorizer: it runs with an older configuration, restart it"
    );
    assert_eq!(code, 0, "{answer:?}");
}
