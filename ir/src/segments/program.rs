//! The steps of whole stages: block after block, with ZeRO-3's gathers and scatters between them.

use super::kernel::{Collective, CollectiveKind};
use super::operation::{BlockKind, Operand};
use super::runs::Runs;
use super::{Block, Body, Cut, Phase, RunPart, Step};
use crate::action::Op;
use crate::mesh::Axis;
use crate::model::StagePart;
use crate::scenario::Recompute;
use crate::task::Work;

/// A step in its place in a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Which of [`Programs::steps`].
    pub step: u32,
    /// The layer; the embedding counts as the first of its stage and the head as the last.
    pub layer: u32,
    /// A message: how many places behind it the first step stands that waits for it.
    pub joined_after: u32,
}

/// What a stage does for one microbatch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StageProgram {
    /// F.
    pub forward: Vec<Placed>,
    /// B.
    pub backward: Vec<Placed>,
    /// I: B without [`Phase::Weight`]; empty where no backward is split.
    pub input: Vec<Placed>,
    /// W: the rest of B; likewise.
    pub weight: Vec<Placed>,
    /// Parameters on one rank, before ZeRO shards them.
    pub parameters: u64,
    /// Of them those of experts, which fewer ranks hold copies of.
    pub expert_parameters: u64,
    /// Of the parameters those whose gradients are parts of a sum over the tensor-parallel ranks.
    pub partial_parameters: u64,
    /// The gradients of each block on their way over the replicas, in the order of the backward: empty with one replica,
    /// and under ZeRO-3, which scatters them in the backward itself.
    pub buckets: Vec<Bucket>,
}

impl StageProgram {
    /// The steps of F, B, I or W; `None` for any other operation.
    pub fn list(&self, op: Op) -> Option<&[Placed]> {
        match op {
            Op::Forward => Some(&self.forward),
            Op::FullBackward => Some(&self.backward),
            Op::BackwardInput => Some(&self.input),
            Op::BackwardWeight => Some(&self.weight),
            _ => None,
        }
    }
}

/// The gradients of one block: those of experts stand in a bucket of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Which of [`Programs::steps`] reduces them.
    pub step: u32,
    /// The place in B behind which they are complete.
    pub place: u32,
    /// The place in W behind which they are complete, where B is split.
    pub weight_place: u32,
    /// The layer.
    pub layer: u32,
}

/// What every stage of a plan does.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Programs {
    /// Every different step, once.
    pub steps: Vec<Step>,
    /// One entry a stage.
    pub stages: Vec<StageProgram>,
    /// The first steps of the layers' forwards and backwards.
    pub layers: Vec<LayerSteps>,
    /// Whether gradients are reduced a block at a time, beside the last backward.
    pub overlap_grad_reduce: bool,
}

impl Placed {
    /// `joined_after` of a message that nothing but the end of the step waits for.
    pub const NEVER: u32 = u32::MAX;
}

/// Where a kind of layer begins in [`Programs::steps`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerSteps {
    /// The first step of its forward.
    pub forward: u32,
    /// The first step of its backward.
    pub backward: u32,
    /// What its backward computes again.
    pub recompute: Recompute,
}

/// A block whose steps are in the table.
#[derive(Clone, Debug)]
struct Listed {
    forward: std::ops::Range<u32>,
    backward: std::ops::Range<u32>,
    parameters: u64,
    expert_parameters: u64,
    partial_parameters: u64,
    /// ZeRO-3: the gathers of its parameters and the scatters of its gradients, those of experts apart.
    gather: Vec<u32>,
    scatter: Vec<u32>,
    /// Otherwise, with several replicas: the reductions of its gradients.
    reduce: Vec<u32>,
    /// Whether its backward computes with the parameters: that of an embedding does not.
    weights_in_backward: bool,
}

