//! Field case A9 through the real executor: gradients do not depend on how the batch was cut.
//!
//! Two stages, `y = u (w x)`, loss of a microbatch = `y`, `w = 2`, `u = 3`, loss of the step = mean over microbatches.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

use burn::module::{Module, Param, ParamId};
use burn::tensor::{Int, Tensor};
use pipewright_exec::autodiff::AutodiffError;
use pipewright_exec::device::Device;
use pipewright_exec::optimizer::OptimizerConfig;
use pipewright_exec::reference::{self, Reference};
use pipewright_exec::run::{Run, RunOptions, run};
use pipewright_exec::stage_module::StageModule;
use pipewright_exec::worker::Batches;
use pipewright_ir::ids::Stage;
use pipewright_ir::passes::{accumulate, add_optimizer_step, add_send_recv};
use pipewright_ir::schedule::Draft;
use pipewright_ir::schedules::{ScheduleParams, find};
use pipewright_ir::workload::Workload;
use std::time::Duration;

#[derive(Module, Debug)]
struct Scalar {
    w: Option<Param<Tensor<1>>>,
    u: Option<Param<Tensor<1>>>,
}

impl Scalar {
    /// `w` on the first stage, `u` on the last.
    fn new(w: Option<f32>, u: Option<f32>, device: &Device) -> Self {
        let scalar = |value: f32| Param::from_tensor(Tensor::<1>::from_floats([value], device).require_grad());
        Self { w: w.map(scalar), u: u.map(scalar) }
    }
}

impl StageModule for Scalar {
    type Cache = ();

    fn embed(&self, tokens: Tensor<2, Int>, _: usize) -> Tensor<3> {
        let w = self.w.as_ref().expect("the first stage has w").val();
        tokens.float().unsqueeze_dim::<3>(2) * w.unsqueeze::<3>()
    }

    fn forward(&self, hidden: Tensor<3>) -> Tensor<3> {
        hidden
    }

    fn forward_slice(&self, hidden: Tensor<3>, (): &mut ()) -> Result<Tensor<3>, AutodiffError> {
        Ok(self.forward(hidden))
    }

    fn loss(&self, hidden: Tensor<3>, _: Tensor<2, Int>) -> Tensor<1> {
        let u = self.u.as_ref().expect("the last stage has u").val();
        (hidden * u.unsqueeze::<3>()).sum()
    }

    fn parameter_names(&self) -> Vec<(ParamId, String)> {
        let named = |p: &Option<Param<Tensor<1>>>, name: &str| p.as_ref().map(|p| (p.id, name.to_owned()));
        named(&self.w, "w").into_iter().chain(named(&self.u, "u")).collect()
    }
}

/// Microbatch `k` is the number `k + 1`.
struct Numbers;

impl Batches for Numbers {
    fn microbatch(&self, _: u64, microbatch: u32, device: &Device) -> (Tensor<2, Int>, Tensor<2, Int>) {
        let x = Tensor::<2, Int>::from_ints([[microbatch as i32 + 1]], device);
        (x.clone(), x)
    }

    fn step_tokens(&self, microbatches: u32) -> u64 {
        u64::from(microbatches)
    }
}

fn pipeline(family: &str, p: u32, v: u32, m: u32, rounds: u32) -> Run {
    let order = find(family).unwrap().order(&ScheduleParams::new(p, m, v)).unwrap();
    let program = add_optimizer_step(add_send_recv(&accumulate(&order, rounds)));
    let schedule = Draft::lower(&program, &Workload::abstract_stages(p * v)).seal().unwrap();
    let build = |stage: Stage, device: &Device| {
        Ok(Scalar::new((stage.number() == 0).then_some(2.0), (stage.number() + 1 == p * v).then_some(3.0), device))
    };
    run(&schedule, &vec![Device::flex(); p as usize], &build, &Numbers, &options(), &mut |_, _| {}).unwrap()
}

