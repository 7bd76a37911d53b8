//! Who may do what: the rights of producers, relays, consumers and operators, as SQL for an administrator.

use crate::Outbox;

/// What a role is there for. A role may have several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Enqueues. It can neither read nor delete messages, nor choose their place.
    Producer,
    /// Claims and settles. It can enqueue nothing and change no message.
    Relay,
    /// Asks the inbox and remembers in it, and forgets what is old. It can change nothing there, nor choose
    /// a time, and sees no message.
    Consumer,
    /// Reads everything, decides about what is stuck, pauses topics, and forgets what is old in the inbox.
    Operator,
}

impl Outbox {
    /// The statements that give `role` what it needs and no more, to be run by the owner of the schema
    /// after the migrations, and again after later ones.
    ///
    /// Every role may read the list of migrations, so that its program can call
    /// [`migrate`](Self::migrate) at its start.
    pub fn grants_sql(&self, access: Access, role: &str) -> String {
        let rights = match access {
            Access::Producer => include_str!("../sql/grant_producer.sql"),
            Access::Relay => include_str!("../sql/grant_relay.sql"),
            Access::Consumer => include_str!("../sql/grant_consumer.sql"),
            Access::Operator => include_str!("../sql/grant_operator.sql"),
        };
        // The name is put in last, so that nothing in it is taken for a placeholder.
        self.schema.sql(rights).replace("{role}", &quoted(role))
    }
}

/// The name as Postgres reads it back, whatever is in it.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
