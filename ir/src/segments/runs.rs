//! Kernels between two communications become one step, across the borders of layers.

use super::program::{Placed, Programs};
use super::{Body, Phase, RunPart, Step};
use std::collections::BTreeMap;

/// The runs of steps that have been entered into the table, and where.
#[derive(Debug, Default)]
pub(super) struct Runs {
    known: BTreeMap<Vec<RunPart>, u32>,
}

/// A step of the new list.
enum Merged {
    Compute { steps: Vec<RunPart>, phase: Phase, layer: u32 },
    Message { placed: Placed, joined: Option<usize> },
}

impl Runs {
    /// The steps of a list that `counts`, neighbours merged unless one must wait for a message, one is of the forward that
    /// backward does again and the other not, or a place of `borders` lies between. Also returns the new place of the last
    /// step before each border.
    pub(super) fn merge(
        &mut self,
        programs: &mut Programs,
        list: &[Placed],
        counts: impl Fn(Phase) -> bool,
        borders: &[usize],
    ) -> (Vec<Placed>, Vec<u32>) {
        let phase = |place: &usize| list.get(*place).and_then(|p| programs.step(p.step)).map(|step| step.phase);
        let counted: Vec<usize> = (0..list.len()).filter(|place| phase(place).is_some_and(&counts)).collect();
        let mut merged: Vec<Merged> = Vec::new();
        let mut ends = Vec::with_capacity(borders.len());
        let mut borders = borders.iter().peekable();
        // Old places at which some message is waited for.
        let mut awaited: Vec<usize> = Vec::new();
        // Old place -> new one; every place is filled before it is read.
        let mut moved = vec![0; list.len() + 1];
        let mut apart = false;
        for place in counted {
            while borders.next_if(|border| **border <= place).is_some() {
                ends.push(merged.len().saturating_sub(1));
                apart = true;
            }
            let placed = list[place];
            let Some(step) = programs.step(placed.step) else { continue };
            let awaits = awaited.iter().any(|at| *at <= place);
            awaited.retain(|at| *at > place);
            if step.collective().is_some() {
                // Behind the last step whatever follows the list waits for it.
                let joined = (placed.joined_after != Placed::NEVER)
                    .then(|| place.saturating_add(placed.joined_after as usize).min(list.len()));
                awaited.extend(joined);
                moved[place] = merged.len();
                merged.push(Merged::Message { placed, joined });
            } else {
                let again = |phase: Phase| phase == Phase::Recompute;
                match merged.last_mut() {
                    Some(Merged::Compute { steps, phase, layer })
                        if !awaits && !apart && again(*phase) == again(step.phase) =>
                    {
                        steps.push(RunPart {
                            step: placed.step,
                            layers: placed.layer.cast_signed() - layer.cast_signed(),
                        });
                        moved[place] = merged.len() - 1;
                    }
                    _ => {
                        moved[place] = merged.len();
                        let (steps, phase) = (vec![RunPart { step: placed.step, layers: 0 }], step.phase);
                        merged.push(Merged::Compute { steps, phase, layer: placed.layer });
                    }
                }
            }
            apart = false;
        }
        ends.extend(borders.map(|_| merged.len().saturating_sub(1)));
        // A message whose waiting step does not count is waited for by the next that does.
        let mut next = merged.len();
        moved[list.len()] = next;
        for place in (0..list.len()).rev() {
            if phase(&place).is_some_and(&counts) { next = moved[place] } else { moved[place] = next }
        }
        let number = |n: usize| u32::try_from(n).unwrap_or(Placed::NEVER);
        let new = merged.into_iter().enumerate().map(|(at, merged)| match merged {
            Merged::Compute { steps, phase, layer } => {
                Placed { step: self.enter(programs, steps, phase), layer, joined_after: 0 }
            }
            Merged::Message { placed, joined } => {
                let to = joined.map_or(Placed::NEVER, |joined| number(moved[joined].saturating_sub(at)));
                Placed { joined_after: to, ..placed }
            }
        });
        (new.collect(), ends.into_iter().map(number).collect())
    }

    /// The place in the table of a run of steps.
    fn enter(&mut self, programs: &mut Programs, steps: Vec<RunPart>, phase: Phase) -> u32 {
        if let [part] = steps.as_slice() {
            return part.step;
        }
        if let Some(known) = self.known.get(&steps) {
            return *known;
        }
        let place = u32::try_from(programs.steps.len()).unwrap_or(u32::MAX);
        let name = steps.first().and_then(|part| programs.step(part.step)).map_or("", |step| step.name);
        programs.steps.push(Step { phase, name, body: Body::Run(steps.clone()), operations: Vec::new() });
        self.known.insert(steps, place);
        place
    }
}
