//! Small lawful programs with everything in them: messages, reductions, an optimizer.

use super::random::Random;
use super::split::split_backward;
use pipewright::ir::order::PipelineOrder;
use pipewright::ir::passes::{add_gradient_reduction, add_optimizer_step, add_send_recv, add_tied_reduction};
use pipewright::ir::schedules::{Chunks, Family, ScheduleParams};
use pipewright::ir::workload::{StageWorkload, Workload};

/// A program of a family on up to 4 ranks, with any of its knobs set.
pub(crate) fn small_program(family: &Family, random: &mut Random) -> PipelineOrder {
    loop {
        let v = if family.chunks == Chunks::Two { 2 } else { family.default_chunks(Some(random.between(1, 3))) };
        let (p, m) = (random.between(1, 4), random.between(1, 8));
        let mut params = ScheduleParams::new(p, m, v);
        params.microbatch_group_size = (family.knobs.group && random.below(2) == 0).then(|| random.between(1, m));
        params.num_seq_splits = family.knobs.slices.then(|| random.pick(&[1, 2, 3]));
        let limited = family.knobs.limit && random.below(2) == 0;
        params.max_activations = limited.then(|| vec![f64::from(random.between(1, 2 * p)); p as usize]);
        let Ok(order) = family.order(&params) else { continue };
        let order = if random.below(3) == 0 { split_backward(&order, random.below(4)) } else { order };
        let order = add_send_recv(&order);
        let order = if random.below(4) > 0 { add_gradient_reduction(order) } else { order };
        let order = if random.below(2) == 0 { add_tied_reduction(order) } else { order };
        return if random.below(4) > 0 { add_optimizer_step(order) } else { order };
    }
}

/// A size for everything.
pub(crate) fn weighted(stages: u32) -> Workload {
    let stage =
        StageWorkload { activations: 7, output: 3, gradients: 5, parameters: 5, tied: 2, ..StageWorkload::default() };
    Workload { stages: vec![stage; stages as usize], ..Workload::default() }
}
