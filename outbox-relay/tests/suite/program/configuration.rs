//! Where settings come from, what is refused, and what is never shown.

use outbox_conformance::address;
use outbox_conformance::proxy::Proxy;

use crate::support::authority;
use crate::support::place::{Ended, Place};
use crate::support::scene::with_scene;

const VALID: &str = "\
    [store]\nkind = \"postgres\"\nurl = \"postgres://user:hunter2@127.0.0.1:1/shop\"\n\
    [broker.main]\nkind = \"redis\"\nurl = \"redis://user:hunter2@127.0.0.1:1\"\n\
    [relay]\nworkers = 2\n";

/// The line of a setting.
fn line<'a>(shown: &'a str, setting: &str) -> &'a str {
    let mut lines = shown.lines();
    let line = lines.find(|line| line.starts_with(&format!("{setting} =")));
    line.unwrap_or_else(|| panic!("no {setting} in\n{shown}"))
}

#[tokio::test]
async fn flags_outweigh_the_environment_which_outweighs_the_file() {
    let place = Place::with(VALID);
    let file = place.done(&["config"]).await;
    assert_eq!(
        line(&file, "relay.workers"),
        "relay.workers = 2  # outbox.toml"
    );
    assert_eq!(
        line(&file, "relay.batch_messages"),
        "relay.batch_messages = 1000  # default"
    );
    assert_eq!(
        line(&file, "relay.batch_bytes"),
        "relay.batch_bytes = \"16MiB\"  # default"
    );

    let variables = [
        ("OUTBOX__RELAY__WORKERS", "3"),
        ("OUTBOX__RELAY__CLAIM_WAIT", "1m 30s"),
        ("OUTBOX__BROKER__MAIN__CLUSTER", "true"),
        // Those of others.
        ("OUTBOX_PORT", "tcp://10.0.0.1:80"),
        ("OUTBOX_TEST_POSTGRES_URL", "postgres://x"),
        ("OUTBOX_SERVICES_DIR", "/x"),
    ];
    let variable = place.run_with(&["config"], &variables).await.success();
    assert_eq!(
        line(&variable, "relay.workers"),
        "relay.workers = 3  # the environment"
    );
    assert_eq!(
        line(&variable, "relay.claim_wait"),
        "relay.claim_wait = \"1m 30s\"  # the environment"
    );
    assert_eq!(
        line(&variable, "broker.main.cluster"),
        "broker.main.cluster = true  # the environment"
    );

    let flags = [
        "config",
        "--set",
        "relay.workers=4",
        "--set",
        "store.schema=shop",
    ];
    let flag = place.run_with(&flags, &variables).await.success();
    assert_eq!(line(&flag, "relay.workers"), "relay.workers = 4  # --set");
    assert_eq!(
        line(&flag, "store.schema"),
        "store.schema = \"shop\"  # --set"
    );

    // What is shown may be written: it is the same configuration.
    let copy = Place::with(&flag.replace("***", "hunter2"));
    let again = copy.done(&["config"]).await;
    let settings = |text: &str| -> Vec<String> {
        let lines = text
            .lines()
            .map(|line| line.split("  # ").next().unwrap().to_owned());
        lines.collect()
    };
    assert_eq!(settings(&again), settings(&flag));
}

