//! What one call of a publisher has said so far: how a router learns whether that publisher's broker is
//! there, without standing between an answer and its slot.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{PublishError, PublishErrorKind};

#[derive(Debug, Default)]
pub(crate) struct Heard<'a> {
    confirmed: AtomicBool,
    refused: AtomicBool,
    away: OnceLock<PublishError>,
    /// Who listens to the call that this one is a part of, where one router is behind another.
    outer: Option<&'a Heard<'a>>,
}

impl<'a> Heard<'a> {
    pub(super) fn within(outer: Option<&'a Heard<'a>>) -> Self {
        Self {
            outer,
            ..Self::default()
        }
    }

    pub(crate) fn note(&self, answer: &Result<(), PublishError>) {
        match answer {
            Ok(()) => self.confirmed.store(true, Ordering::Relaxed),
            Err(error) if error.kind() == PublishErrorKind::BrokerUnavailable => {
                // The first reason is as good as any.
                let _ = self.away.set(error.clone());
            }
            Err(error) if error.is_brokers_answer() => {
                self.refused.store(true, Ordering::Relaxed);
            }
            Err(_) => {}
        }
    }

    pub(crate) fn outer(&self) -> Option<&'a Heard<'a>> {
        self.outer
    }

    pub(super) fn confirmed(&self) -> bool {
        self.confirmed.load(Ordering::Relaxed)
    }

    /// Something that only a broker says.
    pub(super) fn anything(&self) -> bool {
        self.confirmed() || self.refused.load(Ordering::Relaxed)
    }

    /// That the broker is away.
    pub(super) fn away(&self) -> Option<&PublishError> {
        self.away.get()
    }
}
