//! The steps of whole stages: block after block, with ZeRO-3's gathers and scatters between them.

use super::kernel::{Collective, CollectiveKind};
use super::{Block, Body, Cut, Phase, Step};
use crate::mesh::Axis;
use crate::model::StagePart;
use crate::scenario::Recompute;

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
    /// B. I is all of it but [`Phase::Weight`], W the rest.
    pub backward: Vec<Placed>,
    /// Parameters on one rank, before ZeRO shards them.
    pub parameters: u64,
    /// Those of them that are of experts.
    pub expert_parameters: u64,
    /// The gradients of each block on their way over the replicas, in the order of the backward: empty with one replica,
    /// and under ZeRO-3, which scatters them in the backward itself.
    pub buckets: Vec<Bucket>,
}

/// The gradients of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Which of [`Programs::steps`] reduces them.
    pub step: u32,
    /// The place in the backward behind which they are complete.
    pub place: u32,
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
    /// ZeRO-3: the gather of its parameters and the scatter of its gradients.
    gather: Option<u32>,
    scatter: Option<u32>,
    /// Otherwise, with several replicas: the reduction of its gradients.
    reduce: Option<u32>,
}

impl Programs {
    /// The programs of stages that hold `parts`.
    pub fn new(cut: &Cut<'_>, parts: &[StagePart]) -> Self {
        let mut programs = Self { overlap_grad_reduce: cut.setup.overlap_grad_reduce, ..Self::default() };
        let mut layers: Vec<((Recompute, bool), Listed)> = Vec::new();
        let embedding = programs.list(cut, cut.embedding());
        let head = programs.list(cut, cut.head());
        let dense = cut.model.mixture_of_experts.map_or(u32::MAX, |moe| moe.first_dense_layers);
        for (s, part) in parts.iter().enumerate() {
            let mut blocks: Vec<(u32, Listed)> = Vec::new();
            if part.embedding {
                blocks.push((part.layers.start, embedding.clone()));
            }
            for layer in part.layers.start..part.layers.end {
                let kind = (cut.setup.recompute_of(s), layer >= dense);
                let known = layers.iter().find(|(k, _)| *k == kind).map(|(_, listed)| listed.clone());
                let listed = known.unwrap_or_else(|| {
                    let listed = programs.list(cut, cut.layer(kind.0, kind.1));
                    let (forward, backward) = (listed.forward.start, listed.backward.start);
                    programs.layers.push(LayerSteps { forward, backward, recompute: kind.0 });
                    layers.push((kind, listed.clone()));
                    listed
                });
                blocks.push((layer, listed));
            }
            if part.head {
                blocks.push((part.layers.end.saturating_sub(1), head.clone()));
            }
            let mut stage = programs.stage(&blocks);
            if part.embedding && part.head && !cut.model.untie_embeddings_and_output_weights {
                // The head multiplies by the embedding's own weight.
                stage.parameters -= cut.vocabulary() * cut.hidden();
            }
            programs.stages.push(stage);
        }
        programs
    }

    /// Enters a block's steps into the table.
    fn list(&mut self, cut: &Cut<'_>, block: Block) -> Listed {
        let mut enter = |steps: Vec<Step>| {
            let start = self.next();
            self.steps.extend(steps);
            start..self.next()
        };
        let (forward, backward) = (enter(block.forward), enter(block.backward));
        let mut message = |phase, kind, width| {
            let bytes = block.parameters.saturating_mul(width);
            let collective = Collective { kind, axis: Axis::Data, bytes };
            let body = Body::Communicate { collective, joined_after: 1 };
            self.steps.push(Step { phase, name: kind.name(), body });
            self.next() - 1
        };
        let replicas = cut.mesh.data > 1;
        let sharded = replicas && cut.setup.zero_stage == 3;
        let gather = sharded.then(|| message(Phase::Forward, CollectiveKind::AllGather, cut.setup.dtype.bytes()));
        let width = cut.setup.gradient_dtype.bytes();
        let scatter = sharded.then(|| message(Phase::Weight, CollectiveKind::ReduceScatter, width));
        let kind = if cut.setup.zero_stage == 0 { CollectiveKind::AllReduce } else { CollectiveKind::ReduceScatter };
        let reduce = (replicas && !sharded).then(|| message(Phase::Weight, kind, width));
        let (parameters, expert_parameters) = (block.parameters, block.expert_parameters);
        Listed { forward, backward, parameters, expert_parameters, gather, scatter, reduce }
    }

    fn next(&self) -> u32 {
        u32::try_from(self.steps.len()).unwrap_or(u32::MAX)
    }

    fn stage(&self, blocks: &[(u32, Listed)]) -> StageProgram {
        let forward = self.pass(blocks.iter(), |b| b.forward.clone(), false);
        let backward = self.pass(blocks.iter().rev(), |b| b.backward.clone(), true);
        let mut place = 0;
        let mut buckets = Vec::new();
        for (layer, block) in blocks.iter().rev() {
            place += block.backward.end - block.backward.start;
            let last = place.saturating_sub(1);
            buckets.extend(block.reduce.map(|step| Bucket { step, place: last, layer: *layer }));
        }
        let parameters = blocks.iter().map(|(_, b)| b.parameters).sum();
        let expert_parameters = blocks.iter().map(|(_, b)| b.expert_parameters).sum();
        StageProgram { forward, backward, parameters, expert_parameters, buckets }
    }

    /// The steps of blocks in an order. Under ZeRO-3 the parameters of the next block are gathered beside the present
    /// one, and gradients are scattered as soon as a block has made them.
    fn pass<'a>(
        &self,
        blocks: impl Iterator<Item = &'a (u32, Listed)>,
        steps: impl Fn(&Listed) -> std::ops::Range<u32>,
        backward: bool,
    ) -> Vec<Placed> {
        let mut placed = Vec::new();
        let mut blocks = blocks.peekable();
        let gather =
            |block: &Listed, layer, joined_after| block.gather.map(|step| Placed { step, layer, joined_after });
        placed.extend(blocks.peek().and_then(|(layer, block)| gather(block, *layer, 1)));
        while let Some((layer, block)) = blocks.next() {
            let range = steps(block);
            let scatter = block.scatter.filter(|_| backward);
            let length = range.end - range.start + u32::from(scatter.is_some());
            placed.extend(blocks.peek().and_then(|(next, block)| gather(block, *next, length + 1)));
            placed.extend(range.map(|step| Placed { step, layer: *layer, joined_after: self.joined_after(step) }));
            placed.extend(scatter.map(|step| Placed { step, layer: *layer, joined_after: Placed::NEVER }));
        }
        placed
    }

    fn joined_after(&self, step: u32) -> u32 {
        match self.step(step).map(|step| &step.body) {
            Some(Body::Communicate { joined_after, .. }) => u32::try_from(*joined_after).unwrap_or(Placed::NEVER),
            _ => 0,
        }
    }

    /// A step by its place in the table.
    pub fn step(&self, index: u32) -> Option<&Step> {
        self.steps.get(index as usize)
    }
}