#[tokio::test]
async fn what_is_wrong_is_named_in_one_line_before_anything_is_done() {
    const STORE: &str = "[store]\nkind = \"postgres\"\nurl = \"postgres://127.0.0.1:1/x\"\n";
    const BROKER: &str = "[broker.b]\nkind = \"redis\"\nurl = \"redis://127.0.0.1:1\"\n";
    let kafka = |property: &str| {
        let servers = "\"bootstrap.servers\" = \"127.0.0.1:1\"";
        format!(
            "{STORE}[broker.b]\nkind = \"kafka\"\n[broker.b.properties]\n{servers}\n{property}\n"
        )
    };
    let with = |more: &str| format!("{STORE}{BROKER}{more}");
    let cases = [
        // Names.
        (
            with("[relay]\nwokers = 1"),
            vec!["relay", "`wokers`", "`workers`"],
        ),
        (with("[rely]\nworkers = 1"), vec!["rely", "relay"]),
        (
            with("[[route]]\ntopic = \"a\"\nbroker = \"b\"\nx = 1"),
            vec!["route", "`x`"],
        ),
        (format!("{STORE}x = 1\n{BROKER}"), vec!["store", "`x`"]),
        (format!("{STORE}{BROKER}x = 1"), vec!["broker.b", "`x`"]),
        // Values.
        (
            with("[relay]\nworkers = \"many\""),
            vec!["relay.workers", "integer"],
        ),
        (
            with("[relay]\nworkers = 0"),
            vec!["relay.workers", "is 0", "1 to 1024"],
        ),
        (
            with("[relay]\nclaim_wait = 10"),
            vec!["relay.claim_wait", "`30s`"],
        ),
        (
            with("[relay]\nbatch_bytes = \"much\""),
            vec!["relay.batch_bytes", "`16MiB`"],
        ),
        (
            with("[relay]\norder = \"none\""),
            vec!["relay.order", "\"none\"", "per_key_pipelined"],
        ),
        (
            with("[relay]\nmax_failures = 0"),
            vec!["relay.max_failures", "is 0"],
        ),
        (
            with("[relay]\nretry_first = \"0s\""),
            vec!["relay.retry_first", "is 0ns"],
        ),
        (
            with("[relay]\ncrash_limit = 0"),
            vec!["relay.crash_limit", "is 0"],
        ),
        (
            with("[relay]\nshutdown_grace = \"2h\""),
            vec!["relay.shutdown_grace"],
        ),
        (
            with("[relay]\ncall_timeout = \"1ms\"\n[[route]]\ntopic = \"*\"\nbroker = \"b\""),
            vec!["relay.call_timeout", "is 1ms"],
        ),
        (with("[log]\nlevel = \"info,=x=\""), vec!["log.level"]),
        (with("[http]\nlisten = \"here\""), vec!["http.listen"]),
        // What is missing.
        (String::new(), vec!["store.kind"]),
        (STORE.to_owned(), vec!["broker", "missing"]),
        (
            format!("[store]\nkind = \"postgres\"\n{BROKER}"),
            vec!["store.url", "missing"],
        ),
        (
            format!("[store]\nkind = \"mysql\"\n{BROKER}"),
            vec!["store.kind", "mysql"],
        ),
        (
            format!("{STORE}[broker.b]\nurl = \"redis://h\""),
            vec!["broker.b.kind"],
        ),
        (
            format!("{STORE}[broker.b]\nkind = \"rabbit\""),
            vec!["broker.b.kind", "rabbit"],
        ),
        // What the stores and adapters refuse.
        (
            format!("{STORE}schema = \"a b\"\n{BROKER}"),
            vec!["store.schema", "a b"],
        ),
        (
            format!("{STORE}lanes_per_claim = 65\n{BROKER}"),
            vec!["store.lanes_per_claim", "65"],
        ),
        (
            format!("{STORE}keep_delivered_for = \"1h\"\n{BROKER}"),
            vec!["store.keep_delivered_for", "1 day"],
        ),
        (
            format!(
                "[store]\nkind = \"sqlite\"\npath = \"x\"\nkeep_delivered_for = \"7d\"\n{BROKER}"
            ),
            vec!["store", "`keep_delivered_for`", "`path` or `prefix`"],
        ),
        (kafka("acks = 1"), vec!["broker.b.properties", "`acks`"]),
        (
            kafka("nonsense = 1"),
            vec!["broker.b.properties", "nonsense"],
        ),
        (
            format!(
                "{STORE}[broker.b]\nkind = \"amqp\"\nurl = \"amqp://h\"\nrouting = \"exchange\""
            ),
            vec!["broker.b.exchange", "missing"],
        ),
        (
            format!(
                "{STORE}[broker.b]\nkind = \"nats\"\nurl = \"nats://127.0.0.1:1\"\nmax_in_flight = 0"
            ),
            vec!["broker.b.max_in_flight", "65536"],
        ),
        // Routes.
        (
            with("[[route]]\ntopic = \"a*\"\nbroker = \"c\""),
            vec!["route", "c"],
        ),
        (
            with(
                "[[route]]\ntopic = \"a*\"\nbroker = \"b\"\n[[route]]\ntopic = \"a*b\"\nbroker = \"b\"",
            ),
            vec!["route", "a*b", "takes all of its"],
        ),
    ];
    let place = Place::new();
    for (config, expected) in cases {
        place.configure(&config);
        let said = place.run(&["run"]).await.failure(2);
        assert_eq!(said.trim_end().lines().count(), 1, "{said}");
        for word in expected {
            assert!(
                said.contains(word),
                "{word:?} is not in {said:?}, of\n{config}"
            );
        }
    }

    place.configure(VALID);
    for (variable, expected) in [
        ("OUTBOX__RELAY__WOKERS", "`wokers`"),
        ("OUTBOX__RELAI__WORKERS", "relai"),
        ("OUTBOX_RELAY_WORKERS", "OUTBOX__RELAY__WORKERS"),
        ("OUTBOX__RELAY__WORKERS", "relay.workers"),
    ] {
        let said = place
            .run_with(&["run"], &[(variable, "x")])
            .await
            .failure(2);
        assert!(said.contains(expected), "{said}");
    }
    for flag in [
        "relay.wokers=1",
        "relay=1",
        "workers",
        "=1",
        "relay.workers=",
    ] {
        place.run(&["run", "--set", flag]).await.failure(2);
    }
    place
        .run(&["run", "--config", "none.toml"])
        .await
        .failure(2);
    place.run(&["walk"]).await.failure(2);
}

