//! A worker that fails ends the run for all, at once, with an error that names rank, task and reason.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use burn::module::{Module, Param, ParamId};
use burn::tensor::{Int, Tensor};
use pipewright_exec::autodiff::AutodiffError;
use pipewright_exec::device::Device;
use pipewright_exec::error::RunError;
use pipewright_exec::optimizer::OptimizerConfig;
use pipewright_exec::run::{RunOptions, run};
use pipewright_exec::stage_module::StageModule;
use pipewright_exec::worker::Batches;
use pipewright_ir::ids::{Pipe, Stage};
use pipewright_ir::order::PipelineOrder;
use pipewright_ir::passes::{add_gradient_reduction, add_optimizer_step, add_send_recv};
use pipewright_ir::schedule::Draft;
use pipewright_ir::schedules::{ScheduleParams, find};
use pipewright_ir::workload::Workload;
use std::time::{Duration, Instant};

/// What goes wrong, on the last stage.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    Panic,
    NotFinite,
    Stall,
    Build,
}

#[derive(Module, Debug)]
struct Faulty {
    scale: Param<Tensor<1>>,
    fault: u8,
}

impl StageModule for Faulty {
    type Cache = ();

    fn embed(&self, tokens: Tensor<2, Int>, _: usize) -> Tensor<3> {
        tokens.float().unsqueeze_dim::<3>(2) * self.scale.val().unsqueeze::<3>()
    }

    fn forward(&self, hidden: Tensor<3>) -> Tensor<3> {
        if self.fault == Fault::Stall as u8 {
            std::thread::sleep(Duration::from_secs(3));
        }
        hidden * self.scale.val().unsqueeze::<3>()
    }

    fn forward_slice(&self, hidden: Tensor<3>, (): &mut ()) -> Result<Tensor<3>, AutodiffError> {
        Ok(self.forward(hidden))
    }

    fn loss(&self, hidden: Tensor<3>, _: Tensor<2, Int>) -> Tensor<1> {
        assert!(self.fault != Fault::Panic as u8, "on purpose");
        let loss = hidden.sum();
        if self.fault == Fault::NotFinite as u8 { loss * f32::NAN } else { loss }
    }

    fn parameter_names(&self) -> Vec<(ParamId, String)> {
        vec![(self.scale.id, "scale".to_owned())]
    }
}

struct Ones;

impl Batches for Ones {
    fn microbatch(&self, _: u64, _: u32, device: &Device) -> (Tensor<2, Int>, Tensor<2, Int>) {
        (Tensor::ones([1, 1], device), Tensor::ones([1, 1], device))
    }

    fn step_tokens(&self, microbatches: u32) -> u64 {
        u64::from(microbatches)
    }
}

fn fail(fault: Fault, timeout: Duration) -> (RunError, Duration) {
    let order = find("1f1b").unwrap().order(&ScheduleParams::new(3, 4, 1)).unwrap();
    fail_at(Stage::new(2), &order, fault, timeout)
}

/// Two pipes with split backwards; the last stage of the upward pipe, on rank 0, has the fault.
fn fail_in_two_pipes(fault: Fault, timeout: Duration) -> RunError {
    let csv = "0dF0,1uF0,1uI0,0dI0,1uW0,0dW0\n0uF0,1dF0,1dI0,0uI0,1dW0,0uW0\n";
    let order = PipelineOrder::from_csv(csv, 2).unwrap();
    fail_at(Stage::new(1).on(Pipe::Up), &order, fault, timeout).0
}

fn fail_at(at: Stage, order: &PipelineOrder, fault: Fault, timeout: Duration) -> (RunError, Duration) {
    let program = add_optimizer_step(add_gradient_reduction(add_send_recv(order)));
    let schedule = Draft::lower(&program, &Workload::abstract_stages(order.placement.stages())).seal().unwrap();
    let build = |stage: Stage, device: &Device| {
        if fault == Fault::Build && stage == at {
            return Err("no such layer".to_owned());
        }
        let scale = Param::from_tensor(Tensor::<1>::from_floats([1.0], device).require_grad());
        Ok(Faulty { scale, fault: if stage == at { fault as u8 } else { u8::MAX } })
    };
    let options = RunOptions {
        steps: 2,
        optimizer: OptimizerConfig::sgd(0.1),
        keep_gradients: false,
        timeout,
        count_memory: false,
    };
    let begin = Instant::now();
    let error =
        run(&schedule, &vec![Device::flex(); schedule.ranks()], &build, &Ones, &options, &mut |_, _| {}).unwrap_err();
    (error, begin.elapsed())
}

#[test]
fn a_panic_names_the_rank() {
    let (error, took) = fail(Fault::Panic, Duration::from_secs(60));
    assert!(
        matches!(&error, RunError::Panic { rank, message } if rank.0 == 2 && message.contains("on purpose")),
        "{error}"
    );
    assert!(took < Duration::from_secs(30), "nobody waits for a dead rank: {took:?}");
}

#[test]
fn a_loss_that_is_no_number_names_step_and_task() {
    let (error, _) = fail(Fault::NotFinite, Duration::from_secs(60));
    let text = error.to_string();
    assert!(
        text.contains("rank 2") && text.contains("2F0") && text.contains("step 0") && text.contains("NaN"),
        "{text}"
    );
}

#[test]
fn a_stalled_peer_names_what_was_waited_for() {
    let (error, _) = fail(Fault::Stall, Duration::from_millis(200));
    let text = error.to_string();
    assert!(text.contains("RECV_B0") && text.contains("waited"), "{text}");
}

#[test]
fn a_stage_that_cannot_be_built_names_the_stage() {
    let (error, _) = fail(Fault::Build, Duration::from_secs(60));
    assert!(error.to_string().contains("rank 2 could not build stage 2: no such layer"), "{error}");
}

#[test]
fn faults_name_the_stage_s_pipe() {
    let text = fail_in_two_pipes(Fault::NotFinite, Duration::from_secs(60)).to_string();
    assert!(text.contains("rank 0") && text.contains("1uF0") && text.contains("NaN"), "{text}");
    let text = fail_in_two_pipes(Fault::Stall, Duration::from_secs(1)).to_string();
    assert!(text.contains("rank 1") && text.contains("0uRECV_B0") && text.contains("of stage 1u"), "{text}");
    let error = fail_in_two_pipes(Fault::Panic, Duration::from_secs(60));
    assert!(matches!(&error, RunError::Panic { rank, .. } if rank.0 == 0), "{error}");
}
