//! What holds for every schedule, whatever its family, size and costs.

#[cfg(test)]
mod support {
    pub(crate) mod plans;
    pub(crate) mod programs;
    pub(crate) mod random;
    pub(crate) mod reference;
    pub(crate) mod split;
}

use pipewright::ir::action::{Action, Op};
use pipewright::ir::ids::{Rank, Stage};
use pipewright::ir::memory::{self, ByClass};
use pipewright::ir::metrics::Metrics;
use pipewright::ir::order::PipelineOrder;
use pipewright::ir::passes::{
    accumulate, add_gradient_reduction, add_optimizer_step, add_send_recv, add_tied_reduction,
};
use pipewright::ir::placement::Placement;
use pipewright::ir::schedule::{Draft, Schedule};
use pipewright::ir::schedules::{FAMILIES, ScheduleParams, find};
use pipewright::ir::spec::Semantics;
use pipewright::ir::task::{Dep, Lane, MemoryClass, Touch};
use pipewright::ir::timeline::Timeline;
use pipewright::ir::unit_costs::UnitCosts;
use pipewright::sim::cost::UnitCost;
use pipewright::sim::{Options, simulate};
use proptest::prelude::*;
use proptest::test_runner::Config;
use std::collections::BTreeMap;
use support::plans::{Plan, any_order, any_plan};
use support::programs::{small_program, weighted};
use support::random::Random;
use support::reference::{self, Clock, Reference, Times, place};
use support::split::split_backward;

/// Rounding of sums in another order.
const RELATIVE: f64 = 1e-9;

/// Half of proptest's usual number of cases: 128, or half of `PROPTEST_CASES`.
fn config() -> Config {
    let usual = Config::default();
    Config { cases: usual.cases / 2, failure_persistence: None, ..usual }
}

fn timeline(plan: &Plan, schedule: &Schedule, cores: Option<u32>) -> Timeline {
    let Plan { steps, barrier, compound, .. } = *plan;
    let options = Options { steps, barrier, cores, compound, ..Options::default() };
    simulate(schedule, &UnitCost::new(&plan.costs, schedule), &options)
}

/// How long an action takes, computed as the simulator must.
fn duration(plan: &Plan, action: &Action) -> f64 {
    reference::duration(&plan.order, &plan.costs, action)
}

/// Start and end of every action of a step.
fn times(schedule: &Schedule, timeline: &Timeline, step: usize) -> Times {
    let span = |id| (timeline.span(step, id).start, timeline.span(step, id).end);
    schedule.tasks().map(|(id, task)| (place(task.rank, task.action), span(id))).collect()
}

/// The longest path over data, weight and transfer edges, found here: what no lane and no order can beat.
fn critical_path(plan: &Plan, schedule: &Schedule) -> f64 {
    let graph = schedule.graph();
    let edges: Vec<_> = graph.raw_edges().iter().filter(|e| e.weight != Dep::Program).collect();
    let mut successors = vec![Vec::new(); graph.node_count()];
    let mut missing = vec![0; graph.node_count()];
    for edge in &edges {
        let hop = if edge.weight == Dep::Transfer { plan.costs.hop } else { 0.0 };
        successors[edge.source().index()].push((edge.target().index(), hop));
        missing[edge.target().index()] += 1;
    }
    let mut ready: Vec<usize> = (0..missing.len()).filter(|node| missing[*node] == 0).collect();
    let mut starts = vec![0.0_f64; missing.len()];
    let (mut longest, mut seen) = (0.0_f64, 0);
    while let Some(node) = ready.pop() {
        let end = starts[node] + duration(plan, &graph.raw_nodes()[node].weight.action);
        (longest, seen) = (longest.max(end), seen + 1);
        for (to, hop) in &successors[node] {
            starts[*to] = starts[*to].max(end + hop);
            missing[*to] -= 1;
            if missing[*to] == 0 {
                ready.push(*to);
            }
        }
    }
    assert_eq!(seen, missing.len(), "the edges hold no cycle");
    longest
}

/// Compute time of each rank in one step.
fn work(plan: &Plan) -> Vec<f64> {
    let sum = |actions: &Vec<Action>| actions.iter().map(|a| duration(plan, a)).sum();
    plan.program.ranks.iter().map(sum).collect()
}

