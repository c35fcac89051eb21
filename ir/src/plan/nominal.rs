//! What tasks take at nominal speed: multiplications at a share of the peak, all else at the bandwidths of the data sheet.
//!
//! One law: these times only shape the orders of the families that adapt to costs; no prediction is made of them.

use super::Context;
use crate::cluster::Cluster;
use crate::ids::LayerRange;
use crate::mesh::Mesh;
use crate::model::StagePart;
use crate::segments::{Body, Collective, Cut, Kernel, Placed, Programs, StageProgram};
use crate::unit_costs::{ChunkTimes, StageTimes};

/// Share of the peak that large matrix multiplications reach.
const EFFICIENCY: f64 = 0.75;

/// The times of stages that hold these layers, the embedding on the first and the head on the last; `None` without a
/// cluster, a model or a sequence length.
pub(super) fn times(context: &Context<'_>, layers: &[LayerRange]) -> Option<StageTimes> {
    let (cluster, model) = (context.cluster?, context.model.filter(|_| context.batch.seq_length > 0)?);
    let cut = Cut {
        model,
        mesh: context.mesh,
        setup: context.setup,
        micro_batch_size: u64::from(context.batch.micro_batch_size),
        seq_length: u64::from(context.batch.seq_length),
    };
    let last = layers.len().saturating_sub(1);
    let part = |(s, layers): (usize, &LayerRange)| StagePart { layers: *layers, embedding: s == 0, head: s == last };
    let parts: Vec<StagePart> = layers.iter().enumerate().map(part).collect();
    let programs = Programs::new(&cut, &parts, true);
    let speed = Speed::of(cluster, context);
    let stage = |stage: &StageProgram| {
        let [forward, backward_input, backward_weight] =
            [&stage.forward, &stage.input, &stage.weight].map(|list| speed.sum(&programs, list));
        ChunkTimes { forward, backward_input, backward_weight }
    };
    // Between stages a device has one interface at most; inside a node other things than bandwidth hold a message up.
    let tokens = context.batch.microbatch_tokens() / u64::from(context.mesh.context.max(1));
    let message = tokens.saturating_mul(u64::from(model.hidden_size)).saturating_mul(context.setup.dtype.bytes());
    let hop = message as f64 / cluster.hardware.inter_node.bandwidth.value;
    Some(StageTimes { stages: programs.stages.iter().map(stage).collect(), hop })
}

struct Speed {
    flops: f64,
    memory: f64,
    link: f64,
    mesh: Mesh,
}

impl Speed {
    fn of(cluster: &Cluster, context: &Context<'_>) -> Self {
        let gpu = &cluster.hardware.gpu;
        let peak = gpu.peak_flops.of(context.setup.dtype).unwrap_or(gpu.peak_flops.fp32.value);
        let in_one_node = context.mesh.devices() <= u64::from(cluster.gpus_per_node());
        Self {
            flops: peak * EFFICIENCY,
            memory: gpu.memory_bandwidth.value,
            link: if in_one_node { cluster.hardware.intra_node.bandwidth.value } else { cluster.inter_node_share() },
            mesh: *context.mesh,
        }
    }

    fn sum(&self, programs: &Programs, list: &[Placed]) -> f64 {
        list.iter().map(|placed| self.step(programs, placed.step)).sum()
    }

    fn step(&self, programs: &Programs, step: u32) -> f64 {
        match programs.step(step).map(|step| &step.body) {
            Some(Body::Compute(kernels)) => kernels.iter().map(|kernel| self.kernel(kernel)).sum(),
            Some(Body::Run(steps)) => steps.iter().map(|part| self.step(programs, part.step)).sum(),
            Some(Body::Communicate { collective, .. }) => self.collective(collective),
            None => 0.0,
        }
    }

    fn kernel(&self, kernel: &Kernel) -> f64 {
        (kernel.flops() / self.flops).max(kernel.bytes() / self.memory)
    }

    fn collective(&self, collective: &Collective) -> f64 {
        collective.sent(&self.mesh) as f64 / self.link
    }
}
