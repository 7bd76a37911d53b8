//! The first afternoon: the blocks of its guide, run in their order in one shell, and what they print.

use std::env;
use std::fs;
use std::path::Path;

use outbox_conformance::address;
use sqlx::PgPool;

use crate::support::place::{Ended, Place, command};
use crate::support::scene::{execute, with_database};
use crate::support::{authority, name, repository};

const GUIDE: &str = "docs/adopt.md";
/// What the first block of the guide sets, for which the test has values of its own.
const VARIABLES: [&str; 8] = [
    "DATABASE", "REDIS", "TOPIC", "OWNER", "SHOP", "RELAY", "BILLING", "PASSWORD",
];

#[tokio::test]
async fn the_first_afternoon_goes_as_it_is_written() {
    let guide = fs::read_to_string(repository(GUIDE)).unwrap();
    let mut steps = blocks(&guide, "sh test=outbox-relay/tests/suite/adopt.rs");
    let addresses = steps.remove(0);
    for variable in VARIABLES {
        assert!(addresses.contains(&format!("{variable}=")), "{variable}");
    }

    let server = address("OUTBOX_TEST_POSTGRES_URL");
    let roles = ["OWNER", "SHOP", "RELAY", "BILLING"].map(|role| (role, name("adopt")));
    let pool = PgPool::connect(&server).await.unwrap();
    let owner = &roles[0].1;
    execute(
        &pool,
        &format!("CREATE ROLE {owner} LOGIN CREATEROLE NOSUPERUSER PASSWORD 'secret'"),
    )
    .await;

    let mut ended = None;
    with_database(async |url| {
        let database = url.rsplit_once('/').unwrap().1;
        execute(&pool, &format!("ALTER DATABASE {database} OWNER TO {owner}")).await;
        let place = Place::new();
        let script = format!(
            "set -euo pipefail\ntrap 'kill -KILL $(jobs -p) 2>/dev/null || true' EXIT\nexec 2>&1\n{}",
            steps.join("\n")
        );
        place.write("afternoon", script.as_bytes());
        // Which ends the relay too that runs in the background.
        let mut shell = command("timeout");
        shell
            .args(["50", "bash", "afternoon"])
            .current_dir(place.path(""))
            .env("PATH", with_the_program())
            .env("DATABASE", format!("{}/{database}", authority(url)))
            .env("REDIS", address("OUTBOX_TEST_REDIS_URL"))
            .env("TOPIC", name("adopt"))
            .env("PASSWORD", "secret")
            .envs(roles.iter().map(|(variable, role)| (variable, role)));
        ended = Some(Ended::of(shell).await);
    })
    .await;
    for (_, role) in roles.iter().rev() {
        execute(&pool, &format!("DROP ROLE IF EXISTS {role}")).await;
    }

    let printed = ended.unwrap().success();
    let mut rest = printed.as_str();
    for line in blocks(&guide, "text")
        .iter()
        .flat_map(|block| block.lines())
    {
        let Some((_, behind)) = rest.split_once(line) else {
            panic!("`{line}` is not printed, or not in its place:\n{printed}");
        };
        rest = behind;
    }
}

/// The search path, beginning with the folder of the program.
fn with_the_program() -> String {
    let folder = Path::new(env!("CARGO_BIN_EXE_outbox")).parent().unwrap();
    format!("{}:{}", folder.display(), env::var("PATH").unwrap())
}

/// What is in the blocks that begin so.
fn blocks<'a>(guide: &'a str, begin: &str) -> Vec<&'a str> {
    let begin = format!("\n```{begin}\n");
    let parts = guide.split(begin.as_str()).skip(1);
    parts
        .map(|part| part.split_once("\n```").unwrap().0)
        .collect()
}
