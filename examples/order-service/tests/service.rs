//! The service as its clients and its supervisor meet it: by HTTP, by signals, and killed.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::ops::Range;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{env, thread};

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use uuid::Uuid;

/// Long enough for a busy machine; a test that reaches it has failed.
const PATIENCE: Duration = Duration::from_secs(60);
const CLIENTS: i64 = 4;
const ORDERS_OF_A_CLIENT: i64 = 50;

/// Clients that send each request until it is answered, and a service that dies three times meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn killed_in_mid_work_it_tells_of_each_order_once_and_in_order() {
    with_place(async |place| {
        let running = Mutex::new(place.start());
        let done = AtomicUsize::new(0);
        thread::scope(|scope| {
            for client in 0..CLIENTS {
                let (running, done) = (&running, &done);
                let orders = client * ORDERS_OF_A_CLIENT..(client + 1) * ORDERS_OF_A_CLIENT;
                scope.spawn(move || place_and_ship(orders, running, done));
            }
            for kill_at in [40, 90, 140] {
                until("orders are done", || {
                    done.load(Ordering::Relaxed) >= kill_at
                });
                running.lock().unwrap().kill();
                *running.lock().unwrap() = place.start();
            }
        });
        let orders = CLIENTS * ORDERS_OF_A_CLIENT;
        let told = usize::try_from(orders * 2).unwrap();
        until("everything is in Redis", || {
            let ids: BTreeSet<_> = place.told().into_iter().map(|(id, ..)| id).collect();
            ids.len() >= told
        });
        running.lock().unwrap().stop();

        // In the order of first copies, and each event of each order by one message.
        let mut copies = BTreeSet::new();
        let mut of_order: BTreeMap<i64, Vec<String>> = BTreeMap::new();
        for (id, order, event) in place.told() {
            if copies.insert(id) {
                of_order.entry(order).or_default().push(event);
            }
        }
        let expected =
            (0..orders).map(|order| (order, ["placed", "shipped"].map(str::to_owned).to_vec()));
        assert_eq!(of_order, expected.collect());
        let mut conn = PgConnection::connect(&place.database_url).await.unwrap();
        let shipped = "SELECT count(*) FROM public.orders WHERE shipped";
        let shipped: i64 = sqlx::query_scalar(shipped)
            .fetch_one(&mut conn)
            .await
            .unwrap();
        assert_eq!(shipped, orders);
    })
    .await;
}

