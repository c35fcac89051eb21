//! Writes the steps of a block in order, kernels that follow one another in one segment.

use super::kernel::{Collective, Kernel};
use super::operation::{Operand, Operation};
use super::{Body, Phase, Step};

/// Steps in the making.
#[derive(Default)]
pub(super) struct Writer {
    pub(super) steps: Vec<Step>,
}

impl Writer {
    /// Adds an operation with its kernels to the segment at the end, or begins one after a message or another phase.
    pub(super) fn compute(&mut self, phase: Phase, operation: Operation, kernels: impl IntoIterator<Item = Kernel>) {
        let awaits = self.is_awaited(self.steps.len());
        if let Some(Step { phase: last, body: Body::Compute(list), operations, .. }) = self.steps.last_mut()
            && *last == phase
            && !awaits
        {
            list.extend(kernels);
            operations.push(operation);
            return;
        }
        let body = Body::Compute(kernels.into_iter().collect());
        self.steps.push(Step { phase, name: operation.name(), body, operations: vec![operation] });
    }

    /// Whether the step at a place is the first that waits for some message.
    fn is_awaited(&self, place: usize) -> bool {
        self.steps.iter().enumerate().any(|(at, step)| match &step.body {
            Body::Communicate { joined_after, .. } => at + joined_after == place,
            _ => false,
        })
    }

    /// Adds a message that the step `joined_after` behind it waits for.
    pub(super) fn send(&mut self, phase: Phase, collective: Collective, operand: Operand, joined_after: usize) {
        self.steps.push(Step::message(phase, collective, operand, joined_after));
    }
}