proptest! {
    #![proptest_config(config())]

    /// Every plan keeps the law under every semantics of sends, and an independent reading agrees that it ends.
    #[test]
    fn every_plan_keeps_the_law(plan in any_plan()) {
        for semantics in Semantics::ALL {
            prop_assert_eq!(Draft::lower(&plan.program, &plan.workload).check(semantics), []);
            if plan.program.len() < 400 {
                prop_assert!(Reference::new(&plan.program).ends(semantics), "{}", semantics.name());
            }
        }
    }

    /// The engine gives, to the bit, the times of a reference that reads the actions alone; and those times obey what a
    /// training step is.
    #[test]
    fn the_engine_equals_the_reference_to_the_bit(plan in any_plan()) {
        let schedule = plan.sealed();
        let timeline = timeline(&plan, &schedule, None);
        let reference = Reference::new(&plan.program);
        let Plan { steps, barrier, compound, .. } = plan;
        let expected = reference.times(&Clock { costs: &plan.costs, compound, steps, barrier });
        for (step, expected) in expected.into_iter().enumerate() {
            let ours = times(&schedule, &timeline, step);
            prop_assert_eq!(ours.len(), expected.len());
            for (place, expected) in expected {
                let same = ours[&place].0.to_bits() == expected.0.to_bits() && ours[&place].1.to_bits() == expected.1.to_bits();
                prop_assert!(same, "step {} {:?}: {:?}, reference {:?}", step, place, ours[&place], expected);
            }
            prop_assert_eq!(reference.check_step(&ours, plan.costs.hop), Ok(()));
        }
    }

    /// No timeline is shorter than its longest chain of needs, nor than the work of its busiest rank.
    #[test]
    fn makespan_is_at_least_the_critical_path_and_the_busiest_rank(plan in any_plan()) {
        let plan = Plan { compound: false, ..plan };
        let schedule = plan.sealed();
        let makespan = timeline(&plan, &schedule, None).makespan() * (1.0 + RELATIVE);
        let path = critical_path(&plan, &schedule);
        let steps = plan.steps as f64;
        prop_assert!(makespan >= path, "{makespan} < {path}");
        prop_assert!(!plan.barrier || makespan >= path * steps, "{makespan} < {path} x {steps}");
        for (r, work) in work(&plan).into_iter().enumerate() {
            prop_assert!(makespan >= work * steps, "rank {r}: {makespan} < {work} x {steps}");
        }
    }

    /// Each task starts after its predecessors and their hops; tasks of one lane do not overlap, over steps too.
    #[test]
    fn tasks_wait_for_their_predecessors_and_their_lane(plan in any_plan(), cores in prop::option::of(1_u32..4)) {
        let schedule = plan.sealed();
        let timeline = timeline(&plan, &schedule, cores);
        let slack = RELATIVE * timeline.makespan();
        let mut previous_end = 0.0_f64;
        let mut lanes: BTreeMap<(Rank, Lane), f64> = BTreeMap::new();
        for step in 0..plan.steps {
            let times: Vec<_> = schedule.tasks().map(|(id, task)| (task, timeline.span(step, id))).collect();
            for edge in schedule.graph().raw_edges() {
                let hop = if edge.weight == Dep::Transfer { plan.costs.hop } else { 0.0 };
                let (from, to) = (times[edge.source().index()], times[edge.target().index()]);
                prop_assert!(to.1.start >= from.1.end + hop, "{} {:?} after {} {:?}", to.0.action, to.1, from.0.action, from.1);
            }
            let begin = if plan.barrier { previous_end } else { 0.0 };
            for (task, span) in &times {
                prop_assert!(span.start.is_finite() && span.end >= span.start && span.start >= begin, "{} {span:?}", task.action);
                if cores.is_none() && (task.group.is_none() || !plan.compound) {
                    prop_assert_eq!(span.end.to_bits(), (span.start + duration(&plan, &task.action)).to_bits());
                } else if cores.is_some() {
                    prop_assert!(span.duration() >= duration(&plan, &task.action) - slack, "{} {span:?}", task.action);
                }
                if task.lane == Lane::Compute {
                    let free = lanes.insert((task.rank, task.lane), span.end).unwrap_or(0.0);
                    prop_assert!(span.start >= free, "{} starts at {} while its lane is busy until {free}", task.action, span.start);
                }
                previous_end = previous_end.max(span.end);
            }
        }
    }

    /// A second run, and runs beside each other on other threads, give the same bytes.
    #[test]
    fn runs_are_equal_to_the_byte_on_any_thread(plan in any_plan(), cores in prop::option::of(1_u32..9)) {
        let run = || {
            let schedule = plan.sealed();
            let timeline = timeline(&plan, &schedule, cores);
            let bits: Vec<_> = timeline.spans.iter().map(|s| (s.start.to_bits(), s.end.to_bits())).collect();
            (bits, schedule.topological().to_vec())
        };
        let first = run();
        prop_assert!(run() == first, "a second run");
        let same = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(run)).collect();
            threads.into_iter().all(|thread| thread.join().unwrap() == first)
        });
        prop_assert!(same, "on other threads");
    }

    /// Memory begins and ends with what is persistent and is never less; at every moment it is the sum of what tasks
    /// have allocated and not freed.
    #[test]
    fn memory_returns_to_its_start(plan in any_plan(), cores in prop::option::weighted(0.2, 1_u32..9)) {
        let schedule = plan.sealed();
        let timeline = timeline(&plan, &schedule, cores);
        let metrics = Metrics::of(&schedule, &timeline);
        for (r, metric) in metrics.ranks.iter().enumerate() {
            let persistent = memory::persistent(&schedule, Rank::at(r));
            let points = &metric.memory.points;
            prop_assert_eq!(points[0].live, persistent);
            prop_assert_eq!(points[points.len() - 1].live, persistent, "rank {} at the end", r);
            for point in points {
                let enough = point.live.iter().zip(&persistent).all(|(live, persistent)| live >= persistent);
                prop_assert!(enough, "rank {r} at {}: {:?} below {persistent:?}", point.time, point.live);
            }
            let peak = points.iter().map(|point| memory::total(&point.live)).max();
            prop_assert_eq!(Some(memory::total(&metric.memory.peak.live)), peak);
            // Between two moments with events the order among those of one moment no longer matters.
            for (time, live) in balance(&schedule, &timeline, Rank::at(r), persistent) {
                let point = points.iter().rfind(|point| point.time <= time);
                prop_assert_eq!(point.map(|p| p.live.map(i128::from)), Some(live), "rank {} after {}", r, time);
            }
        }
    }

    /// With a core for every rank the shared cores do not show; with fewer nothing gets faster, and no more than the
    /// cores can do gets done.
    #[test]
    fn cores_slow_down_and_never_speed_up(plan in any_plan(), more in 0_u32..3, fewer in any::<prop::sample::Index>()) {
        let plan = Plan { compound: false, ..plan };
        let schedule = plan.sealed();
        let ranks = plan.order.placement.ranks();
        let unlimited = timeline(&plan, &schedule, None);
        let slack = RELATIVE * unlimited.makespan().max(f64::MIN_POSITIVE);
        let ample = timeline(&plan, &schedule, Some(ranks + more));
        for (a, b) in unlimited.spans.iter().zip(&ample.spans) {
            prop_assert!((a.start - b.start).abs() <= slack && (a.end - b.end).abs() <= slack, "{a:?}, with cores {b:?}");
        }
        let cores = 1 + Rank::at(fewer.index(ranks as usize)).0;
        let shared = timeline(&plan, &schedule, Some(cores)).makespan() * (1.0 + RELATIVE);
        let total = work(&plan).iter().sum::<f64>() * plan.steps as f64;
        prop_assert!(shared >= total / f64::from(cores), "{shared} < {total} / {cores}");
        prop_assert!(shared >= unlimited.makespan(), "{shared} < {}", unlimited.makespan());
    }

    /// CSV written and read again is the same order with the same placement, compute alone and in full.
    #[test]
    fn csv_round_trips(plan in any_plan(), order in any_order()) {
        for (order, all) in [(&plan.order, true), (&plan.program, true), (&order, false)] {
            let csv = order.to_csv(all);
            let read = PipelineOrder::from_csv(&csv, order.microbatches).unwrap();
            prop_assert_eq!(&read.placement, &order.placement);
            prop_assert_eq!(&read, order);
            prop_assert_eq!(read.to_csv(all), csv);
        }
        prop_assert_eq!(plan.program.to_csv(false), plan.order.to_csv(false));
    }
}

