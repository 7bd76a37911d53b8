//! What a look at the server finds.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use outbox_core::Store as _;
use outbox_core::admin::{Finding, Severity};
use outbox_postgres::Access;
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};

use crate::support::store::{Db, limits};
use crate::support::{Fixture, on_each_server};

on_each_server!(with_outbox:
    what_is_as_it_should_be_is_fine,
    what_is_broken_is_found_with_its_mend,
    rights_that_a_relay_lacks_are_named,
    each_right_that_a_relay_lacks_is_found,
    a_snapshot_is_found_with_its_holder,
    a_pooler_is_found,
    messages_without_a_relay_are_a_problem,
);

mod without_an_outbox {
    use super::missing_tables_are_a_problem;

    crate::support::on_each_server!(with_empty_database: missing_tables_are_a_problem);
}

async fn look(f: &Fixture, pool: &PgPool) -> Vec<Finding> {
    let findings = f.outbox.doctor(pool).await.unwrap();
    for finding in &findings {
        let mends = matches!(finding.severity, Severity::Warning | Severity::Problem);
        assert!(!mends || !finding.mend.is_empty(), "{finding:?}");
    }
    findings
}

fn of<'a>(findings: &'a [Finding], check: &str) -> &'a Finding {
    let mut found = findings.iter().filter(|finding| finding.check == check);
    found
        .next()
        .unwrap_or_else(|| panic!("{check} in {findings:?}"))
}

async fn what_is_as_it_should_be_is_fine(f: Fixture) {
    let findings = look(&f, &f.pool).await;
    for check in [
        "server version",
        "writes",
        "transaction ids",
        "notifications",
        "pooler",
        "migrations",
        "rights",
        "vacuum",
        "indexes",
        "sequence",
        "triggers",
        "lanes",
    ] {
        assert_eq!(
            of(&findings, check).severity,
            Severity::Fine,
            "{:?}",
            of(&findings, check)
        );
    }
    // Others use the server too.
    for check in ["connections", "durability", "oldest snapshot"] {
        assert_ne!(
            of(&findings, check).severity,
            Severity::Unknown,
            "{:?}",
            of(&findings, check)
        );
    }
    assert_eq!(of(&findings, "relay").severity, Severity::Warning);
}

async fn what_is_broken_is_found_with_its_mend(f: Fixture) {
    f.execute(
        "ALTER SEQUENCE {schema}.message_position CACHE 20;
         ALTER TABLE {schema}.message DISABLE TRIGGER wake_relay;
         ALTER TABLE {schema}.message SET (autovacuum_enabled = false);
         DELETE FROM {schema}.lane WHERE lane = 5;
         UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{schema}.dead_by_id'::regclass;
         DELETE FROM {schema}.migration",
    )
    .await
    .unwrap();
    let findings = look(&f, &f.pool).await;
    for check in [
        "sequence",
        "triggers",
        "lanes",
        "vacuum",
        "indexes",
        "migrations",
    ] {
        assert_eq!(
            of(&findings, check).severity,
            Severity::Problem,
            "{:?}",
            of(&findings, check)
        );
    }
    // What can be mended with one statement is, by that statement.
    for check in ["sequence", "triggers", "lanes", "vacuum"] {
        let mend = &of(&findings, check).mend;
        let statement = mend.split(", while ").next().unwrap();
        f.execute(statement).await.unwrap();
    }
    let findings = look(&f, &f.pool).await;
    for check in ["sequence", "triggers", "lanes", "vacuum"] {
        assert_eq!(
            of(&findings, check).severity,
            Severity::Fine,
            "{:?}",
            of(&findings, check)
        );
    }
    f.execute("ALTER TABLE {schema}.blocked DISABLE TRIGGER say_blocked")
        .await
        .unwrap();
    let findings = look(&f, &f.pool).await;
    let triggers = of(&findings, "triggers");
    assert_eq!(triggers.severity, Severity::Problem);
    f.execute(&triggers.mend).await.unwrap();
    let findings = look(&f, &f.pool).await;
    assert_eq!(of(&findings, "triggers").severity, Severity::Fine);
}

async fn signed_in(f: &Fixture, access: Access) -> PgPool {
    let name = f.role();
    let grants = f.outbox.grants_sql(access, &name);
    f.execute(&format!(
        "CREATE ROLE {name} LOGIN PASSWORD 'secret'; {grants}"
    ))
    .await
    .unwrap();
    let options: PgConnectOptions = f.url.parse().unwrap();
    PgPoolOptions::new()
        .connect_with(options.username(&name).password("secret"))
        .await
        .unwrap()
}

async fn rights_that_a_relay_lacks_are_named(f: Fixture) {
    let pool = signed_in(&f, Access::Operator).await;
    let findings = look(&f, &pool).await;
    let rights = of(&findings, "rights");
    assert_eq!(rights.severity, Severity::Problem);
    assert!(rights.what.contains("DELETE on message"), "{}", rights.what);
    assert!(
        !rights.what.contains("SELECT on message,"),
        "{}",
        rights.what
    );
    for right in ["EXECUTE on deliver_due", "EXECUTE on keep_delivered"] {
        assert!(rights.what.contains(right), "{}", rights.what);
    }
    // The mend is what mends it.
    f.execute(&rights.mend).await.unwrap();
    let findings = look(&f, &pool).await;
    assert_eq!(of(&findings, "rights").severity, Severity::Fine);
    // An operator sees how everything stands.
    assert!(f.outbox.status(&pool).await.unwrap().complete);
    pool.close().await;
}

