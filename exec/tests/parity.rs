//! Splitting changes nothing: every schedule's losses, gradients and parameters against one device.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use pipewright_exec::data::TextData;
use pipewright_exec::device::Device;
use pipewright_exec::optimizer::OptimizerConfig;
use pipewright_exec::reference::{self, Reference};
use pipewright_exec::run::{Job, Run, RunOptions, run};
use pipewright_exec::transformer::{StageSpec, Transformer, on_one_device};
use pipewright_exec::verify::{Comparison, compare};
use pipewright_exec::worker::TextBatches;
use pipewright_ir::action::{Action, Op};
use pipewright_ir::ids::{LayerRange, Microbatch, Rank, Stage};
use pipewright_ir::mesh::Mesh;
use pipewright_ir::model::{ModelShape, StagePart};
use pipewright_ir::order::PipelineOrder;
use pipewright_ir::passes::{
    accumulate, add_gradient_reduction, add_optimizer_step, add_send_recv, add_tied_reduction,
};
use pipewright_ir::plan::even_layout;
use pipewright_ir::schedule::{Draft, Schedule};
use pipewright_ir::schedules::{FAMILIES, Family, ScheduleParams, find};
use pipewright_ir::segments::{Cut, Programs};
use pipewright_ir::setup::Setup;
use pipewright_ir::task::Lane;
use pipewright_ir::workload::Workload;
use std::path::Path;
use std::time::Duration;

const STEPS: u64 = 3;
const LR: f64 = 1e-2;

/// A tiny model and its batches.
struct Case {
    shape: ModelShape,
    batches: TextBatches,
    optimizer: OptimizerConfig,
}

impl Case {
    fn new(layers: u32, tied: bool, optimizer: OptimizerConfig) -> Self {
        let shape =
            ModelShape { untie_embeddings_and_output_weights: !tied, ..ModelShape::gpt(layers, 16, 2, 256, 12) };
        let text: Vec<u8> = (0..997_u32).map(|i| (i * i % 251) as u8).collect();
        let text = TextData::from_bytes(text, Path::new("test"), 12, 5).unwrap();
        Self { shape, batches: TextBatches { text, micro_batch_size: 2 }, optimizer }
    }

    fn reference(&self, microbatches: u32) -> Reference {
        self.following(microbatches, &[])
    }

    /// One device, each step from the parameters that are given for after the step before.
    fn following(&self, microbatches: u32, after: &[Vec<(String, Vec<f32>)>]) -> Reference {
        let device = Device::flex();
        let (module, programs) = on_one_device(&self.shape, &Setup::default(), 3, [2, 12], &device).unwrap();
        let options =
            reference::Options { microbatches, steps: STEPS, optimizer: self.optimizer, clip_grad: None, keep: STEPS };
        reference::follow(module, &programs, &device, &self.batches, &options, after, &mut |_, _| {}).unwrap()
    }

    fn part(&self, order: &PipelineOrder, stage: Stage) -> StagePart {
        let sizes = even_layout(self.shape.num_layers, order.placement.stages());
        let start = sizes[..stage.index()].iter().sum();
        let layers = LayerRange { start, end: start + sizes[stage.index()] };
        StagePart { layers, embedding: order.placement.is_first(stage), head: order.placement.is_last(stage) }
    }

    fn programs(&self, order: &PipelineOrder) -> Programs {
        let (mesh, setup) = (Mesh::default(), Setup::default());
        let cut = Cut { model: &self.shape, mesh: &mesh, setup: &setup, micro_batch_size: 2, seq_length: 12 };
        let parts: Vec<_> = (0..order.placement.stages()).map(|s| self.part(order, Stage::new(s))).collect();
        Programs::new(&cut, &parts, order.has(|op| op == Op::BackwardWeight))
    }