/// What is alive on a rank after each moment at which something happens: allocations minus frees.
fn balance(
    schedule: &Schedule,
    timeline: &Timeline,
    rank: Rank,
    persistent: ByClass,
) -> Vec<(f64, [i128; MemoryClass::ALL.len()])> {
    // Times are not negative, so their bits sort as they do.
    let mut events: BTreeMap<u64, [i128; MemoryClass::ALL.len()]> = BTreeMap::new();
    for (step, (id, _)) in (0..timeline.steps()).flat_map(|step| schedule.program(rank).map(move |task| (step, task))) {
        let span = timeline.span(step, id);
        for effect in schedule.effects(id) {
            let buffer = schedule.buffer(effect.buffer);
            let mut add = |time: f64, bytes: i128| {
                events.entry(time.to_bits()).or_default()[buffer.class.index()] += bytes;
            };
            if matches!(effect.touch, Touch::Allocate | Touch::Workspace) {
                add(span.start, i128::from(buffer.bytes));
            }
            if matches!(effect.touch, Touch::Free | Touch::Workspace) {
                add(span.end, -i128::from(buffer.bytes));
            }
        }
    }
    let mut live = persistent.map(i128::from);
    let after = |(time, change): (u64, [i128; MemoryClass::ALL.len()])| {
        live.iter_mut().zip(change).for_each(|(live, change)| *live += change);
        (f64::from_bits(time), live)
    };
    events.into_iter().map(after).collect()
}

