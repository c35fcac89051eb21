//! Ring attention by its programs alone, on all ranks of a ring at once.

use super::{Does, Event, events, model, programs};
use crate::mesh::{Axis, Mesh};
use crate::scenario::{Recompute, SequenceParallel};
use crate::segments::{Cut, Operand, Operation, Phase, Placed, Programs};
use crate::setup::Setup;
use std::collections::BTreeSet;

/// The gradient of a block, by the ranks whose queries have added to it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Gradient {
    block: usize,
    of: BTreeSet<usize>,
}

/// What a rank has in hand in one pass through a layer's core.
#[derive(Clone, Debug, Default)]
struct RankState {
    /// Keys and values at hand.
    block: usize,
    /// The gradient of the last block that was computed, before it is sent on.
    held: Option<Gradient>,
    /// The gradient of its own block.
    home: BTreeSet<usize>,
    /// Blocks that its queries have met.
    met: Vec<usize>,
    /// What is under way to it, and the place that waits for it.
    coming: Vec<(usize, Option<usize>, Option<Gradient>)>,
}

impl RankState {
    fn arrive(&mut self, rank: usize, place: usize) {
        let due: Vec<_> = self.coming.extract_if(.., |(joined, ..)| *joined <= place).collect();
        for (_, block, gradient) in due {
            if let Some(block) = block {
                self.block = block;
            }
            let Some(gradient) = gradient else { continue };
            let sum = if gradient.block == rank {
                &mut self.home
            } else {
                let held = self.held.as_mut().expect("the rank has computed the block whose gradient comes");
                assert_eq!(held.block, gradient.block);
                &mut held.of
            };
            assert!(gradient.of.is_disjoint(sum), "nothing is added twice");
            sum.extend(gradient.of);
        }
    }
}

/// All ranks of a ring of `c` walk through one pass of one layer.
fn walk(c: usize, pass: &[Event], backward: bool) -> Vec<RankState> {
    let mut ranks: Vec<RankState> = (0..c).map(|block| RankState { block, ..RankState::default() }).collect();
    for event in pass {
        ranks.iter_mut().enumerate().for_each(|(rank, state)| state.arrive(rank, event.place));
        match event.does {
            Does::Compute(Operation::Core(step)) => {
                for (rank, state) in ranks.iter_mut().enumerate() {
                    assert_eq!(state.block, (rank + c - step as usize) % c, "the block that is `step` steps round");
                    state.met.push(state.block);
                    if backward && state.block == rank {
                        state.home.insert(rank);
                    } else if backward {
                        let made = Gradient { block: state.block, of: [rank].into() };
                        assert_eq!(state.held.replace(made), None, "the gradient before was sent on");
                    }
                }
            }
            Does::Send(Operand::Ring { keys_and_values, gradients }) => {
                let sent: Vec<_> = ranks
                    .iter_mut()
                    .map(|state| {
                        let gradient = gradients.then(|| state.held.take().expect("there is a gradient to send"));
                        (event.joined, keys_and_values.then_some(state.block), gradient)
                    })
                    .collect();
                for (rank, message) in sent.into_iter().enumerate() {
                    ranks[(rank + 1) % c].coming.push(message);
                }
            }
            _ => {}
        }
    }
    ranks.iter_mut().enumerate().for_each(|(rank, state)| state.arrive(rank, usize::MAX));
    ranks
}

fn check(c: usize, programs: &Programs, list: &[Placed], phase: Phase) {
    let events = events(programs, list);
    let layers: BTreeSet<u32> = events.iter().map(|event| event.layer).collect();
    for layer in layers {
        let ring = |event: &&Event| {
            let is_ring = matches!(event.does, Does::Compute(Operation::Core(_)) | Does::Send(Operand::Ring { .. }));
            event.layer == layer && event.phase == phase && is_ring
        };
        let pass: Vec<Event> = events.iter().filter(ring).copied().collect();
        let backward = phase == Phase::Input;
        for (rank, state) in walk(c, &pass, backward).into_iter().enumerate() {
            let mut met = state.met;
            met.sort_unstable();
            assert_eq!(met, Vec::from_iter(0..c), "rank {rank} meets every block once");
            let home = if backward { BTreeSet::from_iter(0..c) } else { BTreeSet::new() };
            assert_eq!((state.home, state.held), (home, None), "rank {rank}");
        }
    }
}

#[test]
fn every_block_meets_every_rank_once_and_its_gradient_comes_home_whole() {
    let model = model();
    for kind in [SequenceParallel::Ring, SequenceParallel::RingContiguous] {
        let recomputes = [Recompute::None, Recompute::Selective, Recompute::Full];
        for (c, recompute) in [2, 3, 4, 8].into_iter().flat_map(|c| recomputes.map(|recompute| (c, recompute))) {
            let mesh = Mesh { context: c, ..Mesh::default() };
            let setup = Setup { sequence_parallel: kind, recompute: vec![recompute], ..Setup::default() };
            let cut = Cut { model: &model, mesh: &mesh, setup: &setup, micro_batch_size: 2, seq_length: 48 };
            let programs = programs(&cut, true);
            for stage in &programs.stages {
                check(c as usize, &programs, &stage.forward, Phase::Forward);
                check(c as usize, &programs, &stage.backward, Phase::Input);
                check(c as usize, &programs, &stage.input, Phase::Input);
                if recompute != Recompute::None {
                    check(c as usize, &programs, &stage.backward, Phase::Recompute);
                }
            }
        }
    }
}

/// Forward keys and values go to the `c - 1` other ranks. In backward they do again; their gradients come home over as
/// many edges, the first of which no message needs.
#[test]
fn a_ring_sends_each_block_and_each_gradient_over_all_edges_but_one() {
    let model = model();
    for c in [2, 3, 4, 8] {
        let mesh = Mesh { context: c, ..Mesh::default() };
        let setup = Setup { sequence_parallel: SequenceParallel::Ring, ..Setup::default() };
        let cut = Cut { model: &model, mesh: &mesh, setup: &setup, micro_batch_size: 2, seq_length: 48 };
        let programs = programs(&cut, false);
        let sent = |list: &[Placed]| -> u64 {
            let messages = list.iter().filter_map(|placed| programs.step(placed.step)?.collective());
            messages.filter(|message| message.axis == Axis::Context).map(|message| message.bytes).sum()
        };
        // Keys and values of 4 heads of 8 numbers of fp32, of 2 layers.
        let block = 2 * u64::from(48 / c) * 4 * 2 * 8 * 4 * 2;
        for stage in &programs.stages {
            let edges = u64::from(c - 1);
            assert_eq!([sent(&stage.forward), sent(&stage.backward)], [edges * block, 2 * edges * block], "{c}");
        }
    }
}
