//! The orders of other tools are ours, token for token. (Their times: `oracle_times.rs`.)
//!
//! The data is in `tests/oracle_data/`, its README says where each number comes from.

#[cfg(test)]
mod support {
    pub(crate) mod build;
    pub(crate) mod csv;
    pub(crate) mod data;
    pub(crate) mod families;
}

use pipewright::ir::action::{Action, Op};
use pipewright::ir::ids::Stage;
use pipewright::ir::order::PipelineOrder;
use pipewright::ir::passes::add_send_recv;
use pipewright::ir::plan::resolve;
use pipewright::ir::scenario::{Scenario, ScheduleEntry};
use pipewright::ir::schedule::Draft;
use pipewright::ir::schedules::{Chunks, ScheduleParams, find};
use pipewright::ir::spec::Semantics;
use pipewright::ir::workload::Workload;
use pipewright::sim::Options;
use std::collections::BTreeMap;
use support::build::{chunk_costs, run};
use support::csv::csv;
use support::data::{number, records};
use support::families::{order, params, params_of};

const ORDERS: &str = include_str!("oracle_data/orders.txt");
const READ_ORDERS: &str = include_str!("oracle_data/read_orders.txt");
const REJECTED: &str = include_str!("oracle_data/rejected.txt");
const LOWERED: &str = include_str!("oracle_data/lowered.txt");

/// Every order that another tool prints for a family that we have is ours.
#[test]
fn orders_of_other_tools_are_ours_token_for_token() {
    let (mut equal, mut free_groups): (BTreeMap<&str, usize>, usize) = (BTreeMap::new(), 0);
    for record in records(ORDERS) {
        let (family, params) = params_of(&record[0]);
        let published = csv(&record[1..]);
        let what = record[0].join(" ");
        let ours = order(family.name, &params);
        assert_eq!(ours.to_csv(true), published, "{what}");
        let read = PipelineOrder::from_csv(&published, params.microbatches).unwrap();
        assert_eq!(read, ours, "{what}, read from its text");
        let ScheduleParams { ranks: p, microbatches: m, microbatch_group_size: g, .. } = params;
        // Without a group size the interleaved kin choose it themselves.
        let rounds = if family.name == "interleaved-zb" { (m / p).max(1) } else { m / p };
        if g.is_some_and(|g| g * rounds == m && (family.name == "interleaved-zb" || g == p)) {
            let free = ScheduleParams { microbatch_group_size: None, ..params };
            assert_eq!(order(family.name, &free).to_csv(true), published, "{what}, no group size");
            free_groups += 1;
        }
        for source in record[0][5].split(',') {
            *equal.entry(source).or_default() += 1;
        }
    }
    println!("orders equal: {equal:?}; without a group size as well: {free_groups}");
    let expected = [
        ("Chimera:greedy", 5),
        ("DeepSeek:DualPipe", 22),
        ("DeepSeek:DualPipeV", 28),
        ("DeepSpeed:TrainSchedule", 40),
        ("JaxPP:Eager1F1B", 16),
        ("JaxPP:GPipe", 16),
        ("JaxPP:Interleaved1F1B", 45),
        ("JaxPP:Std1F1B", 16),
        ("JaxPP:ZeroBubble", 12),
        ("Megatron-LM:interleaved-1F1B", 86),
        ("sail-sg:basic1f1b", 28),
        ("sail-sg:seq1f1b", 56),
        ("sail-sg:vpp", 26),
        ("torch:1F1B", 24),
        ("torch:DualPipeV", 15),
        ("torch:GPipe", 35),
        ("torch:Interleaved1F1B", 132),
        ("torch:InterleavedZeroBubble", 132),
        ("torch:LoopedBFS", 140),
        ("torch:ZBVZeroBubble", 35),
    ];
    assert_eq!(equal, BTreeMap::from(expected), "records of each tool");
    assert_eq!(free_groups, 74 + 132, "interleaved 1F1B with g = p, interleaved zero bubble with rounds of g");
    let all_of =
        |tool: &str| equal.iter().filter(|(source, _)| source.starts_with(tool)).map(|(_, n)| n).sum::<usize>();
    assert_eq!(all_of("torch:"), 489 + 24, "all that PyTorch accepts");
}