/// Text that is nearly an order is read or refused, and whatever was read goes through every pass and every check.
#[test]
fn nearly_valid_text_never_panics() {
    let mut random = Random(2);
    let (mut refused, mut unlawful, mut lawful) = (0, 0, 0);
    for _ in 0..4000 {
        let family = &FAMILIES[random.below(FAMILIES.len())];
        let program = small_program(family, &mut random);
        let m = program.microbatches + random.between(0, 1);
        let text = if random.below(3) == 0 { noise(&mut random) } else { damaged(&program, &mut random) };
        let Ok(order) = PipelineOrder::from_csv(&text, m) else {
            refused += 1;
            continue;
        };
        assert_eq!(
            PipelineOrder::from_csv(&order.to_csv(true), m).map(|again| again.ranks.concat()),
            Ok(order.ranks.concat())
        );
        let workload = weighted(order.placement.stages());
        let fuller = add_optimizer_step(add_tied_reduction(add_gradient_reduction(add_send_recv(&order))));
        // A text without a line has no rank.
        let last = Rank(order.placement.ranks().saturating_sub(1));
        let table = Placement::table(order.placement.ranks(), vec![last; order.placement.stages() as usize]);
        let misplaced = PipelineOrder { placement: table, ..order.clone() };
        for candidate in
            [&order, &add_send_recv(&order), &fuller, &accumulate(&order, 2), &misplaced, &add_send_recv(&misplaced)]
        {
            let draft = Draft::lower(candidate, &workload);
            let found = Semantics::ALL.map(|semantics| draft.check(semantics).len());
            assert_eq!(draft.seal().is_ok(), found[0] == 0);
            if found[0] == 0 {
                lawful += 1;
            } else {
                unlawful += 1;
            }
        }
    }
    println!("refused texts {refused}, unlawful programs {unlawful}, lawful programs {lawful}");
    assert!(refused > 100 && unlawful > 1000 && lawful > 100, "{refused} {unlawful} {lawful}");
}

/// Without a barrier the next step begins while the last one still runs; both share the cores. One core needs as long as
/// all work together: twice 20.
#[test]
fn steps_that_overlap_share_the_cores() {
    let order = find("gpipe").unwrap().order(&ScheduleParams::new(2, 1, 1)).unwrap();
    let program = add_optimizer_step(add_send_recv(&order));
    let schedule = Draft::lower(&program, &weighted(2)).seal().unwrap();
    let costs = UnitCosts { optimizer: 1.0, stage_scale: vec![1.0, 4.0], ..UnitCosts::default() };
    for barrier in [true, false] {
        let options = Options { steps: 2, barrier, cores: Some(1), ..Options::default() };
        let timeline = simulate(&schedule, &UnitCost::new(&costs, &schedule), &options);
        assert!(timeline.makespan() >= 40.0 * (1.0 - RELATIVE), "barrier {barrier}: {}", timeline.makespan());
    }
}