impl Programs {
    /// The programs of stages that hold `parts`; those of I and W only where backward is `split`.
    pub fn new(cut: &Cut<'_>, parts: &[StagePart], split: bool) -> Self {
        let mut programs = Self { overlap_grad_reduce: cut.setup.overlap_grad_reduce, ..Self::default() };
        let mut layers: Vec<((Recompute, bool), Listed)> = Vec::new();
        let mut runs = Runs::default();
        let no_weights = |listed| Listed { weights_in_backward: false, ..listed };
        let embedding = no_weights(programs.list(cut, BlockKind::Embedding, cut.embedding()));
        let head = programs.list(cut, BlockKind::Head, cut.head(true));
        let tied_head = programs.list(cut, BlockKind::Head, cut.head(false));
        for (s, part) in parts.iter().enumerate() {
            let mut blocks: Vec<(u32, Listed)> = Vec::new();
            if part.embedding {
                blocks.push((part.layers.start, embedding.clone()));
            }
            for layer in part.layers.start..part.layers.end {
                let kind = (cut.setup.recompute_of(s), cut.model.is_moe_layer(layer));
                let known = layers.iter().find(|(k, _)| *k == kind).map(|(_, listed)| listed.clone());
                let listed = known.unwrap_or_else(|| {
                    let listed = programs.list(cut, BlockKind::Layer, cut.layer(kind.0, kind.1));
                    let (forward, backward) = (listed.forward.start, listed.backward.start);
                    programs.layers.push(LayerSteps { forward, backward, recompute: kind.0 });
                    layers.push((kind, listed.clone()));
                    listed
                });
                blocks.push((layer, listed));
            }
            if part.head {
                let tied = part.embedding && !cut.model.untie_embeddings_and_output_weights;
                let head = if tied { &tied_head } else { &head };
                blocks.push((part.layers.end.saturating_sub(1), head.clone()));
            }
            let stage = programs.stage(&blocks, split, &mut runs);
            programs.stages.push(stage);
        }
        programs
    }

    /// Enters a block's steps into the table.
    fn list(&mut self, cut: &Cut<'_>, of: BlockKind, block: Block) -> Listed {
        let mut enter = |steps: Vec<Step>| {
            let start = self.next();
            self.steps.extend(steps);
            start..self.next()
        };
        let (forward, backward) = (enter(block.forward), enter(block.backward));
        let shared = block.parameters.saturating_sub(block.expert_parameters);
        let groups = [(cut.mesh.replica_axis(), shared), (Axis::ExpertData, block.expert_parameters)];
        let mut messages = |phase, kind: CollectiveKind, operand: fn(BlockKind) -> Operand, width| -> Vec<u32> {
            let sent = groups.iter().filter(|(axis, parameters)| cut.mesh.size(*axis) > 1 && *parameters > 0);
            let sent = sent.map(|(axis, parameters)| {
                let collective = Collective { kind, axis: *axis, bytes: parameters.saturating_mul(width) };
                self.steps.push(Step::message(phase, collective, operand(of), 1));
                self.next() - 1
            });
            sent.collect()
        };
        let (width, gradient_width) = (cut.setup.dtype.bytes(), cut.setup.gradient_dtype.bytes());
        let (mut gather, mut scatter, mut reduce) = (Vec::new(), Vec::new(), Vec::new());
        match cut.setup.zero_stage {
            3 => {
                gather = messages(Phase::Forward, CollectiveKind::AllGather, Operand::Parameters, width);
                scatter = messages(Phase::Weight, CollectiveKind::ReduceScatter, Operand::Gradients, gradient_width);
            }
            0 => reduce = messages(Phase::Weight, CollectiveKind::AllReduce, Operand::Gradients, gradient_width),
            _ => reduce = messages(Phase::Weight, CollectiveKind::ReduceScatter, Operand::Gradients, gradient_width),
        }
        let Block { parameters, expert_parameters, partial_parameters, .. } = block;
        Listed {
            forward,
            backward,
            parameters,
            expert_parameters,
            partial_parameters,
            gather,
            scatter,
            reduce,
            weights_in_backward: true,
        }
    }

    fn next(&self) -> u32 {
        u32::try_from(self.steps.len()).unwrap_or(u32::MAX)
    }

    fn stage(&mut self, blocks: &[(u32, Listed)], split: bool, runs: &mut Runs) -> StageProgram {
        let forward = self.pass(blocks.iter(), |b| b.forward.clone(), false);
        let backward = self.pass(blocks.iter().rev(), |b| b.backward.clone(), true);
        let (mut place, mut ends) = (0, Vec::new());
        for (_, block) in blocks.iter().rev().filter(|_| self.overlap_grad_reduce) {
            place += block.backward.len();
            ends.extend((!block.reduce.is_empty()).then_some(place));
        }
        let (forward, _) = runs.merge(self, &forward, |_| true, &[]);
        let (whole, places) = runs.merge(self, &backward, |_| true, &ends);
        let backward = if split { &backward[..] } else { &[] };
        let (input, _) = runs.merge(self, backward, |phase| phase != Phase::Weight, &[]);
        let (weight, weight_places) = runs.merge(self, backward, |phase| phase == Phase::Weight, &ends);
        let buckets = blocks.iter().rev().enumerate().flat_map(|(i, (layer, block))| {
            let at = |places: &[u32]| places.get(i).copied().unwrap_or(0);
            let (place, weight_place) = (at(&places), at(&weight_places));
            block.reduce.iter().map(move |step| Bucket { step: *step, place, weight_place, layer: *layer })
        });
        StageProgram {
            forward,
            backward: whole,
            input,
            weight,
            parameters: blocks.iter().map(|(_, b)| b.parameters).sum(),
            expert_parameters: blocks.iter().map(|(_, b)| b.expert_parameters).sum(),
            partial_parameters: blocks.iter().map(|(_, b)| b.partial_parameters).sum(),
            buckets: buckets.collect(),
        }
    }

