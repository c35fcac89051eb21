//! Field cases A9 and A10 through the real executor: gradients do not depend on how the batch was cut, and a tied weight
//! gets the gradients of both its ends, once.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "support/scalar.rs"]
mod scalar;

use burn::tensor::Device;
use pipewright_exec::optimizer::OptimizerConfig;
use pipewright_exec::run::{Job, Run, RunOptions, run};
use pipewright_exec::worker::Batches;
use pipewright_ir::ids::Stage;
use pipewright_ir::mesh::Mesh;
use pipewright_ir::order::PipelineOrder;
use pipewright_ir::passes::{
    accumulate, add_data_reduction, add_gradient_clipping, add_optimizer_step, add_parameter_gather, add_send_recv,
    add_tied_reduction,
};
use pipewright_ir::schedule::Draft;
use pipewright_ir::schedules::{ScheduleParams, find};
use pipewright_ir::setup::Setup;
use pipewright_ir::workload::Workload;
use scalar::{Scalar, programs};
use std::time::Duration;

/// Microbatch `k` is the number `k + 1`.
struct Numbers;

impl Batches for Numbers {
    fn microbatch(&self, _: u64, microbatch: u64) -> (Vec<u32>, Vec<u32>) {
        let x = vec![u32::try_from(microbatch).unwrap() + 1];
        (x.clone(), x)
    }

    fn sequences(&self) -> u64 {
        1
    }

    fn seq_length(&self) -> usize {
        1
    }
}

/// Runs one step of a whole program, the numbers unchanged.
fn step(
    program: &PipelineOrder,
    mesh: &Mesh,
    setup: &Setup,
    batches: &impl Batches,
    build: impl Fn(Stage, usize) -> Scalar + Sync,
) -> Run {
    let stages = program.placement.stages();
    let programs = programs(stages);
    let schedule = Draft::lower(program, &Workload::abstract_stages(stages)).seal().unwrap().segmented(&programs);
    let options = RunOptions {
        steps: 1,
        optimizer: OptimizerConfig::sgd(0.0),
        keep_gradients: true,
        timeout: Duration::from_secs(60),
        count_memory: false,
    };
    let job = Job { schedule: &schedule, programs: &programs, mesh, setup };
    let devices = vec![Device::flex(); usize::try_from(mesh.devices()).unwrap()];
    let build = |stage: Stage, device: usize, _: &Device| Ok(build(stage, device));
    run(job, &devices, &build, batches, &options, &mut |_, _| {}).unwrap()
}

/// `y = u (w x)`: `w` on the first stage, `u` on the last, 1 between.
fn pipeline(family: &str, [p, v, m]: [u32; 3], rounds: u32, [w, u]: [f32; 2], batches: &impl Batches) -> Run {
    let order = find(family).unwrap().order(&ScheduleParams::new(p, m, v)).unwrap();
    let program = add_optimizer_step(add_send_recv(&accumulate(&order, rounds)));
    let last = order.placement.stages() - 1;
    let build = |stage: Stage, _| match stage.number() {
        0 => Scalar::new("w", w, false, &Device::flex()),
        s if s == last => Scalar::new("u", u, true, &Device::flex()),
        s => Scalar::new(&format!("between {s}"), 1.0, false, &Device::flex()),
    };
    step(&program, &Mesh { pipeline: p, ..Mesh::default() }, &Setup::default(), batches, build)
}

fn gradients(run: &Run, names: [&str; 2]) -> [f32; 2] {
    names.map(|name| run.gradients[0].iter().find(|(n, _)| n == name).unwrap().1[0])
}

const SCHEDULES: [(&str, u32, u32); 7] = [
    ("naive", 2, 1),
    ("gpipe", 2, 1),
    ("1f1b", 2, 1),
    ("eager-1f1b", 2, 1),
    ("interleaved-1f1b", 1, 2),
    ("zb-h1", 2, 1),
    ("zb-v", 2, 2),
];

