//! Where idle time goes: every idle moment has one cause, and the causes are the ones that they should be.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[cfg(test)]
mod support {
    pub(crate) mod plans;
    pub(crate) mod split;
}

use pipewright::ir::action::{Action, Op};
use pipewright::ir::explain::{Cause, Explanation};
use pipewright::ir::ids::Stage;
use pipewright::ir::metrics::Metrics;
use pipewright::ir::order::PipelineOrder;
use pipewright::ir::passes::{add_gradient_reduction, add_optimizer_step, add_send_recv, add_tied_reduction};
use pipewright::ir::schedule::{Draft, Schedule};
use pipewright::ir::schedules::{FAMILIES, ScheduleParams, find};
use pipewright::ir::spec::Semantics;
use pipewright::ir::timeline::{Source, Timeline};
use pipewright::ir::unit_costs::UnitCosts;
use pipewright::ir::workload::Workload;
use pipewright::sim::cost::UnitCost;
use pipewright::sim::{Engine, Options, simulate};
use proptest::prelude::*;
use proptest::test_runner::Config;
use support::plans::any_plan;

/// A simulated order with its explanation.
struct Run {
    schedule: Schedule,
    timeline: Timeline,
    explanation: Explanation,
}

fn run(program: &PipelineOrder, costs: &UnitCosts, options: &Options) -> Run {
    let workload = Workload::abstract_stages(program.placement.stages());
    let schedule = Draft::lower(program, &workload).seal().unwrap();
    let timeline = simulate(&schedule, &UnitCost::new(costs, &schedule), options);
    let explanation = Explanation::of(&schedule, &timeline);
    Run { schedule, timeline, explanation }
}

fn family(name: &str, p: u32, m: u32, costs: &UnitCosts, options: &Options) -> Run {
    let order = find(name).unwrap().order(&ScheduleParams::new(p, m, 1)).unwrap();
    run(&add_send_recv(&order), costs, options)
}

/// An order as text, with its messages.
fn custom(csv: &str, m: u32) -> PipelineOrder {
    add_send_recv(&PipelineOrder::from_csv(csv, m).unwrap())
}

impl Run {
    /// The idle time of a rank by cause, without the causes that it has not.
    fn causes(&self, rank: usize) -> Vec<(&'static str, f64)> {
        let causes = &self.explanation.ranks[rank];
        Cause::ALL.iter().map(|c| (c.name(), causes.get(*c))).filter(|(_, time)| *time != 0.0).collect()
    }

    fn idle(&self) -> Vec<f64> {
        Metrics::of(&self.schedule, &self.timeline).ranks.iter().map(|r| r.idle).collect()
    }

    fn totals(&self) -> Vec<f64> {
        self.explanation.ranks.iter().map(|causes| causes.total()).collect()
    }

    fn name(&self, id: Option<pipewright::ir::ids::TaskId>) -> String {
        id.map_or_else(String::new, |id| self.schedule.task(id).action.to_string())
    }
}

const PLAIN: Options = Options { steps: 1, barrier: false, cores: None, contention: 0.0, compound: false };

/// Sums of small whole numbers are exact, so the sums must be equal to the bit.
#[test]
fn causes_sum_to_the_idle_time_of_every_family() {
    let uneven = |stages: u32| (0..stages).map(|s| f64::from(1 + s % 3)).collect();
    let mut seen = 0;
    for row in &FAMILIES {
        for (p, m) in [(1, 1), (1, 4), (2, 2), (2, 8), (4, 4), (4, 8), (4, 16), (8, 16), (6, 12)] {
            for v in [1, 2, 4] {
                let params = ScheduleParams::new(p, m, row.default_chunks(Some(v)));
                let Ok(order) = row.order(&params) else { continue };
                for (hop, scaled, steps, barrier) in
                    [(0.0, false, 1, false), (2.0, false, 1, false), (0.0, true, 2, true), (1.0, true, 3, false)]
                {
                    let stages = order.placement.stages();
                    let stage_scale = if scaled { uneven(stages) } else { Vec::new() };
                    let (forward, backward_input, backward_weight) = (4.0, 8.0, 4.0);
                    let costs = UnitCosts {
                        forward,
                        backward_input,
                        backward_weight,
                        hop,
                        optimizer: 4.0,
                        stage_scale,
                        ..UnitCosts::default()
                    };
                    let mut program = add_gradient_reduction(add_send_recv(&order));
                    if stages > 1 {
                        program = add_tied_reduction(program);
                    }
                    for compound in [false, true] {
                        let options = Options { steps, barrier, compound, ..PLAIN };
                        let run = run(&add_optimizer_step(program.clone()), &costs, &options);
                        assert_eq!(run.totals(), run.idle(), "{} p={p} m={m} v={v} hop={hop}", row.name);
                        seen += 1;
                    }
                }
            }
        }
    }
    assert!(seen > 500, "{seen}");
}

