//! Writes the steps of a block in order, kernels that follow one another in one segment.

use super::kernel::{Collective, Kernel};
use super::operation::{Operand, Operation};
use super::{Body, Phase, Step};

/// Steps in the making.
#[derive(Default)]
pub(super) struct Writer {
    pub(super) steps: Vec<Step>,
    /// Whether the next operation begins a segment, whatever stands before it.
    apart: bool,
}

impl Writer {
    /// Adds an operation with its kernels to the segment at the end, or begins one after a message or another phase.
    pub(super) fn compute(&mut self, phase: Phase, operation: Operation, kernels: impl IntoIterator<Item = Kernel>) {
        let apart = std::mem::take(&mut self.apart);
        if let Some(Step { phase: last, body: Body::Compute(list), operations, .. }) = self.steps.last_mut()
            && *last == phase
            && !apart
        {
            list.extend(kernels);
            operations.push(operation);
            return;
        }
        let body = Body::Compute(kernels.into_iter().collect());
        self.steps.push(Step { phase, name: operation.name(), body, operations: vec![operation] });
    }

    /// The next operation begins a segment: it waits for a message that the one before it runs beside.
    pub(super) fn begin_segment(&mut self) {
        self.apart = true;
    }

    /// Adds a message that the step `joined_after` behind it waits for.
    pub(super) fn send(&mut self, phase: Phase, collective: Collective, operand: Operand, joined_after: usize) {
        self.steps.push(Step::message(phase, collective, operand, joined_after));
    }
}
