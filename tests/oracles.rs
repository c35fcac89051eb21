//! The orders of other tools are ours, token for token. (Their times: `oracle_times.rs`.)
//!
//! The data is in `tests/oracle_data/`, its README says where each number comes from.

#[cfg(test)]
mod support {
    pub(crate) mod build;
    pub(crate) mod data;
    pub(crate) mod families;
}

use pipewright::ir::action::{Action, Op};
use pipewright::ir::ids::Stage;
use pipewright::ir::passes::add_send_recv;
use pipewright::ir::plan::resolve;
use pipewright::ir::scenario::{Scenario, ScheduleEntry};
use pipewright::ir::schedules::{Chunks, ScheduleParams, find};
use pipewright::sim::Options;
use std::collections::BTreeMap;
use support::build::{chunk_costs, run};
use support::data::{csv, number, records};
use support::families::{key, order, params};

const ORDERS: &str = include_str!("oracle_data/orders.txt");
const REJECTED: &str = include_str!("oracle_data/rejected.txt");
const LOWERED: &str = include_str!("oracle_data/lowered.txt");

/// Every order that PyTorch, Megatron-LM, DeepSpeed, JaxPP and sail-sg print for a family that we have is ours.
#[test]
fn orders_of_other_tools_are_ours_token_for_token() {
    let mut equal: BTreeMap<&str, usize> = BTreeMap::new();
    for record in records(ORDERS) {
        let (family, [p, m, v], g) = key(&record[0]);
        let published = csv(&record[1..]);
        let what = format!("{family} p={p} m={m} v={v} g={g:?} of {}", record[0][5]);
        assert_eq!(order(family, &params(p, m, v, g)).to_csv(true), published, "{what}");
        if g == Some(p) && m.is_multiple_of(p) {
            assert_eq!(order(family, &params(p, m, v, None)).to_csv(true), published, "{what}, strict form");
        }
        for source in record[0][5].split(',') {
            *equal.entry(source).or_default() += 1;
        }
    }
    println!("orders equal: {equal:?}");
    let expected = [
        ("DeepSpeed:TrainSchedule", 40),
        ("JaxPP:Eager1F1B", 16),
        ("JaxPP:GPipe", 16),
        ("JaxPP:Interleaved1F1B", 45),
        ("JaxPP:Std1F1B", 16),
        ("Megatron-LM:interleaved-1F1B", 86),
        ("sail-sg:basic1f1b", 28),
        ("sail-sg:vpp", 26),
        ("torch:1F1B", 24),
        ("torch:GPipe", 35),
        ("torch:Interleaved1F1B", 132),
    ];
    assert_eq!(equal, BTreeMap::from(expected), "records of each tool");
}

/// What PyTorch refuses for a reason of the schedule we refuse too, with the numbers and a way out; what it refuses as
/// policy (1F1B with fewer microbatches than ranks) we run, with a warning.
#[test]
fn combinations_that_pytorch_rejects_are_refused_or_warned_about() {
    let (mut refused, mut warned) = (0, 0);
    for record in records(REJECTED) {
        let [p, m, v] = [1, 2, 3].map(|field| number(record[0][field]));
        let family = find(record[0][0]).unwrap();
        let params = ScheduleParams::new(p, m, v);
        if family.chunks == Chunks::Any {
            let faults = family.order(&params).expect_err("torch rejects it");
            assert_eq!(faults.len(), 1, "{faults:?}");
            assert_eq!(faults[0].path, "training.num_microbatches");
            let rule = format!("{m} % {p} = {}", m % p);
            assert!(faults[0].message.contains(&rule), "{rule}: {}", faults[0].message);
            let nearest = format!("{} or {}", m / p * p, (m / p + 1) * p);
            assert!(faults[0].help.contains(&nearest), "{nearest}: {}", faults[0].help);
            refused += 1;
        } else {
            assert!(m < p, "torch refuses 1F1B only then");
            let mut scenario = Scenario { schema_version: 1, name: "test".to_owned(), ..Scenario::default() };
            scenario.parallel.pipeline_model_parallel_size = Some(p);
            scenario.training.num_microbatches = Some(m);
            scenario.schedules = vec![ScheduleEntry::named(family.name)];
            let plans = resolve(&scenario, &|_| Err("no files".to_owned())).unwrap();
            let told = plans[0].warnings.iter().any(|w| w.contains(&m.to_string()) && w.contains(&p.to_string()));
            assert!(told, "{:?}", plans[0].warnings);
            let makespan =
                run(&plans[0].order, &chunk_costs([1.0, 1.0, 1.0], 0.0, 1), &Options::default()).timeline.makespan();
            assert_eq!(makespan, f64::from((m + p - 1) * 3), "p={p} m={m}");
            warned += 1;
        }
    }
    assert_eq!((refused, warned), (8, 11));
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
