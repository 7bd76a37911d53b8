//! Where a row lies in its table: Postgres's type `tid`.
//!
//! A hot row is never updated, and `VACUUM FULL` waits for the claim, so within a claim a row stays
//! where it was read.
//!
//! It comes as the bytes of `tidsend` and goes as text: for a type that sqlx does not know it would ask
//! the catalog, by a prepared statement that stays behind in a pooler's session.

use std::fmt;

/// A block, and the place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tid {
    block: u32,
    place: u16,
}

impl Tid {
    /// From what `tidsend` gives.
    pub(crate) fn from_sent(sent: &[u8]) -> Result<Self, sqlx::Error> {
        let &[a, b, c, d, e, f] = sent else {
            let reason = format!("a tid of {} bytes", sent.len());
            return Err(sqlx::Error::Protocol(reason));
        };
        Ok(Self {
            block: u32::from_be_bytes([a, b, c, d]),
            place: u16::from_be_bytes([e, f]),
        })
    }
}

impl fmt::Display for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({},{})", self.block, self.place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_written_as_the_server_reads_it() {
        let tid = Tid::from_sent(&[0, 1, 0, 2, 0, 3]).unwrap();
        assert_eq!(tid.to_string(), "(65538,3)");
        assert!(Tid::from_sent(&[0; 5]).is_err());
    }
}