    fn schedule(&self, order: &PipelineOrder, rounds: u32) -> Schedule {
        let mut program = add_gradient_reduction(add_send_recv(&accumulate(order, rounds)));
        if !self.shape.untie_embeddings_and_output_weights {
            program = add_tied_reduction(program);
        }
        let workload = Workload::abstract_stages(order.placement.stages());
        let schedule = Draft::lower(&add_optimizer_step(program), &workload).seal().unwrap();
        schedule.segmented(&self.programs(order))
    }

    fn run(&self, order: &PipelineOrder, schedule: &Schedule) -> Run {
        let build = |stage: Stage, device: usize, on: &Device| {
            let (setup, mesh) = (Setup::default(), Mesh::default());
            let spec = StageSpec::of(
                &self.shape,
                self.part(order, stage),
                stage.index(),
                &setup,
                &mesh,
                device as u64,
                [3, 2, 12],
            );
            Transformer::new(spec, on).map_err(|e| e.to_string())
        };
        let devices = vec![Device::flex(); schedule.ranks()];
        let options = RunOptions {
            steps: STEPS,
            optimizer: self.optimizer,
            keep_gradients: true,
            timeout: Duration::from_secs(60),
            count_memory: false,
        };
        let mesh = Mesh { pipeline: order.placement.ranks(), ..Mesh::default() };
        let (programs, setup) = (self.programs(order), Setup::default());
        let job = Job { schedule, programs: &programs, mesh: &mesh, setup: &setup };
        run(job, &devices, &build, &self.batches, &options, &mut |_, _| {}).unwrap()
    }

    fn compare(&self, order: &PipelineOrder, rounds: u32, reference: &Reference) -> Comparison {
        let schedule = self.schedule(order, rounds);
        let run = self.run(order, &schedule);
        assert_observed_order(&schedule, &run);
        assert!(run.parameters.iter().all(|p| p.len() == reference.parameters[0].len()), "all copies agree");
        if self.is_exact(order) || matches!(self.optimizer, OptimizerConfig::Sgd { .. }) {
            return compare(&run, reference, &self.optimizer);
        }
        // AdamW makes steps of roundings: each step is compared from where it began.
        compare(&run, &self.following(schedule.microbatches(), &run.parameters), &self.optimizer)
    }

    /// Asserts that an order trains as one device does: to the bit where no addition changes its place.
    fn assert_equal(&self, name: &str, order: &PipelineOrder, rounds: u32, reference: &Reference) {
        let found = self.compare(order, rounds, reference);
        assert!(found.ok(), "{name}: {found:?}");
        assert!(!self.is_exact(order) || found.exact(), "{name}: {found:?}");
    }

    /// Whether no addition changes its place.
    fn is_exact(&self, order: &PipelineOrder) -> bool {
        let untied = self.shape.untie_embeddings_and_output_weights;
        untied && order.slices == 1 && order.placement.pipes().len() == 1 && adds_in_order(order)
    }
}

/// The microbatches of a stage in the order in which their weight gradients are added.
fn additions(order: &PipelineOrder, stage: Stage) -> Vec<Microbatch> {
    let of_stage = order.ranks.iter().flatten().filter(|a| a.stage == stage && a.op.makes_weight_gradients());
    of_stage.filter_map(|a| a.microbatch).collect()
}

/// Whether every stage adds its microbatches in the order of their numbers, as one device does.
fn adds_in_order(order: &PipelineOrder) -> bool {
    order.placement.all_stages().all(|stage| additions(order, stage).is_sorted())
}

/// The same order with a full B in the place of each I, and no W.
fn unsplit(order: &PipelineOrder) -> PipelineOrder {
    let whole = |action: &Action| match action.op {
        Op::BackwardWeight => None,
        Op::BackwardInput => Some(Action { op: Op::FullBackward, joins_previous: false, ..*action }),
        _ => Some(Action { joins_previous: false, ..*action }),
    };
    let ranks = order.ranks.iter().map(|actions| actions.iter().filter_map(whole).collect()).collect();
    PipelineOrder { ranks, ..order.clone() }
}

