//! Writes the steps of a block in order, kernels that follow one another in one segment.

use super::kernel::{Collective, CollectiveKind, Kernel};
use super::{Body, Phase, Step};
use crate::mesh::Axis;

/// Steps in the making.
#[derive(Default)]
pub(super) struct Writer {
    pub(super) steps: Vec<Step>,
}

impl Writer {
    /// Adds kernels to the segment at the end, or begins one after a message or another phase.
    pub(super) fn compute(&mut self, phase: Phase, name: &'static str, kernels: impl IntoIterator<Item = Kernel>) {
        if let Some(Step { phase: last, body: Body::Compute(list), .. }) = self.steps.last_mut()
            && *last == phase
        {
            list.extend(kernels);
            return;
        }
        self.steps.push(Step { phase, name, body: Body::Compute(kernels.into_iter().collect()) });
    }

    /// Adds a message that the step `joined_after` behind it waits for.
    pub(super) fn send(&mut self, phase: Phase, kind: CollectiveKind, axis: Axis, bytes: u64, joined_after: usize) {
        let body = Body::Communicate { collective: Collective { kind, axis, bytes }, joined_after };
        self.steps.push(Step { phase, name: kind.name(), body });
    }
}