proptest! {
    #![proptest_config(Config { failure_persistence: None, ..Config::default() })]

    /// Any plan, any costs, shared cores too: causes sum to idle time, none is negative, waits follow one another, and
    /// nothing is said of a wait that its numbers do not bear out.
    #[test]
    fn causes_sum_to_the_idle_time_of_any_plan(
        plan in any_plan(),
        cores in prop::option::of(1_u32..4),
        compound: bool,
        sends in prop::sample::select(&Semantics::ALL[..]),
    ) {
        let schedule = plan.sealed();
        // Ranks that share cores are simulated with sends that never wait.
        let sends = if cores.is_some() { Semantics::Eager } else { sends };
        let options = Options { steps: plan.steps, barrier: plan.barrier, cores, compound, ..PLAIN };
        let mut engine = Engine::under(&schedule, sends).unwrap();
        engine.set_costs(&schedule, &UnitCost::new(&plan.costs, &schedule));
        let timeline = engine.run(&options);
        let metrics = Metrics::of(&schedule, &timeline);
        let explanation = Explanation::of(&schedule, &timeline);
        let slack = 1e-9 * metrics.makespan;
        prop_assert_eq!(explanation.ranks.len(), metrics.ranks.len());
        for (rank, (causes, metrics)) in explanation.ranks.iter().zip(&metrics.ranks).enumerate() {
            let (sum, idle) = (causes.total(), metrics.idle);
            prop_assert!((sum - idle).abs() <= slack, "rank {rank}: {sum} and {idle}");
        }
        let equal = plan.costs.stage_scale.iter().all(|scale| *scale == plan.costs.stage_scale[0]) && cores.is_none();
        prop_assert!(!equal || explanation.total().get(Cause::Imbalance) <= slack, "equal stages are no imbalance");
        let travels = plan.costs.hop > 0.0 || cores.is_some() || sends != Semantics::Eager;
        prop_assert!(travels || explanation.total().get(Cause::Hop) <= slack, "no hop");
        for wait in &explanation.waits {
            let (of, blamed) = (&wait.causes, wait.slow_stages.iter().map(|s| s.1).sum::<f64>());
            prop_assert!(Cause::ALL.iter().all(|c| of.get(*c) >= 0.0), "{wait:?}");
            prop_assert!((of.total() - wait.span.duration()).abs() <= slack, "{wait:?}");
            prop_assert!((of.get(Cause::Imbalance) - blamed).abs() <= slack, "{wait:?}");
            prop_assert_eq!(of.get(Cause::MemoryLimit) > 0.0, wait.held_back.is_some());
            prop_assert!(wait.activations <= f64::from(plan.order.microbatches), "{wait:?}");
        }
        for pair in explanation.waits.windows(2).filter(|pair| pair[0].rank == pair[1].rank) {
            prop_assert!(pair[0].span.end <= pair[1].span.start, "{pair:?}");
        }
    }

    /// A measurement is explained like a prediction: the same shifted and stretched times have the same causes.
    #[test]
    fn a_measured_timeline_is_explained_like_a_predicted_one(plan in any_plan()) {
        let schedule = plan.sealed();
        let options = Options { steps: plan.steps, barrier: plan.barrier, ..PLAIN };
        let predicted = simulate(&schedule, &UnitCost::new(&plan.costs, &schedule), &options);
        let mut measured = Timeline { source: Source::Measured, ..predicted.clone() };
        for span in &mut measured.spans {
            // Powers of two: not a bit is lost.
            (span.start, span.end) = (span.start * 2.0, span.end * 2.0);
        }
        let (a, b) = (Explanation::of(&schedule, &predicted), Explanation::of(&schedule, &measured));
        for (a, b) in a.ranks.iter().zip(&b.ranks) {
            prop_assert!(Cause::ALL.iter().all(|c| a.get(*c) * 2.0 == b.get(*c)), "{a:?} {b:?}");
        }
    }
}