/// Legal orders of a family with their names: chunks, slices that divide the sequence of 12 tokens and that do not.
fn orders(family: &Family, p: u32, m: u32, layers: u32) -> Vec<(String, PipelineOrder)> {
    let slices = if family.knobs.slices { &[Some(1), Some(2), Some(5)][..] } else { &[None] };
    let mut orders = Vec::new();
    for v in (1..=layers / p).filter(|v| layers.is_multiple_of(p * v)) {
        for k in slices {
            // One group of all microbatches is legal for every m.
            let group = family.knobs.group.then_some(m);
            let params =
                ScheduleParams { microbatch_group_size: group, num_seq_splits: *k, ..ScheduleParams::new(p, m, v) };
            if family.faults(&params).is_empty() {
                let name = format!("{} p={p} v={v} m={m} k={k:?}", family.name);
                orders.push((name, family.order(&params).unwrap()));
            }
        }
    }
    orders
}

/// Every family's legal orders on `p` ranks. Each family must have one for some of the microbatches.
fn all_orders(ranks: &[u32], microbatches: &[u32], layers: u32) -> Vec<(u32, String, PipelineOrder)> {
    let mut all = Vec::new();
    for family in &FAMILIES {
        let before = all.len();
        for m in microbatches {
            let of_family = ranks.iter().flat_map(|p| orders(family, *p, *m, layers));
            all.extend(of_family.map(|(name, order)| (*m, name, order)));
        }
        assert!(all.len() > before, "{} is not tried", family.name);
    }
    all
}

/// In every queue of every rank, tasks ran in the order of the schedule and one after another.
fn assert_observed_order(schedule: &Schedule, run: &Run) {
    for step in 0..run.timeline.steps() {
        for rank in 0..schedule.ranks() {
            for queue in 0..Lane::queues(schedule.placement().ranks()) {
                let tasks = schedule.program(Rank::at(rank)).filter(|(_, t)| t.queue() == queue);
                let spans: Vec<_> = tasks.map(|(id, _)| run.timeline.span(step, id)).collect();
                // The time of a receive runs from when its message was sent, which may be during the one before.
                let receive = queue >= Lane::ALL.len();
                assert!(spans.windows(2).all(|w| w[0].end <= if receive { w[1].end } else { w[1].start }));
                assert!(spans.iter().all(|s| s.end > 0.0 && s.end >= s.start), "every task ran");
            }
        }
    }
}

fn every_schedule_equals_one_device(ranks: &[u32], microbatches: &[u32], layers: u32) {
    let all = all_orders(ranks, microbatches, layers);
    for tied in [false, true] {
        let case = Case::new(layers, tied, OptimizerConfig::sgd(LR));
        for m in microbatches {
            let reference = case.reference(*m);
            for (_, name, order) in all.iter().filter(|(n, ..)| n == m) {
                case.assert_equal(&format!("{name} tied={tied}"), order, 1, &reference);
            }
        }
    }
}

#[test]
fn every_schedule_equals_one_device_for_every_number_of_microbatches() {
    every_schedule_equals_one_device(&[1, 2], &[1, 2, 3, 4, 5, 6, 7, 8], 4);
}

#[test]
fn every_schedule_equals_one_device_on_four_ranks() {
    every_schedule_equals_one_device(&[4], &[3, 4, 8, 10], 8);
}

/// W computes what B would have: with the additions in the same order, every gradient is the same to the bit.
#[test]
fn a_split_backward_gives_the_bits_of_a_whole_one() {
    for (ranks, layers) in [(2, 4), (4, 8)] {
        let case = Case::new(layers, true, OptimizerConfig::adamw(LR));
        for (_, name, order) in all_orders(&[ranks], &[2, 4, 8, 9], layers) {
            if order.has(|op| op == Op::BackwardWeight) {
                assert_split_changes_nothing(&case, &name, &order);
            }
        }
    }
    let case = Case::new(4, true, OptimizerConfig::adamw(LR));
    assert_split_changes_nothing(&case, "everything at once", &everything_at_once());
}