/// What other tools print for schedules that we have no family for, or find by a search of their own, is read from its
/// text, keeps the law, runs to its end and is written as it was.
#[test]
fn other_orders_of_other_tools_are_read_and_keep_the_law() {
    let mut read: BTreeMap<&str, usize> = BTreeMap::new();
    for record in records(READ_ORDERS) {
        let what = record[0].join(" ");
        let [p, m, v] = [0, 1, 2].map(|field| number(record[0][field]));
        let text = csv(&record[1..]);
        let order = PipelineOrder::from_csv(&text, m).unwrap();
        let written = order.to_csv(true);
        // The name of a compound action says only how many parts it has: a fused F and B are an overlapped pair.
        let unnamed = |csv: &str| csv.replace(")FUSED", ")").replace(")OVERLAP_F_B", ")");
        assert_eq!(unnamed(&written), unnamed(&text), "{what}");
        assert_eq!(PipelineOrder::from_csv(&written, m).unwrap(), order, "{what}");
        assert_eq!((order.placement.ranks(), order.placement.stages(), order.slices), (p, p * v, 1), "{what}");
        let draft = Draft::lower(&add_send_recv(&order), &Workload::default());
        for semantics in Semantics::ALL {
            assert_eq!(draft.check(semantics), [], "{what} under {semantics:?}");
        }
        let run = run(&order, &chunk_costs([1.0, 1.0, 1.0], 0.0, v), &Options::default());
        run.assert_metrics_agree(v, &what);
        assert!(run.idle().iter().all(|idle| *idle >= 0.0), "{what}");
        assert_eq!(run.metrics.ranks.iter().map(|r| r.busy).sum::<f64>(), f64::from(3 * p * m * v), "{what}");
        for source in record[0][3].split(',') {
            *read.entry(source).or_default() += 1;
        }
    }
    println!("orders read: {read:?}");
    let expected = [
        ("JaxPP:DualPipeV", 8),
        ("JaxPP:Interleaved1F1B", 45),
        ("JaxPP:KimiK2", 45),
        ("sail-sg:V-1F1B", 28),
        ("sail-sg:V-Half", 28),
        ("sail-sg:V-Min", 28),
        ("sail-sg:ZB-H1", 21),
        ("sail-sg:ZB-H2", 21),
        ("sail-sg:ZB-V", 28),
    ];
    assert_eq!(read, BTreeMap::from(expected), "records of each tool");
}

