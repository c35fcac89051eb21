//! From a scenario's switches to a [`Setup`]: the defaults.
//!
//! One law: without a cluster the defaults are what the executor does; with one they are what its GPUs are used with.

use crate::cluster::Cluster;
use crate::fault::Fault;
use crate::mesh::Mesh;
use crate::scenario::{Attention, Dtype, Recompute, Scenario, SequenceParallel};
use crate::setup::Setup;

/// Norm to which Megatron clips gradients unless told otherwise.
const MEGATRON_CLIP_GRAD: f64 = 1.0;
/// Megatron's rates of dropout unless told otherwise.
const MEGATRON_DROPOUT: f64 = 0.1;

pub(super) fn resolve(scenario: &Scenario, cluster: Option<&Cluster>, mesh: &Mesh, faults: &mut Vec<Fault>) -> Setup {
    let parallel = &scenario.parallel;
    let habits = cluster.map(|cluster| cluster.hardware.training.clone()).unwrap_or_default();
    let training = scenario.training.or(&habits);
    let gpu = cluster.map(|cluster| &cluster.hardware.gpu);
    let dtype = training.dtype.unwrap_or(match gpu {
        Some(gpu) if gpu.peak_flops.of(Dtype::Bf16).is_some() => Dtype::Bf16,
        Some(gpu) if gpu.peak_flops.of(Dtype::Fp16).is_some() => Dtype::Fp16,
        Some(_) | None => Dtype::Fp32,
    });
    // Megatron accumulates in fp32 with bf16 unless told otherwise, and with fp16 only when told so.
    let gradient_dtype = training.gradient_dtype.unwrap_or(match dtype {
        Dtype::Fp16 => Dtype::Fp16,
        Dtype::Fp32 | Dtype::Bf16 => Dtype::Fp32,
    });
    let attention = training.attention.unwrap_or(match gpu {
        Some(gpu) if gpu.has_flash_attention() && dtype != Dtype::Fp32 => Attention::Flash,
        Some(_) | None => Attention::Standard,
    });
    let clip_grad = training.clip_grad.or(cluster.map(|_| MEGATRON_CLIP_GRAD));
    if let Some(norm) = clip_grad.filter(|norm| !(norm.is_finite() && *norm >= 0.0)) {
        let message = format!("training.clip_grad is {norm}; a norm is 0 (off) or more");
        faults.push(Fault::new("training.clip_grad", "setup::clip-grad", message, "use 1.0, or 0 to turn it off"));
    }
    let (sequence_parallel, megatron_sequence_parallel) = sequence_parallel(scenario, mesh);
    let off = |switch: Option<bool>| switch.unwrap_or(false);
    let on = |switch: Option<bool>| switch.unwrap_or(true);
    let usual = if off(training.dropout) { MEGATRON_DROPOUT } else { 0.0 };
    let mut rate = |key: &str, written: Option<f64>| {
        let rate = written.unwrap_or(usual);
        if !(0.0..1.0).contains(&rate) {
            let path = format!("training.{key}");
            let message = format!("{path} is {rate}; a rate is from 0 to below 1");
            let help = if rate < 0.0 { "use 0 (off)" } else { "use less than 1; 0.1 is usual" };
            faults.push(Fault::new(path, "setup::dropout", message, help));
        }
        rate
    };
    Setup {
        dtype,
        gradient_dtype,
        recompute: match training.recompute.as_ref().map(|r| r.as_slice()) {
            None | Some([]) => vec![Recompute::None],
            Some(stages) => stages.to_vec(),
        },
        attention,
        sequence_parallel,
        megatron_sequence_parallel,
        zero_stage: parallel.zero_stage.unwrap_or(0).min(3),
        hidden_dropout: rate("hidden_dropout", training.hidden_dropout),
        attention_dropout: rate("attention_dropout", training.attention_dropout),
        clip_grad: clip_grad.filter(|norm| *norm > 0.0),
        overlap_grad_reduce: off(training.overlap_grad_reduce),
        overlap_param_gather: off(training.overlap_param_gather),
        tp_comm_overlap: off(training.tp_comm_overlap),
        overlap_p2p: training.overlap_p2p_comm.unwrap_or(true),
        cross_entropy_fusion: off(training.cross_entropy_fusion),
        masked_softmax_fusion: on(training.masked_softmax_fusion),
        gradient_accumulation_fusion: on(training.gradient_accumulation_fusion),
        async_tensor_model_parallel_allreduce: on(training.async_tensor_model_parallel_allreduce),
    }
}

/// The kind over the context-parallel ranks, else Megatron's or none; and whether Megatron's is on.
fn sequence_parallel(scenario: &Scenario, mesh: &Mesh) -> (SequenceParallel, bool) {
    let kinds = scenario.parallel.sequence_parallel.as_ref().map_or(&[][..], |kinds| kinds.as_slice());
    let megatron = kinds.contains(&SequenceParallel::Megatron);
    let kind = match kinds.iter().copied().find(|kind| kind.is_over_context()) {
        Some(kind) => kind,
        // As in Megatron-core, whose `cp_comm_type` is a zigzag ring unless told otherwise.
        None if mesh.context > 1 => SequenceParallel::Ring,
        None if megatron => SequenceParallel::Megatron,
        None => SequenceParallel::None,
    };
    (kind, megatron)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Training;

    fn rates(training: Training) -> ([f64; 2], bool, Vec<Fault>) {
        let scenario = Scenario { training, ..Scenario::default() };
        let mut faults = Vec::new();
        let setup = resolve(&scenario, None, &Mesh::default(), &mut faults);
        ([setup.hidden_dropout, setup.attention_dropout], setup.dropout(), faults)
    }

    #[test]
    fn dropout_is_a_tenth_where_it_is_on_and_no_rate_is_written() {
        let dropout = Some(true);
        assert_eq!(rates(Training::default()), ([0.0, 0.0], false, Vec::new()));
        assert_eq!(rates(Training { dropout, ..Training::default() }), ([0.1, 0.1], true, Vec::new()));
        let hidden = Training { hidden_dropout: Some(0.2), ..Training::default() };
        assert_eq!(rates(hidden.clone()), ([0.2, 0.0], true, Vec::new()), "a rate turns it on");
        assert_eq!(rates(Training { dropout, ..hidden }), ([0.2, 0.1], true, Vec::new()));
        let off = Training { dropout, attention_dropout: Some(0.0), ..Training::default() };
        assert_eq!(rates(off).0, [0.1, 0.0]);
    }

    #[test]
    fn a_rate_is_from_0_to_below_1() {
        for (rate, help) in [(-0.5, "use 0"), (1.0, "less than 1"), (f64::NAN, "less than 1")] {
            let (_, _, faults) = rates(Training { attention_dropout: Some(rate), ..Training::default() });
            assert_eq!((faults.len(), faults[0].path.as_str()), (1, "training.attention_dropout"));
            assert!(faults[0].help.contains(help), "{faults:?}");
        }
    }
}