fn assert_split_changes_nothing(case: &Case, name: &str, order: &PipelineOrder) {
    let whole = unsplit(order);
    let [split, whole_run] = [order, &whole].map(|order| case.run(order, &case.schedule(order, 1)));
    let same = order.placement.all_stages().all(|stage| additions(order, stage) == additions(&whole, stage));
    assert!(same, "{name}: W do not run in the order of their I");
    assert_eq!(split.losses, whole_run.losses, "{name}");
    assert_eq!(split.gradients, whole_run.gradients, "{name}");
    assert_eq!(split.parameters, whole_run.parameters, "{name}");
}

/// Two pipes, slices and a split backward together, which no family has.
fn everything_at_once() -> PipelineOrder {
    let csv = "0dF0.0,0dF0.1,1uF0.0,1uF0.1,1uI0.1,1uI0.0,(1uW0.1;0dI0.1)FUSED,1uW0.0,0dI0.0,0dW0.1,0dW0.0\n\
               0uF0.0,0uF0.1,1dF0.0,1dF0.1,1dI0.1,1dI0.0,(1dW0.1;0uI0.1)FUSED,1dW0.0,0uI0.0,0uW0.1,0uW0.0\n";
    PipelineOrder::from_csv(csv, 2).unwrap()
}

#[test]
fn pipes_slices_and_a_split_backward_go_together() {
    for (tied, rounds) in [(false, 1), (true, 1), (true, 2)] {
        let case = Case::new(4, tied, OptimizerConfig::sgd(LR));
        case.assert_equal("everything at once", &everything_at_once(), rounds, &case.reference(2 * rounds));
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(24))]

    /// Random plans run in the schedule's order (checked inside) and change nothing. `p` may exceed the cores.
    #[test]
    fn random_plans_run_in_the_order_of_the_schedule(
        family in 0..FAMILIES.len(),
        p in proptest::sample::select(vec![1_u32, 2, 4]),
        m in 1..10_u32,
        rounds in 1..3_u32,
        tied in proptest::bool::ANY,
        which in proptest::prelude::any::<proptest::sample::Index>(),
    ) {
        let orders = orders(&FAMILIES[family], p, m, 8);
        proptest::prop_assume!(!orders.is_empty());
        let (name, order) = &orders[which.index(orders.len())];
        let case = Case::new(8, tied, OptimizerConfig::adamw(LR));
        case.assert_equal(name, order, rounds, &case.reference(m * rounds));
    }
}

#[test]
fn two_accumulation_rounds_equal_one_device_with_twice_the_microbatches() {
    for tied in [false, true] {
        let case = Case::new(4, tied, OptimizerConfig::adamw(LR));
        let reference = case.reference(8);
        for (_, name, order) in all_orders(&[2], &[4], 4) {
            case.assert_equal(&format!("{name} tied={tied}"), &order, 2, &reference);
        }
    }
}

#[test]
fn training_learns() {
    let case = Case::new(4, false, OptimizerConfig::adamw(LR));
    let losses = case.reference(4).losses;
    let start = f64::from(case.shape.vocab_size).ln();
    assert!((losses[0] - start).abs() < 0.1, "the first loss is near ln V: {losses:?}");
    assert!(losses[2] < losses[0] - 0.1, "the loss falls: {losses:?}");
}

#[test]
fn a_run_repeats_to_the_bit() {
    let case = Case::new(4, true, OptimizerConfig::adamw(LR));
    let order = find("1f1b").unwrap().order(&ScheduleParams::new(2, 4, 1)).unwrap();
    let schedule = case.schedule(&order, 1);
    let (a, b) = (case.run(&order, &schedule), case.run(&order, &schedule));
    assert_eq!(a.losses, b.losses);
    assert_eq!(a.gradients, b.gradients);
    assert_eq!(a.parameters, b.parameters);
}