/// The reduction of a tied embedding waits for the gradients of the first and the last stage, on both ranks, and for no
/// other stage of theirs.
#[test]
fn a_tied_reduction_waits_for_its_two_stages_alone() {
    let order = find("interleaved-1f1b").unwrap().order(&ScheduleParams::new(2, 2, 2)).unwrap();
    // The weight gradients of stage 1 come last of all.
    let mut order = split_backward(&order, 0);
    let late = |a: &Action| a.stage == Stage::new(1) && a.op == Op::BackwardWeight;
    order.ranks[1].sort_by_key(late);
    let program = add_tied_reduction(add_send_recv(&order));
    let schedule = Draft::lower(&program, &weighted(4)).seal().unwrap();
    let costs = UnitCosts { stage_scale: vec![1.0, 9.0, 1.0, 1.0], ..UnitCosts::default() };
    let timeline = simulate(&schedule, &UnitCost::new(&costs, &schedule), &Options::default());
    let times = times(&schedule, &timeline, 0);
    let ends = times
        .iter()
        .filter(|((_, a), _)| a.op == Op::BackwardWeight && [Stage::new(0), Stage::new(3)].contains(&a.stage));
    let ready = ends.map(|(_, (_, end))| *end).fold(0.0, f64::max);
    let starts: Vec<f64> = times.iter().filter(|((_, a), _)| a.op == Op::ReduceTied).map(|(_, span)| span.0).collect();
    assert_eq!(starts, [ready, ready]);
    let last = times.iter().filter(|((_, a), _)| late(a)).map(|(_, (_, end))| *end).fold(0.0, f64::max);
    assert!(last > ready, "stage 1 is the later one here: {last}, {ready}");
}

/// A stage on a rank that the program does not have is a fault to report, not a reason to panic.
#[test]
fn a_placement_beyond_the_ranks_is_reported() {
    let mut order = PipelineOrder::from_csv("0F0,0SEND_F0,0RECV_B0,0B0,1RECV_F0,1F0,1B0,1SEND_B0", 1).unwrap();
    order.placement = Placement::table(1, vec![Rank(0), Rank(9)]);
    for semantics in Semantics::ALL {
        let found = Draft::lower(&order, &weighted(2)).check(semantics);
        assert!(!found.is_empty(), "{}", semantics.name());
    }
}

/// Cells at random.
fn noise(random: &mut Random) -> String {
    let codes = ["F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B", "F", "B", "F", "B"];
    let mut text = String::new();
    for _ in 0..random.between(1, 4) {
        for _ in 0..random.between(0, 9) {
            let (stage, microbatch) = (random.between(0, 4), random.between(0, 3));
            let cell = match random.below(60) {
                0 => "4294967295F0".to_owned(),
                1 => format!("{stage}F4294967290"),
                2 => format!("{stage}OPTIMIZER_STEP"),
                3 => format!("{stage}REDUCE_TIED"),
                4 => ".".to_owned(),
                _ => format!("{stage}{}{microbatch}", random.pick(&codes)),
            };
            text.push_str(&cell);
            text.push(',');
        }
        text.push('\n');
    }
    text
}

/// A lawful program with a few characters changed, lost or doubled.
fn damaged(program: &PipelineOrder, random: &mut Random) -> String {
    let mut text: Vec<char> = program.to_csv(random.below(2) == 0).chars().collect();
    let characters = ['0', '1', '2', 'F', 'B', 'I', 'W', 'd', 'u', '(', ';', ')', ',', '\n', '.', ' ', 'é'];
    for _ in 0..random.between(0, 3) {
        let at = random.below(text.len());
        match random.below(3) {
            0 => text[at] = random.pick(&characters),
            1 => text.insert(at, text[at]),
            _ => drop(text.remove(at)),
        }
        if text.is_empty() {
            break;
        }
    }
    text.into_iter().collect()
}