fn place_and_ship(orders: Range<i64>, running: &Mutex<Service>, done: &AtomicUsize) {
    for order in orders {
        let place = (format!("PUT /orders/{order}"), r#"{"item":"tea"}"#);
        let ship = (format!("POST /orders/{order}/shipment"), "");
        for (request, body) in [place, ship] {
            until("an answer", || {
                // Not held while it is asked, so that it can be killed in mid-request.
                let address = running.lock().unwrap().address.clone();
                match ask(&address, &request, body) {
                    Ok((status, _)) => {
                        assert!([200, 201].contains(&status), "{request}: {status}");
                        true
                    }
                    Err(_) => false,
                }
            });
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_takes_orders_while_redis_is_away_says_so_and_stops_when_it_is_told_to() {
    with_place(async |place| {
        let mut service = place.start_with("redis://127.0.0.1:1");
        let order = |service: &Service| service.ask("PUT /orders/7", r#"{"item":"tea"}"#).0;
        assert_eq!(order(&service), 201);
        assert_eq!(order(&service), 200, "the same order again");
        assert_eq!(service.ask("POST /orders/8/shipment", "").0, 404);
        assert_eq!(service.ask("PUT /orders/9", "{}").0, 422);
        until("the outage is seen", || {
            let (status, said) = service.ask("GET /health/ready", "");
            assert_eq!(status, 200, "{said}");
            said.contains("Redis is away")
        });
        assert_eq!(service.ask("GET /health/live", "").0, 200);
        service.has_metrics(&["outbox_outage 1", "outbox_waiting_messages 1"]);
        service.stop();

        let mut service = place.start();
        until("the message is delivered", || place.told().len() == 1);
        until("and settled", || {
            let (_, metrics) = service.ask("GET /metrics", "");
            metrics.contains("\noutbox_messages_delivered_total 1\n")
        });
        service.has_metrics(&[
            "outbox_outage 0",
            "outbox_waiting_messages 0",
            "outbox_status_up 1",
        ]);
        assert_eq!(
            service.ask("GET /health/ready", ""),
            (200, "ready\n".to_owned())
        );

        place.drop_database().await;
        assert_eq!(service.ask("GET /health/ready", "").0, 503);
        service.has_metrics(&["outbox_status_up 0"]);
        service.stop();
    })
    .await;
}

/// Requests that wait for a lock have all the connections of their pool, and are open when Ctrl-C comes.
#[tokio::test(flavor = "multi_thread")]
async fn it_is_ready_while_requests_wait_and_delivers_what_the_last_of_them_enqueue() {
    const REQUESTS: i64 = 10; // as many as the pool has connections
    with_place(async |place| {
        let mut service = place.start();
        for order in 0..REQUESTS {
            let placed = service.ask(&format!("PUT /orders/{order}"), r#"{"item":"tea"}"#);
            assert_eq!(placed.0, 201);
        }
        until("the orders are told", || place.told().len() == 10);
        let mut locks = PgConnection::connect(&place.database_url).await.unwrap();
        let lock = "BEGIN; LOCK TABLE public.orders";
        sqlx::raw_sql(lock).execute(&mut locks).await.unwrap();
        let answers: Vec<_> = (0..REQUESTS)
            .map(|order| {
                let address = service.address.clone();
                let ship = format!("POST /orders/{order}/shipment");
                thread::spawn(move || ask(&address, &ship, ""))
            })
            .collect();
        let waiting = "SELECT count(*) FROM pg_locks
            WHERE NOT granted AND relation = 'public.orders'::regclass";
        loop {
            let waiting: i64 = sqlx::query_scalar(waiting)
                .fetch_one(&mut locks)
                .await
                .unwrap();
            if waiting == REQUESTS {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await; // wait: the poll
        }
        let ready = service.ask("GET /health/ready", "");
        assert_eq!(ready, (200, "ready\n".to_owned()));

        service.tell("-INT");
        until("it takes no more requests", || {
            TcpStream::connect(&service.address).is_err()
        });
        sqlx::raw_sql("COMMIT").execute(&mut locks).await.unwrap();
        for answer in answers {
            assert_eq!(answer.join().unwrap().unwrap().0, 201);
        }
        service.ends();
        assert_eq!(place.told().len(), 20);
    })
    .await;
}

/// A database and a stream of the test's own.
#[derive(Clone)]
struct Place {
    server: String,
    database: String,
    database_url: String,
    redis: String,
    prefix: String,
}

/// What the test makes is removed, however it ends.
async fn with_place(test: impl AsyncFnOnce(&Place)) {
    let name = format!("order_service_{}", Uuid::now_v7().simple());
    let server = variable("OUTBOX_TEST_POSTGRES_URL");
    let place = Place {
        database_url: format!("{}/{name}", server.rsplit_once('/').unwrap().0),
        server,
        redis: variable("OUTBOX_TEST_REDIS_URL"),
        prefix: format!("{name}:"),
        database: name,
    };
    let _removed = Removed(&place);
    place
        .execute(format!("CREATE DATABASE {}", place.database))
        .await;
    test(&place).await;
}

struct Removed<'a>(&'a Place);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        let place = self.0.clone();
        let removal = async move {
            place.drop_database().await;
            let del: Result<(), _> = redis::cmd("DEL")
                .arg(place.stream())
                .query(&mut place.redis());
            del.unwrap();
        };
        let runtime = tokio::runtime::Handle::current();
        // A runtime cannot be waited for by a thread of its own.
        let removed = thread::spawn(move || runtime.block_on(removal)).join();
        assert!(removed.is_ok() || thread::panicking());
    }
}

impl Place {
    async fn execute(&self, statement: String) {
        let mut conn = PgConnection::connect(&self.server).await.unwrap();
        let statement = sqlx::raw_sql(AssertSqlSafe(statement));
        statement.execute(&mut conn).await.unwrap();
    }

    async fn drop_database(&self) {
        self.execute(format!(
            "DROP DATABASE IF EXISTS {} WITH (FORCE)",
            self.database
        ))
        .await;
    }

    fn start(&self) -> Service {
        self.start_with(&self.redis)
    }

    fn start_with(&self, redis: &str) -> Service {
        let mut process = Command::new(env!("CARGO_BIN_EXE_order-service"))
            .env("DATABASE_URL", &self.database_url)
            .env("REDIS_URL", redis)
            .env("STREAM_PREFIX", &self.prefix)
            .env("LISTEN", "127.0.0.1:0")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line.trim().strip_prefix("listening on ").map(str::to_owned);
        let service = Service {
            process,
            address: address.clone().unwrap_or_default(),
        };
        assert!(address.is_some(), "the service printed {line:?}");
        service
    }

    fn stream(&self) -> String {
        format!("{}orders", self.prefix)
    }

    fn redis(&self) -> redis::Connection {
        let client = redis::Client::open(self.redis.as_str()).unwrap();
        client.get_connection().unwrap()
    }

    /// What is in the stream: message id, order and event of each entry.
    fn told(&self) -> Vec<(String, i64, String)> {
        let mut range = redis::cmd("XRANGE");
        range.arg(self.stream()).arg("-").arg("+");
        let entries: Vec<(String, HashMap<String, String>)> =
            range.query(&mut self.redis()).unwrap();
        let told = entries.into_iter().map(|(_, mut fields)| {
            let payload: serde_json::Value = serde_json::from_str(&fields["payload"]).unwrap();
            let order = payload["order"].as_i64().unwrap();
            assert_eq!(fields["key"], order.to_string());
            assert_eq!(fields["header:schema-version"], "1");
            let event = payload["event"].as_str().unwrap().to_owned();
            (fields.remove("id").unwrap(), order, event)
        });
        told.collect()
    }
}

/// The program, ended with the test.
struct Service {
    process: Child,
    address: String,
}

impl Service {
    fn ask(&self, request: &str, body: &str) -> (u16, String) {
        ask(&self.address, request, body).unwrap()
    }

    #[track_caller]
    fn has_metrics(&self, expected: &[&str]) {
        let (status, metrics) = self.ask("GET /metrics", "");
        assert_eq!(status, 200);
        for line in expected {
            assert!(
                metrics.contains(&format!("\n{line}\n")),
                "{line}:\n{metrics}"
            );
        }
    }

    /// Ends it without warning.
    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Tells it to stop, and waits until it has ended without an error.
    fn stop(&mut self) {
        self.tell("-TERM");
        self.ends();
    }

    fn tell(&self, signal: &str) {
        let pid = self.process.id().to_string();
        let told = Command::new("kill").args([signal, &pid]).status().unwrap();
        assert!(told.success());
    }

    fn ends(&mut self) {
        until("it stops", || match self.process.try_wait().unwrap() {
            Some(status) => {
                assert!(status.success(), "{status}");
                true
            }
            None => false,
        });
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // One that has ended cannot be ended again.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Sends a request on a connection of its own, and gives the status and the body of the answer.
fn ask(address: &str, request: &str, body: &str) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let length = body.len();
    write!(
        stream,
        "{request} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let cut_off = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(cut_off)?;
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    Ok((status.ok_or_else(cut_off)?, body.to_owned()))
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: run `eval \"$(scripts/services env)\"` first")
    })
}

#[track_caller]
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "did not happen in time: {what}");
        thread::sleep(Duration::from_millis(20)); // wait: the poll
    }
}