    /// The steps of blocks in an order. Under ZeRO-3 the parameters of the next block are gathered beside the present
    /// one, and gradients are scattered as soon as a block has made them.
    fn pass<'a>(
        &self,
        blocks: impl Iterator<Item = &'a (u32, Listed)>,
        steps: impl Fn(&Listed) -> std::ops::Range<u32>,
        backward: bool,
    ) -> Vec<Placed> {
        let blocks: Vec<&(u32, Listed)> = blocks.collect();
        let gathers = |i: usize| {
            let block = blocks.get(i).filter(|(_, b)| !backward || b.weights_in_backward);
            block.map_or((0, &[][..]), |(layer, block)| (*layer, &block.gather[..]))
        };
        let scatters = |block: &'a Listed| if backward { &block.scatter[..] } else { &[] };
        let mut placed = Vec::new();
        // The gathers of block `i` with `between` steps before the next block's gathers and then its own first step.
        let place_gathers = |placed: &mut Vec<Placed>, i: usize, between: usize| {
            let (layer, steps) = gathers(i);
            let behind = between + gathers(i + 1).1.len();
            let waits = |j: usize| u32::try_from(steps.len() - j + behind).unwrap_or(Placed::NEVER);
            placed.extend(steps.iter().enumerate().map(|(j, step)| Placed {
                step: *step,
                layer,
                joined_after: waits(j),
            }));
        };
        place_gathers(&mut placed, 0, 0);
        for (i, (layer, block)) in blocks.iter().enumerate() {
            let (range, scatters) = (steps(block), scatters(block));
            place_gathers(&mut placed, i + 1, range.len() + scatters.len());
            placed.extend(range.map(|step| Placed { step, layer: *layer, joined_after: self.joined_after(step) }));
            let scatter = |step: &u32| Placed { step: *step, layer: *layer, joined_after: Placed::NEVER };
            placed.extend(scatters.iter().map(scatter));
        }
        placed
    }

    fn joined_after(&self, step: u32) -> u32 {
        match self.step(step).map(|step| &step.body) {
            Some(Body::Communicate { joined_after, .. }) => u32::try_from(*joined_after).unwrap_or(Placed::NEVER),
            _ => 0,
        }
    }

    /// How much a step computes, a run's steps together.
    pub fn work(&self, index: u32) -> Work {
        let Some(step) = self.step(index) else { return Work::default() };
        let Body::Run(steps) = &step.body else { return step.work() };
        let parts = steps.iter().map(|part| self.work(part.step));
        parts.fold(Work::default(), |sum, w| Work { flops: sum.flops + w.flops, bytes: sum.bytes + w.bytes })
    }

    /// The steps that a step of the table stands for: those of a run, else itself alone.
    pub fn parts(&self, index: u32) -> impl Iterator<Item = &Step> {
        self.parts_of(index, 0).map(|(step, _)| step)
    }

    /// The same with the layer of each, where the first is of `layer`.
    pub fn parts_of(&self, index: u32, layer: u32) -> impl Iterator<Item = (&Step, u32)> {
        let step = self.step(index);
        let parts = match step.map(|step| &step.body) {
            Some(Body::Run(steps)) => steps.as_slice(),
            _ => &[],
        };
        let alone = step.filter(|_| parts.is_empty()).map(|step| (step, layer));
        let of_run = move |part: &RunPart| Some((self.step(part.step)?, layer.saturating_add_signed(part.layers)));
        alone.into_iter().chain(parts.iter().filter_map(of_run))
    }

    /// A step by its place in the table.
    pub fn step(&self, index: u32) -> Option<&Step> {
        self.steps.get(index as usize)
    }
}