fn options() -> RunOptions {
    RunOptions {
        steps: 1,
        optimizer: OptimizerConfig::sgd(0.0),
        keep_gradients: true,
        timeout: Duration::from_secs(60),
        count_memory: false,
    }
}

fn one_device(microbatches: u32) -> Reference {
    let device = Device::flex().autodiff();
    let options = reference::Options { microbatches, steps: 1, optimizer: OptimizerConfig::sgd(0.0), keep: 1 };
    reference::train(Scalar::new(Some(2.0), Some(3.0), &device), &device, &Numbers, &options, &mut |_, _| {}).unwrap()
}

fn gradient(gradients: &[Vec<(String, Vec<f32>)>], name: &str) -> f32 {
    gradients[0].iter().find(|(n, _)| n == name).unwrap().1[0]
}

const SCHEDULES: [(&str, u32, u32); 5] =
    [("naive", 2, 1), ("gpipe", 2, 1), ("1f1b", 2, 1), ("eager-1f1b", 2, 1), ("interleaved-1f1b", 1, 2)];

#[test]
fn a9_step_a_four_microbatches() {
    for (family, p, v) in SCHEDULES {
        let run = pipeline(family, p, v, 4, 1);
        assert_eq!((gradient(&run.gradients, "w"), gradient(&run.gradients, "u")), (7.5, 5.0), "{family}");
        assert_eq!(run.losses, [15.0], "mean of 6, 12, 18, 24");
    }
    let reference = one_device(4);
    assert_eq!((gradient(&reference.gradients, "w"), gradient(&reference.gradients, "u")), (7.5, 5.0));
}

#[test]
fn a9_step_b_two_accumulation_rounds() {
    for (family, p, v) in SCHEDULES {
        let run = pipeline(family, p, v, 4, 2);
        assert_eq!((gradient(&run.gradients, "w"), gradient(&run.gradients, "u")), (13.5, 9.0), "{family}");
    }
    let reference = one_device(8);
    assert_eq!((gradient(&reference.gradients, "w"), gradient(&reference.gradients, "u")), (13.5, 9.0));
}

/// Microbatches of three tokens and of one, whose token losses sum to 3 and to 5: 2.0 a token. The mean of the two
/// microbatches' own means would be 3.0.
#[test]
fn a9_the_loss_is_a_mean_over_tokens_and_not_over_microbatches() {
    struct Uneven;
    impl Batches for Uneven {
        fn microbatch(&self, _: u64, microbatch: u32, device: &Device) -> (Tensor<2, Int>, Tensor<2, Int>) {
            let x = match microbatch {
                0 => Tensor::<2, Int>::from_ints([[0, 1, 2]], device),
                _ => Tensor::<2, Int>::from_ints([[5]], device),
            };
            (x.clone(), x)
        }

        fn step_tokens(&self, _: u32) -> u64 {
            4
        }
    }
    let order = find("1f1b").unwrap().order(&ScheduleParams::new(2, 2, 1)).unwrap();
    let program = add_optimizer_step(add_send_recv(&order));
    let schedule = Draft::lower(&program, &Workload::abstract_stages(2)).seal().unwrap();
    let build = |stage: Stage, device: &Device| {
        Ok(Scalar::new((stage.number() == 0).then_some(1.0), (stage.number() == 1).then_some(1.0), device))
    };
    let result = run(&schedule, &vec![Device::flex(); 2], &build, &Uneven, &options(), &mut |_, _| {}).unwrap();
    assert_eq!(result.losses, [2.0]);
    assert_eq!((gradient(&result.gradients, "w"), gradient(&result.gradients, "u")), (2.0, 2.0));

    let device = Device::flex().autodiff();
    let options = reference::Options { microbatches: 2, steps: 1, optimizer: OptimizerConfig::sgd(0.0), keep: 1 };
    let module = Scalar::new(Some(1.0), Some(1.0), &device);
    let reference = reference::train(module, &device, &Uneven, &options, &mut |_, _| {}).unwrap();
    assert_eq!(reference.losses, [2.0]);
}