/// 1F1B, 4 ranks, 8 microbatches, F = 1, B = 2. Rank 0 has run 4 forwards at 4 and waits for its first backward until
/// 10, with a fifth forward ready; then once a unit before each of its last backwards.
#[test]
fn one_f_one_b_keeps_ready_forwards_back() {
    let run = family("1f1b", 4, 8, &UnitCosts::default(), &PLAIN);
    assert_eq!(run.causes(0), [("backward", 3.0), ("memory_limit", 6.0)]);
    assert_eq!(run.causes(3), [("fill", 3.0), ("drain", 6.0)]);
    let longest = run.explanation.longest()[0];
    assert_eq!((longest.rank.0, longest.span.start, longest.span.end), (0, 4.0, 10.0));
    assert_eq!(run.name(longest.task), "0B0");
    assert_eq!(run.name(longest.input), "1B0");
    assert_eq!(run.name(longest.held_back), "0F4");
    assert_eq!(longest.activations, 4.0);
}

/// GPipe has run all its forwards: nothing is kept back.
#[test]
fn gpipe_waits_for_gradients_alone() {
    let run = family("gpipe", 4, 8, &UnitCosts::default(), &PLAIN);
    assert_eq!(run.causes(0), [("backward", 9.0)]);
    assert_eq!(run.causes(1), [("fill", 1.0), ("drain", 2.0), ("backward", 6.0)]);
    assert_eq!(run.explanation.longest()[0].activations, 8.0);
}

/// Rank 0 waits from 8 to 29. Its gradient comes back over 3 hops of 2; of the last hop there a unit is left at 8.
#[test]
fn hops_on_the_way_show_on_the_first_rank() {
    let run = family("gpipe", 4, 8, &UnitCosts { hop: 2.0, ..UnitCosts::default() }, &PLAIN);
    assert_eq!(run.causes(0), [("backward", 14.0), ("hop", 7.0)]);
}

/// The last of 4 stages takes twice as long. GPipe's rank 0 waits for its 8 forwards and for its first backward.
#[test]
fn a_slow_stage_is_named() {
    let costs = UnitCosts { stage_scale: vec![1.0, 1.0, 1.0, 2.0], ..UnitCosts::default() };
    let run = family("gpipe", 4, 8, &costs, &PLAIN);
    let equal = family("gpipe", 4, 8, &UnitCosts::default(), &PLAIN);
    assert_eq!(equal.explanation.total().get(Cause::Imbalance), 0.0);
    // Rank 0's first wait is from 8 to 27, not to 17: 8 forwards of rank 3 take 1 longer than its own and a backward 2.
    // Then each further backward comes 2 later than it could take it.
    let first = run.explanation.waits.iter().find(|w| w.rank.0 == 0).unwrap();
    assert_eq!((first.span.start, first.span.end), (8.0, 27.0));
    assert_eq!(first.slow_stages, [(Stage::new(3), 10.0)]);
    assert_eq!(
        Explanation::slow_stages(&run.explanation.waits).iter().map(|s| s.0).collect::<Vec<_>>(),
        [Stage::new(3)]
    );
    assert_eq!(run.causes(0), [("backward", 9.0), ("imbalance", 24.0)]);
    // Rank 3 itself waits for nobody.
    assert_eq!(run.causes(3), [("fill", 3.0), ("drain", 6.0)]);
}

