//! R12: buffers are born, used and freed in that order, and the step leaves none behind.

use super::{Report, Rule};
use crate::ids::{BufferId, TaskId};
use crate::task::Touch;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Unborn,
    Live(TaskId),
    Freed(TaskId),
}

pub(super) fn check(order: &[TaskId], report: &mut Report<'_>) {
    let draft = report.draft;
    let mut states = vec![State::Unborn; draft.buffers.len()];
    for id in order {
        for effect in draft.effects_of(*id) {
            let state = &mut states[effect.buffer.index()];
            let (fault, next) = match (effect.touch, *state) {
                (Touch::Allocate, State::Unborn) | (Touch::Use, State::Live(_)) => (None, State::Live(*id)),
                (Touch::Free, State::Live(_)) | (Touch::Workspace, State::Unborn) => (None, State::Freed(*id)),
                (Touch::Allocate | Touch::Workspace, State::Live(by) | State::Freed(by)) => {
                    (Some(("is allocated a second time", vec![by, *id])), *state)
                }
                (_, State::Unborn) => (Some(("is used before it is allocated", vec![*id])), State::Live(*id)),
                (_, State::Freed(by)) => (Some(("is used after it is freed", vec![by, *id])), *state),
            };
            *state = next;
            if let Some((what, tasks)) = fault {
                let message = format!("{} {what}", name(report, effect.buffer));
                report.add(Rule::Buffers, message, "allocate once, use, then free once", &tasks);
            }
        }
    }
    for (i, state) in states.into_iter().enumerate() {
        if let State::Live(last) = state {
            let message = format!("{} is never freed", name(report, BufferId::at(i)));
            report.add(Rule::Buffers, message, "free it at its last use", &[last]);
        }
    }
}

fn name(report: &Report<'_>, buffer: BufferId) -> String {
    let buffer = &report.draft.buffers[buffer.index()];
    format!("the {} buffer of {} on rank {}", buffer.class.name(), buffer.of, buffer.rank)
}