async fn each_right_that_a_relay_lacks_is_found(f: Fixture) {
    let pool = signed_in(&f, Access::Relay).await;
    let role = (*pool.connect_options()).get_username().to_owned();
    for right in [
        "SELECT ON {schema}.migration",
        "SELECT ON {schema}.message_position",
        "SELECT ON {schema}.paused",
        "SELECT ON {schema}.lane",
        "UPDATE (floor) ON {schema}.lane",
        "UPDATE (blocked) ON {schema}.lane",
        "UPDATE (suspects) ON {schema}.lane",
        "UPDATE (step) ON {schema}.lane",
        "UPDATE (alone) ON {schema}.lane",
        "UPDATE (deaths) ON {schema}.lane",
        "SELECT ON {schema}.message",
        "DELETE ON {schema}.message",
        "SELECT ON {schema}.parked",
        "INSERT ON {schema}.parked",
        "UPDATE (parked) ON {schema}.parked",
        "UPDATE (failures) ON {schema}.parked",
        "DELETE ON {schema}.parked",
        "SELECT ON {schema}.blocked",
        "INSERT ON {schema}.blocked",
        "UPDATE ON {schema}.blocked",
        "DELETE ON {schema}.blocked",
        "SELECT ON {schema}.dead",
        "INSERT ON {schema}.dead",
    ] {
        f.execute(&format!("REVOKE {right} FROM {role}"))
            .await
            .unwrap();
        let findings = look(&f, &pool).await;
        assert_eq!(
            of(&findings, "rights").severity,
            Severity::Problem,
            "{right}"
        );
        f.execute(&format!("GRANT {right} TO {role}"))
            .await
            .unwrap();
    }
    assert_eq!(
        of(&look(&f, &pool).await, "rights").severity,
        Severity::Fine
    );
    pool.close().await;
}

async fn a_snapshot_is_found_with_its_holder(f: Fixture) {
    let options = (*f.pool.connect_options()).clone();
    let name = format!("holder of {}", &f.outbox.schema()[..20]);
    let holder = PgPoolOptions::new()
        .connect_with(options.application_name(&name))
        .await
        .unwrap();
    // Between two statements it has no snapshot, and holds vacuum back by its own id.
    let mut held = holder.begin().await.unwrap();
    sqlx::query("SELECT pg_current_xact_id()")
        .execute(&mut *held)
        .await
        .unwrap();
    let rows: Vec<(String, String)> =
        sqlx::query_as(include_str!("../../sql/doctor_snapshots.sql"))
            .fetch_all(&f.pool)
            .await
            .unwrap();
    let mine = rows.iter().find(|(_, who)| who.contains(&name));
    let (kind, who) = mine.unwrap_or_else(|| panic!("{rows:?}"));
    assert_eq!(kind, "session");
    assert!(
        who.contains("pid ") && who.contains("idle in transaction"),
        "{who}"
    );
}

/// Passes everything on, but for the settings that a client gives at its start: as a pooler does.
fn without_start_options(server: &str) -> u16 {
    let (server, listener) = (server.to_owned(), TcpListener::bind("127.0.0.1:0").unwrap());
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, mut server) = (client.unwrap(), TcpStream::connect(&server).unwrap());
            let mut length = [0; 4];
            client.read_exact(&mut length).unwrap();
            let mut start = vec![0; u32::from_be_bytes(length) as usize - 4];
            client.read_exact(&mut start).unwrap();
            let mut kept = start[..4].to_vec();
            let words: Vec<&[u8]> = start[4..].split(|byte| *byte == 0).collect();
            for pair in words
                .chunks(2)
                .filter(|pair| pair.len() == 2 && !pair[0].is_empty())
            {
                if pair[0] != b"options" {
                    kept.extend([pair[0], b"\0", pair[1], b"\0"].concat());
                }
            }
            kept.push(0);
            server
                .write_all(&(kept.len() as u32 + 4).to_be_bytes())
                .unwrap();
            server.write_all(&kept).unwrap();
            let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(std::net::Shutdown::Both);
            });
            thread::spawn(move || std::io::copy(&mut server, &mut client));
        }
    });
    port
}

async fn a_pooler_is_found(f: Fixture) {
    let options: PgConnectOptions = f.url.parse().unwrap();
    let port = without_start_options(&format!("{}:{}", options.get_host(), options.get_port()));
    let options = options
        .host("127.0.0.1")
        .port(port)
        .ssl_mode(PgSslMode::Disable);
    let pool = PgPoolOptions::new().connect_with(options).await.unwrap();
    let findings = look(&f, &pool).await;
    assert_eq!(of(&findings, "pooler").severity, Severity::Warning);
    pool.close().await;
}

async fn messages_without_a_relay_are_a_problem(f: Fixture) {
    let relay = async || of(&look(&f, &f.pool).await, "relay").severity;
    for (come, go) in [
        (
            "SELECT {schema}.enqueue('t', NULL, deliver_after => '1 hour')",
            "DELETE FROM {schema}.delayed",
        ),
        (
            "INSERT INTO {schema}.parked (key_hash, position, id, topic, enqueued_at)
             VALUES (1, 1, gen_random_uuid(), 't', now())",
            "DELETE FROM {schema}.parked",
        ),
        ("SELECT {schema}.enqueue('t', NULL)", ""),
    ] {
        assert_eq!(relay().await, Severity::Warning, "before {come}");
        f.execute(come).await.unwrap();
        assert_eq!(relay().await, Severity::Problem, "{come}");
        f.execute(go).await.unwrap();
    }
    let store = Db::new(f.clone()).outbox.store(&f.pool);
    let claim = store.claim(&limits(1)).await.unwrap();
    assert_eq!(relay().await, Severity::Fine);
    drop(claim);
}

async fn missing_tables_are_a_problem(f: Fixture) {
    let findings = look(&f, &f.pool).await;
    assert_eq!(of(&findings, "migrations").severity, Severity::Problem);
}
