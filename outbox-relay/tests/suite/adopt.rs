//! The first afternoon: the blocks of its guide, run in their order in one shell, and what each must print.

use std::env;
use std::fs;
use std::path::Path;
use std::time::Duration;

use outbox_conformance::address;
use sqlx::PgPool;

use crate::support::place::{Ended, Place, command};
use crate::support::scene::{execute, with_database};
use crate::support::{PATIENCE, authority, name, repository};

const GUIDE: &str = "docs/adopt.md";
/// How a block begins that is run, and one of what the block before it prints, in part.
const RUN: &str = "sh test=outbox-relay/tests/suite/adopt.rs";
const PRINTED: &str = "text test=outbox-relay/tests/suite/adopt.rs";
/// What the first block of the guide sets, for which the test has values of its own.
const VARIABLES: [&str; 8] = [
    "DATABASE", "REDIS", "TOPIC", "OWNER", "SHOP", "RELAY", "BILLING", "PASSWORD",
];
/// Before the blocks: the first failure ends them, and is named; no relay outlives them.
const SHELL: &str = r#"set -euo pipefail
exec 2>&1
trap 'echo "--- under way: $BASH_COMMAND"; set +e; cat relay.log; kill -KILL $(jobs -p) 2>/dev/null' EXIT
"#;
/// Programs are started some fifty times, which took 40 s on a busy machine.
const LONGEST: Duration = Duration::from_secs(150);
/// Before the name of each step, where it begins in what is printed.
const STEP: &str = "=== ";

#[tokio::test]
async fn the_first_afternoon_goes_as_it_is_written() {
    let guide = fs::read_to_string(repository(GUIDE)).unwrap();
    let mut steps = steps(&guide);
    let addresses = steps.remove(0);
    for variable in VARIABLES {
        let set = addresses.script.contains(&format!("{variable}="));
        assert!(set, "{variable}");
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
        execute(
            &pool,
            &format!("ALTER DATABASE {database} OWNER TO {owner}"),
        )
        .await;
        let place = Place::new();
        let blocks = steps.iter().map(Step::announced);
        place.write(
            "afternoon",
            (SHELL.to_owned() + &blocks.collect::<String>()).as_bytes(),
        );
        // Which ends the relay too that runs in the background.
        let mut shell = command("timeout");
        shell
            .args([&LONGEST.as_secs().to_string(), "bash", "afternoon"])
            .current_dir(place.path(""))
            .env("PATH", with_the_program())
            .env("DATABASE", format!("{}/{database}", authority(url)))
            .env("REDIS", address("OUTBOX_TEST_REDIS_URL"))
            .env("TOPIC", name("adopt"))
            .env("PASSWORD", "secret")
            .envs(roles.iter().map(|(variable, role)| (variable, role)));
        ended = Some(Ended::within(LONGEST + PATIENCE, shell).await);
    })
    .await;
    for (_, role) in roles.iter().rev() {
        execute(&pool, &format!("DROP ROLE IF EXISTS {role}")).await;
    }

    let Ended { code, out, .. } = ended.unwrap();
    let printed: Vec<&str> = out.split(STEP).skip(1).collect();
    let under_way = &steps[printed.len().saturating_sub(1)].title;
    // `timeout` says 124.
    assert_eq!(code, 0, "the exit status, in step `{under_way}`:\n{out}");
    assert_eq!(printed.len(), steps.len(), "steps:\n{out}");
    for (step, mut rest) in steps.iter().zip(printed) {
        for line in &step.prints {
            let Some((_, behind)) = rest.split_once(line) else {
                let title = &step.title;
                panic!("`{line}` is not printed in step `{title}`, or not in its place:\n{out}");
            };
            rest = behind;
        }
    }
}

/// The search path, beginning with the folder of the program.
fn with_the_program() -> String {
    let folder = Path::new(env!("CARGO_BIN_EXE_outbox")).parent().unwrap();
    format!("{}:{}", folder.display(), env::var("PATH").unwrap())
}

/// A block of the guide that is run.
struct Step<'a> {
    title: &'a str,
    script: &'a str,
    /// Parts of what it prints, in their order.
    prints: Vec<&'a str>,
}

impl Step<'_> {
    /// The block, which says first that it begins.
    fn announced(&self) -> String {
        format!("echo '{STEP}{}'\n{}\n", self.title, self.script)
    }
}

fn steps(guide: &str) -> Vec<Step<'_>> {
    let mut steps: Vec<Step<'_>> = Vec::new();
    let mut title = "";
    // A block is between two fences; every other part is the text around them.
    for (number, part) in guide.split("\n```").enumerate() {
        if number % 2 == 0 {
            title = part.lines().rev().find_map(heading).unwrap_or(title);
            continue;
        }
        let (opening, block) = part.split_once('\n').unwrap();
        match opening {
            RUN => steps.push(Step {
                title,
                script: block,
                prints: Vec::new(),
            }),
            PRINTED => {
                let step = steps.last_mut().expect("what prints it is above it");
                step.prints.extend(block.lines());
            }
            _ => {}
        }
    }
    steps
}

/// The words of a heading, or of the first sentence of a paragraph in bold.
fn heading(line: &str) -> Option<&str> {
    line.strip_prefix("## ")
        .or_else(|| Some(line.strip_prefix("**")?.split_once(".** ")?.0))
}
