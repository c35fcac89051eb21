//! Programs read as what they are for: operations and messages that an executor carries out.

mod operations;
mod ring;

use super::{Cut, Operand, Operation, Phase, Placed, Programs};
use crate::ids::LayerRange;
use crate::model::{ModelShape, StagePart};

/// One thing that a program does, in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    layer: u32,
    phase: Phase,
    does: Does,
    /// Its place in the list, and for a message the place that waits for it.
    place: usize,
    joined: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Does {
    Compute(Operation),
    Send(Operand),
}

/// Everything that a list does, runs with their layer offsets taken apart.
fn events(programs: &Programs, list: &[Placed]) -> Vec<Event> {
    let mut events = Vec::new();
    for (place, placed) in list.iter().enumerate() {
        let step = programs.step(placed.step).unwrap();
        match &step.body {
            super::Body::Communicate { operand, .. } => {
                let joined = place.saturating_add(placed.joined_after as usize);
                let does = Does::Send(*operand);
                events.push(Event { layer: placed.layer, phase: step.phase, does, place, joined });
            }
            super::Body::Compute(_) => compute(&mut events, programs, placed.step, placed.layer, place),
            super::Body::Run(parts) => {
                for part in parts {
                    let layer = placed.layer.checked_add_signed(part.layers).unwrap();
                    compute(&mut events, programs, part.step, layer, place);
                }
            }
        }
    }
    events
}

fn compute(events: &mut Vec<Event>, programs: &Programs, step: u32, layer: u32, place: usize) {
    let step = programs.step(step).unwrap();
    assert!(!step.operations.is_empty(), "a step that computes says what");
    let event = |operation: &Operation| Event {
        layer,
        phase: step.phase,
        does: Does::Compute(*operation),
        place,
        joined: place,
    };
    events.extend(step.operations.iter().map(event));
}

/// The programs of a model of four layers in two stages.
fn programs(cut: &Cut<'_>, split: bool) -> Programs {
    let part = |start, end| StagePart { layers: LayerRange { start, end }, embedding: start == 0, head: end == 4 };
    Programs::new(cut, &[part(0, 2), part(2, 4)], split)
}

fn model() -> ModelShape {
    ModelShape { num_query_groups: 4, ..ModelShape::gpt(4, 64, 8, 128, 64) }
}