#[tokio::test]
async fn secrets_are_never_shown() {
    const SECRETS: [&str; 6] = [
        "hunter2", "hunter3", "hunter4", "hunter5", "hunter6", "hunter7",
    ];
    let config = "\
        [store]\nkind = \"postgres\"\nurl = \"postgres://user:hunter2@127.0.0.1:1/shop?password=hunter3\"\n\
        [broker.kafka]\nkind = \"kafka\"\n[broker.kafka.properties]\n\
        \"bootstrap.servers\" = \"127.0.0.1:1\"\nsasl.username = \"me\"\nsasl.password = \"hunter4\"\n\
        [broker.redis]\nkind = \"redis\"\nurl = \"redis://user:hunter5@127.0.0.1:1\"\n\
        [broker.nats]\nkind = \"nats\"\nurl = \"nats://hunter7@127.0.0.1:1\"\ntoken = \"hunter6\"\n\
        [broker.amqp]\nkind = \"amqp\"\nurl = \"amqp://user:hunter5@127.0.0.1:1/%2f\"\n\
        [[route]]\ntopic = \"k*\"\nbroker = \"kafka\"\n\
        [[route]]\ntopic = \"n*\"\nbroker = \"nats\"\n\
        [[route]]\ntopic = \"a*\"\nbroker = \"amqp\"\n\
        [[route]]\ntopic = \"*\"\nbroker = \"redis\"\n";
    let place = Place::new();
    let mut said = String::new();
    let mut keep = |ended: Ended| {
        said += &ended.out;
        said += &ended.err;
    };
    let trace = [("OUTBOX__LOG__LEVEL", "trace")];
    let all = format!("{config}[log]\nlevel = \"trace\"\n");
    place.configure(&all);
    let shown = place.run(&["config"]).await;
    assert!(
        shown
            .out
            .contains("\"postgres://user:***@127.0.0.1:1/shop?***\""),
        "{}",
        shown.out
    );
    assert!(
        shown.out.contains("\"sasl.password\" = \"***\""),
        "{}",
        shown.out
    );
    keep(shown);
    keep(place.run_with(&["migrate"], &trace).await);
    keep(place.run_with(&["enqueue", "t", "x"], &trace).await);

    // A relay that takes everything else is refused for the level of its log.
    let strange_level = [("OUTBOX__LOG__LEVEL", "info,=x=")];
    let taken = place.run_with(&["run"], &strange_level).await;
    assert!(taken.err.contains("log.level"), "{}", taken.err);
    // Broken in every place: the file's own text, the URLs, the types.
    let broken = [
        all.replace("shop?password=hunter3\"", "shop?password=hunter3"),
        all.replace(
            "postgres://user:hunter2@127.0.0.1:1",
            "postgres://user:hunter2@:x",
        ),
        all.replace(
            "\"postgres://user:hunter2@127.0.0.1:1/shop?password=hunter3\"",
            "[\"hunter2\"]",
        ),
        all.replace("redis://user:hunter5@127.0.0.1:1", "redis//user:hunter5"),
        all.replace("redis://user:hunter5@127.0.0.1:1", "redis://user:hunter5@"),
        all.replace("nats://hunter7@127.0.0.1:1", "nats://hunter7@:x:y"),
        all.replace(
            "amqp://user:hunter5@127.0.0.1:1/%2f",
            "amqp://user:hunter5@@:x/%zz",
        ),
        all.replace(
            "\"127.0.0.1:1\"\nsasl",
            "\"127.0.0.1:1\"\nsecurity.protocol = \"SSL\"\nssl.key.pem = \"hunter4\"\nsasl",
        ),
        all.replace("token = \"hunter6\"", "token = { hunter6 = \"hunter6\" }"),
    ];
    for config in broken {
        place.configure(&config);
        let ended = place.run_with(&["run"], &strange_level).await;
        assert_eq!(ended.code, 2, "{}{}", ended.out, ended.err);
        assert!(!ended.err.contains("log.level"), "it is taken:\n{config}");
        keep(ended);
    }

    // Delivering: to a server that never answers, one that refuses the login, one that wants none, and one
    // that has no logins.
    let login = |variable: &str, login: &str| {
        let url = address(variable);
        let (scheme, rest) = url.split_once("://").unwrap();
        let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
        format!("{scheme}://{login}@{place}")
    };
    let silent = Proxy::to(authority(&address("OUTBOX_TEST_REDIS_URL"))).await;
    silent.hold();
    let settings = format!(
        "[broker.redis]\nkind = \"redis\"\nurl = \"redis://user:hunter5@{}\"\nconnect_timeout = \"100ms\"\n\
         [broker.amqp]\nkind = \"amqp\"\nurl = \"{}\"\n\
         [broker.nats]\nkind = \"nats\"\nurl = \"{}\"\n\
         [broker.kafka]\nkind = \"kafka\"\n[broker.kafka.properties]\n\"bootstrap.servers\" = \"{}\"\n\
         security.protocol = \"SASL_PLAINTEXT\"\nsasl.mechanism = \"PLAIN\"\n\
         sasl.username = \"user\"\nsasl.password = \"hunter4\"\ndebug = \"all\"\n\
         [[route]]\ntopic = \"r\"\nbroker = \"redis\"\n[[route]]\ntopic = \"a\"\nbroker = \"amqp\"\n\
         [[route]]\ntopic = \"n\"\nbroker = \"nats\"\n[[route]]\ntopic = \"k\"\nbroker = \"kafka\"\n\
         [log]\nlevel = \"trace,lapin=trace,async_nats::connector=trace\"\n",
        silent.address(),
        login("OUTBOX_TEST_RABBITMQ_URL", "user:hunter6"),
        login("OUTBOX_TEST_NATS_URL", "user:hunter7"),
        address("OUTBOX_TEST_KAFKA"),
    );
    with_scene(&settings, async |scene| {
        scene.done(&["migrate"]).await;
        let running = scene.start(&["run"]);
        running.says("the relay runs").await;
        for topic in ["r", "a", "n", "k"] {
            scene.done(&["enqueue", topic, "x"]).await;
        }
        for broker in ["amqp", "redis", "kafka"] {
            running.says(&format!("\"broker\":\"{broker}\"")).await;
        }
        running.says("\"topic\":\"n\"").await;
        // The client speaks, just not of everything.
        running.says("\"target\":\"lapin::").await;
        said += &running.stop().await;
    })
    .await;

    assert!(said.len() > 2_000, "it said too little to be tested");
    for secret in SECRETS {
        // lapin shows the login as a list of bytes.
        let bytes = format!("{:?}", secret.as_bytes());
        let shown =
            |line: &&str| line.contains(secret) || line.contains(bytes.trim_matches(['[', ']']));
        assert_eq!(said.lines().find(shown), None, "a secret is shown");
    }
}