/// Known wrong answers: 30 and 20 (sums), 1.875 (scaled on every stage), 10.6875 (divided again in each round).
#[test]
fn a9_four_microbatches_and_two_rounds_give_means() {
    for (family, p, v) in SCHEDULES {
        let run = pipeline(family, [p, v, 4], 1, [2.0, 3.0], &Numbers);
        assert_eq!(gradients(&run, ["w", "u"]), [7.5, 5.0], "{family}");
        assert_eq!(run.losses, [15.0], "mean of 6, 12, 18, 24");
        let run = pipeline(family, [p, v, 4], 2, [2.0, 3.0], &Numbers);
        assert_eq!(gradients(&run, ["w", "u"]), [13.5, 9.0], "{family}");
    }
}

/// The same with the microbatches over two replicas.
#[test]
fn a9_replicas_give_the_same_means() {
    let order = find("1f1b").unwrap().order(&ScheduleParams::new(2, 2, 1)).unwrap();
    for zero_stage in [0, 1, 2] {
        let mut program = add_optimizer_step(add_data_reduction(add_send_recv(&order)));
        if zero_stage > 0 {
            program = add_parameter_gather(program);
        }
        let mesh = Mesh { pipeline: 2, data: 2, ..Mesh::default() };
        let setup = Setup { zero_stage, ..Setup::default() };
        let run = step(&program, &mesh, &setup, &Numbers, |stage, _| match stage.number() {
            0 => Scalar::new("w", 2.0, false, &Device::flex()),
            _ => Scalar::new("u", 3.0, true, &Device::flex()),
        });
        assert_eq!(gradients(&run, ["w", "u"]), [7.5, 5.0], "ZeRO {zero_stage}");
        assert_eq!(run.losses, [15.0]);
    }
}

/// Microbatches of three tokens and of one, whose token losses sum to 3 and to 5: 2.0 a token. The mean of the two
/// microbatches' own means would be 3.0.
#[test]
fn a9_the_loss_is_a_mean_over_tokens_and_not_over_microbatches() {
    struct Uneven;
    impl Batches for Uneven {
        fn microbatch(&self, _: u64, microbatch: u64) -> (Vec<u32>, Vec<u32>) {
            let x = if microbatch == 0 { vec![0, 1, 2] } else { vec![5] };
            (x.clone(), x)
        }

        fn sequences(&self) -> u64 {
            1
        }

        fn seq_length(&self) -> usize {
            3
        }

        fn step_tokens(&self, _: u64) -> u64 {
            4
        }
    }
    let run = pipeline("1f1b", [2, 1, 2], 1, [1.0, 1.0], &Uneven);
    assert_eq!(run.losses, [2.0]);
    assert_eq!(gradients(&run, ["w", "u"]), [2.0, 2.0]);
}

/// One tied weight, local gradients 1 and 3 of the replicas of the first stage, 5 and 7 of the last: the means are 2 and 6,
/// their sum 8 on every owner, and the norm of it counts the weight once. Wrong: 7 and 9 (ends summed before replicas),
/// a norm of 11.31 (both copies counted).
#[test]
fn a10_a_tied_weight_gets_both_ends_and_counts_once() {
    let order = find("1f1b").unwrap().order(&ScheduleParams::new(2, 2, 1)).unwrap();
    for zero_stage in [0, 1] {
        let reduced = add_tied_reduction(add_data_reduction(add_send_recv(&order)));
        let mut program = add_optimizer_step(add_gradient_clipping(reduced));
        if zero_stage > 0 {
            program = add_parameter_gather(program);
        }
        let mesh = Mesh { pipeline: 2, data: 2, ..Mesh::default() };
        let setup = Setup { zero_stage, clip_grad: Some(100.0), ..Setup::default() };
        let run = step(&program, &mesh, &setup, &Numbers, |stage, device| {
            let replica = mesh.coordinate(device as u64, pipewright_ir::mesh::Axis::Data);
            let local = [[1.0, 3.0], [5.0, 7.0]][stage.index()][replica as usize];
            let mut scalar = Scalar::new("tied", 1.0, stage.number() == 1, &Device::flex());
            scalar.tied = true;
            // Two microbatches of one replica of two: the mean over replicas is in each one's share.
            scalar.fixed = Some(local / 2.0 / 2.0);
            scalar
        });
        let tied: Vec<_> = run.gradients[0].iter().filter(|(name, _)| name == "tied").map(|(_, g)| g[0]).collect();
        assert_eq!(tied, [8.0], "ZeRO {zero_stage}: every owner has the same");
        assert_eq!(run.norms, [8.0], "ZeRO {zero_stage}");
    }
}