/// What PyTorch refuses for a reason of the schedule we refuse too, with the rule in numbers and the nearest legal
/// values; what it refuses as policy (1F1B with fewer microbatches than ranks) we run, with a warning.
#[test]
fn combinations_that_pytorch_rejects_are_refused_or_warned_about() {
    let (mut refused, mut warned) = (BTreeMap::new(), 0);
    for record in records(REJECTED) {
        let [p, m, v] = [1, 2, 3].map(|field| number(record[0][field]));
        let family = find(record[0][0]).unwrap();
        let params = ScheduleParams::new(p, m, v);
        if family.name == "1f1b" {
            // It runs and takes what its closed form says; the plan warns with both numbers.
            assert!(m < p, "torch refuses 1F1B only then");
            let mut scenario = Scenario { schema_version: 1, name: "test".to_owned(), ..Scenario::default() };
            scenario.parallel.pipeline_model_parallel_size = Some(p);
            scenario.training.num_microbatches = Some(m);
            scenario.schedules = vec![ScheduleEntry::named(family.name)];
            let plans = resolve(&scenario, &|_| Err("no files".to_owned())).unwrap();
            let told = plans[0].warnings.iter().any(|w| w.contains(&m.to_string()) && w.contains(&p.to_string()));
            assert!(told, "{:?}", plans[0].warnings);
            let run = run(&plans[0].order, &chunk_costs([1.0, 1.0, 1.0], 0.0, 1), &Options::default());
            assert_eq!(run.timeline.makespan(), f64::from((m + p - 1) * 3), "p={p} m={m}");
            warned += 1;
            continue;
        }
        let faults = family.order(&params).expect_err("torch rejects it");
        let what = record[0].join(" ");
        assert_eq!(faults.len(), 1, "{what}: {faults:?}");
        let two_chunks = family.chunks == Chunks::Two;
        let (path, rule, nearest) = if two_chunks && v != 2 {
            let rule = format!("needs 2 stages a rank = {} stages (down the ranks and back up), not {}", 2 * p, v * p);
            ("parallel.virtual_pipeline_model_parallel_size", rule, "_size to 2".to_owned())
        } else if two_chunks {
            ("training.num_microbatches", format!("{m} < 2 * {p} = {}", 2 * p), format!("use m = {}", 2 * p))
        } else if family.name == "interleaved-zb" {
            let rounds = |m: u32| (m / p).max(1);
            let even = |m: &u32| m.is_multiple_of(rounds(*m));
            let (below, above) = ((1..m).rev().find(even).unwrap(), (m + 1..).find(even).unwrap());
            let rule = format!("{m} % {} = {}", rounds(m), m % rounds(m));
            ("training.num_microbatches", rule, format!("use m = {below} or {above}"))
        } else {
            // Our rule without a group size is m mod p = 0, which is stricter.
            let nearest = format!("use m = {} or {}", m / p * p, (m / p + 1) * p);
            ("training.num_microbatches", format!("{m} % {p} = {}", m % p), nearest)
        };
        assert_eq!(faults[0].path, path, "{what}");
        assert!(faults[0].message.contains(&rule), "{what}: {rule} is not in {}", faults[0].message);
        assert!(faults[0].help.contains(&nearest), "{what}: {nearest} is not in {}", faults[0].help);
        *refused.entry(family.name).or_insert(0) += 1;
    }
    println!("refused: {refused:?}, warned about: {warned}");
    let expected = [("dualpipe-v", 125), ("interleaved-1f1b", 8), ("interleaved-zb", 8), ("zb-v", 105)];
    assert_eq!(refused, BTreeMap::from(expected));
    assert_eq!(refused.values().sum::<i32>() + warned, 257, "all that PyTorch refuses");
}

/// The sends and receives that PyTorch adds to interleaved 1F1B stand where ours do. Its programs also hold UNSHARD,
/// RESHARD and REDUCE_GRAD, which take a turn in the walk over the ranks and so move messages; an optimizer step stands
/// in for each.
#[test]
fn messages_stand_where_pytorch_puts_them() {
    let mut equal = 0;
    for record in records(LOWERED) {
        let [p, m, v, g] = [0, 1, 2, 3].map(|field| number(record[0][field]));
        let mut program = order("interleaved-1f1b", &params(p, m, v, Some(g)));
        let bare = program.to_csv(true);
        program.ranks = record[1..].iter().map(|tokens| tokens.iter().filter_map(|t| turn(t)).collect()).collect();
        assert_eq!(program.to_csv(false), bare, "p={p} m={m} v={v} g={g}: the same compute actions");
        let mut ours = add_send_recv(&program);
        ours.ranks.iter_mut().for_each(|actions| actions.retain(|a| a.op != Op::OptimizerStep));
        let is_ours = |token: &&str| token.parse::<Action>().is_ok_and(|a| a.op.has_microbatch());
        let theirs: Vec<Vec<&str>> = record[1..].iter().map(|t| t.iter().copied().filter(is_ours).collect()).collect();
        assert_eq!(ours.to_csv(true), csv(&theirs), "p={p} m={m} v={v} g={g}");
        equal += 1;
    }
    println!("lowerings equal: {equal}");
    assert_eq!(equal, 36);
}

/// What takes a turn before messages are added: compute actions, and whatever else is no message.
fn turn(token: &str) -> Option<Action> {
    let stage = token.trim_end_matches(|c: char| !c.is_ascii_digit());
    match token.parse::<Action>() {
        Ok(action) if action.op.has_microbatch() => action.op.is_compute().then_some(action),
        Ok(action) => Some(Action::whole_stage(action.stage, Op::OptimizerStep)),
        Err(_) => stage.parse().ok().map(|stage| Action::whole_stage(Stage::new(stage), Op::OptimizerStep)),
    }
}
