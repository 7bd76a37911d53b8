//! The statements of the relay's side, written for one outbox.

use std::sync::Arc;

use sqlx::query::Query;
use sqlx::sqlite::SqliteArguments;
use sqlx::{AssertSqlSafe, Sqlite};

use crate::prefix::Prefix;

macro_rules! statements {
    ($($name:ident),+ $(,)?) => {
        /// Every statement.
        pub(crate) struct Statements {
            $(pub(crate) $name: Statement,)+
        }

        impl Statements {
            pub(crate) fn new(prefix: &Prefix) -> Self {
                Self {
                    $($name: Statement(
                        prefix.sql(include_str!(concat!("../sql/", stringify!($name), ".sql"))).into(),
                    ),)+
                }
            }
        }
    };
}

statements!(
    poll,
    delayed_next,
    delayed_due,
    deliver_due,
    deliver_due_remove,
    due_lines,
    read_due,
    read_hot,
    followers,
    settle_dead_hot,
    settle_dead_due,
    settle_remove_hot,
    settle_remove_due,
    settle_block,
    settle_set_aside,
    settle_set_aside_remove,
    settle_counters,
    promote,
    unblock,
);

/// One statement.
pub(crate) struct Statement(Arc<str>);

impl Statement {
    pub(crate) fn query(&self) -> Query<'_, Sqlite, SqliteArguments> {
        // The only thing put into the text is a prefix, which was checked.
        sqlx::query(AssertSqlSafe(Arc::clone(&self.0)))
    }
}