/// A rank that may run ahead is held back only where the barrier binds.
#[test]
fn a_barrier_shows_where_it_binds() {
    let order = custom("0F0,0I0,0W0\n1F0,1I0,1W0\n", 1);
    let costs = UnitCosts { backward_weight: 4.0, ..UnitCosts::default() };
    let free = run(&order, &costs, &Options { steps: 2, ..PLAIN });
    let options = Options { steps: 2, barrier: true, ..PLAIN };
    // Rank 0 makes its weight gradient from 4 to 8, ends last and begins the next step: the barrier costs nothing.
    let bound = run(&order, &costs, &options);
    assert_eq!((free.causes(0), free.causes(1)), (bound.causes(0), bound.causes(1)));
    assert_eq!(bound.explanation.total().get(Cause::Barrier), 0.0);
    // Now the other way round: rank 1 has 3 times the work.
    let uneven = UnitCosts { stage_scale: vec![1.0, 3.0], ..costs };
    let bound = run(&order, &uneven, &options);
    // Rank 1: F 1 to 4, I 4 to 7, W 7 to 19. Rank 0: I 7 to 8, W 8 to 12, and the next step begins at 19.
    assert_eq!(bound.causes(0).iter().find(|c| c.0 == "barrier"), Some(&("barrier", 7.0)));
    assert_eq!(run(&order, &uneven, &Options { steps: 2, ..PLAIN }).explanation.total().get(Cause::Barrier), 0.0);
}

/// Before the optimizer, the rank that ends first waits for the other's half of a tied embedding.
#[test]
fn a_reduction_counts_as_a_barrier() {
    let order = PipelineOrder::from_csv("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", 2).unwrap();
    let program = add_optimizer_step(add_tied_reduction(add_send_recv(&order)));
    let run = run(&program, &UnitCosts { optimizer: 2.0, ..UnitCosts::default() }, &PLAIN);
    let of_optimizer = |w: &&pipewright::ir::explain::Wait| run.name(w.task).contains("OPTIMIZER");
    let waits: Vec<_> = run.explanation.waits.iter().filter(of_optimizer).collect();
    assert_eq!(waits.len(), 1);
    assert_eq!((waits[0].rank.0, waits[0].causes.get(Cause::Barrier)), (1, waits[0].span.duration()));
}

/// Rank 1's compound action lets go of both outputs only at its end, and starts only when both inputs are there.
#[test]
fn compound_actions_let_go_at_their_end() {
    let order = custom("0F0,0F1,0B0,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1\n", 2);
    let parts = order.ranks[1].iter().filter(|a: &&Action| a.joins_previous && a.op == Op::FullBackward).count();
    assert_eq!(parts, 1);
    let costs = UnitCosts { forward: 4.0, hop: 1.0, ..UnitCosts::default() };
    for compound in [false, true] {
        let run = run(&order, &costs, &Options { compound, ..PLAIN });
        assert_eq!(run.totals(), run.idle());
        assert_eq!(run.explanation.total().get(Cause::MemoryLimit), 0.0, "nothing else is ready");
        let wait = run.explanation.waits.iter().find(|w| run.name(w.task) == "0B0").unwrap();
        assert_eq!(run.name(wait.input), "1B0");
        assert_eq!((wait.causes.get(Cause::Hop), wait.causes.get(Cause::Backward)), (1.0, wait.span.duration() - 1.0));
    }
    // Rank 0's second forward waits for the gradient that it is joined with: both run from 12 to 18.
    let order = custom("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1B0,1F1,1B1\n", 2);
    let run = run(&order, &costs, &Options { compound: true, ..PLAIN });
    for (task, input, cause) in [("0F1", "1B0", Cause::Backward), ("1F1", "0F1", Cause::Forward)] {
        let wait = run.explanation.waits.iter().find(|w| run.name(w.task) == task).unwrap();
        assert_eq!((run.name(wait.input).as_str(), wait.span.duration()), (input, 8.0));
        assert_eq!((wait.causes.get(Cause::Hop), wait.causes.get(cause)), (2.0, 6.0), "{task}");
    }
}
