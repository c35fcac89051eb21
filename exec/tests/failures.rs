//! A worker that fails ends the run for all, at once, with an error that names rank, task and reason.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed, and one fault is a panic")]

#[path = "support/scalar.rs"]
mod scalar;

use burn::tensor::Device;
use pipewright_exec::error::RunError;
use pipewright_exec::optimizer::OptimizerConfig;
use pipewright_exec::run::{Job, RunOptions, run};
use pipewright_exec::worker::Batches;
use pipewright_ir::ids::{Pipe, Stage};
use pipewright_ir::mesh::Mesh;
use pipewright_ir::order::PipelineOrder;
use pipewright_ir::passes::{add_gradient_reduction, add_optimizer_step, add_send_recv};
use pipewright_ir::schedule::Draft;
use pipewright_ir::schedules::{ScheduleParams, find};
use pipewright_ir::setup::Setup;
use pipewright_ir::workload::Workload;
use scalar::{Scalar, programs};
use std::time::{Duration, Instant};

/// What goes wrong, on the last stage.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    Panic,
    NotFinite,
    Stall,
    Build,
}

struct Ones;

impl Batches for Ones {
    fn microbatch(&self, _: u64, _: u64) -> (Vec<u32>, Vec<u32>) {
        (vec![1], vec![1])
    }

    fn sequences(&self) -> u64 {
        1
    }

    fn seq_length(&self) -> usize {
        1
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
    let programs = programs(order.placement.stages());
    let schedule = Draft::lower(&program, &Workload::abstract_stages(order.placement.stages())).seal().unwrap();
    let schedule = schedule.segmented(&programs);
    let build = |stage: Stage, _: usize, device: &Device| {
        if fault == Fault::Build && stage == at {
            return Err("no such layer".to_owned());
        }
        let mut scalar = Scalar::new(&stage.to_string(), 1.0, schedule.placement().is_last(stage), device);
        match fault {
            _ if stage != at => {}
            Fault::Panic => scalar.before = Box::new(|| panic!("on purpose")),
            Fault::Stall => scalar.before = Box::new(|| std::thread::sleep(Duration::from_secs(3))),
            _ => scalar.spoil = f64::NAN,
        }
        Ok(scalar)
    };
    let options = RunOptions {
        steps: 2,
        optimizer: OptimizerConfig::sgd(0.1),
        keep_gradients: false,
        timeout,
        count_memory: false,
    };
    let begin = Instant::now();
    let (mesh, setup) = (Mesh { pipeline: order.placement.ranks(), ..Mesh::default() }, Setup::default());
    let job = Job { schedule: &schedule, programs: &programs, mesh: &mesh, setup: &setup };
    let error = run(job, &vec![Device::flex(); schedule.ranks()], &build, &Ones, &options, &mut |_, _| {}).unwrap_err();
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
