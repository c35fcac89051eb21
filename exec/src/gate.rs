//! Where ranks meet between two steps, so that each step's times begin together.
//!
//! One law: a rank that fails never leaves the others waiting.

use crate::transport::AbortHandle;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// A barrier that gives way when the run is aborted.
pub(crate) struct Gate {
    ranks: usize,
    state: Mutex<State>,
    opened: Condvar,
}

#[derive(Default)]
struct State {
    waiting: usize,
    round: u64,
}

/// How often a waiting rank looks whether the run was aborted.
const LOOK: Duration = Duration::from_millis(20);

impl Gate {
    pub(crate) fn new(ranks: usize) -> Self {
        Self { ranks, state: Mutex::default(), opened: Condvar::new() }
    }

    /// Waits for all ranks; returns at once when the run was aborted.
    pub(crate) fn wait(&self, abort: &AbortHandle) {
        // The counters are updated in one go, so a panic elsewhere cannot have left them half done.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let round = state.round;
        state.waiting += 1;
        if state.waiting == self.ranks {
            state.waiting = 0;
            state.round += 1;
            self.opened.notify_all();
        }
        while state.round == round && abort.cause().is_none() {
            state = self.opened.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
