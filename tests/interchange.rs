//! Orders and schedules go to other tools and come back: CSV as PyTorch writes it, the schedule as JSON, DOT.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use pipewright::ir::action::Op;
use pipewright::ir::fault::Fault;
use pipewright::ir::interchange::csv::{self, Reading};
use pipewright::ir::order::PipelineOrder;
use pipewright::ir::plan::{Plan, resolve};
use pipewright::ir::scenario::{Scenario, ScheduleEntry};
use pipewright::ir::schedule::Draft;
use pipewright::ir::spec::{Rule, Semantics};
use pipewright::ir::workload::Workload;
use std::collections::BTreeMap;

/// Compute and communication programs as PyTorch prints them.
const PROGRAMS: &str = include_str!("oracle_data/torch_programs.txt");

/// The programs: schedule, p, m, v, then the tokens of each rank.
fn programs() -> impl Iterator<Item = (&'static str, [u32; 3], Vec<Vec<&'static str>>)> {
    PROGRAMS.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let mut groups = line.split(" | ").map(|group| group.split_whitespace().collect::<Vec<_>>());
        let head = groups.next().unwrap();
        (head[0], [1, 2, 3].map(|field: usize| head[field].parse().unwrap()), groups.collect())
    })
}

fn is_compute(token: &str) -> bool {
    token.starts_with('(') || ["F", "B", "I", "W"].contains(&token.trim_matches(|c: char| c.is_ascii_digit()))
}

/// The tokens that `keep` says, as CSV.
fn csv_of(ranks: &[Vec<&str>], keep: impl Fn(&str) -> bool) -> String {
    let line = |tokens: &Vec<&str>| tokens.iter().copied().filter(|t| keep(t)).collect::<Vec<_>>().join(",") + "\n";
    ranks.iter().map(line).collect()
}

fn violations(order: &PipelineOrder, semantics: Semantics) -> Vec<Rule> {
    let workload = Workload::abstract_stages(order.placement.stages());
    Draft::lower(order, &workload).check(semantics).into_iter().map(|v| v.rule).collect()
}

/// All of PyTorch's programs are read, keep the law, and come back as they were.
#[test]
fn programs_of_pytorch_come_in_and_go_out() {
    let mut read: BTreeMap<&str, usize> = BTreeMap::new();
    let mut lawful: BTreeMap<&str, usize> = BTreeMap::new();
    for (schedule, [p, m, v], programs) in programs() {
        let what = format!("{schedule} p={p} m={m} v={v}");
        let programs = &programs;
        let Reading { order, errors, skipped, places } = csv::read(&csv_of(programs, |_| true), m);
        assert_eq!(errors, [], "{what}");
        assert_eq!((order.placement.ranks(), order.placement.stages()), (p, p * v), "{what}");
        assert_eq!(order.ranks.len(), places.len(), "{what}");

        let sharding = |t: &str| ["SHARD", "WAIT_", "REDUCE_GRAD"].iter().any(|part| t.contains(part));
        let left_out = programs.iter().flatten().filter(|t| sharding(t)).count();
        assert_eq!(skipped.values().sum::<usize>(), left_out, "{what}: {skipped:?}");
        assert_eq!(skipped["UNSHARD"], skipped["RESHARD"], "{what}: {skipped:?}");
        assert_eq!(skipped["REDUCE_GRAD"], (p * v) as usize, "{what}: once a stage");
        assert_eq!(order.to_csv(false), csv_of(programs, is_compute), "{what}: compute");
        let kept = csv_of(programs, |t| !sharding(t));
        assert_eq!(order.to_csv(true), kept, "{what}: compute and messages");

        // For PyTorch each stage's gradients are reduced once, behind the last of them.
        let back = order.to_torch_csv(true).unwrap();
        assert_eq!(back.matches("REDUCE_GRAD").count(), (p * v) as usize, "{what}");
        let again = csv::read(&back, m);
        assert_eq!((&again.order, again.skipped["REDUCE_GRAD"]), (&order, (p * v) as usize), "{what}");
        assert_eq!(order.to_torch_csv(false).unwrap(), csv_of(programs, is_compute), "{what}");

        assert_eq!(violations(&order, Semantics::Eager), [], "{what}");
        *read.entry(schedule).or_default() += 1;
        for semantics in Semantics::ALL {
            if violations(&order, semantics).is_empty() {
                *lawful.entry(semantics.name()).or_default() += 1;
            }
        }
    }
    println!("programs read: {read:?}, without deadlock under: {lawful:?}");
    let expected = [
        ("DualPipeV", 4),
        ("Interleaved1F1B", 36),
        ("InterleavedZeroBubble", 36),
        ("LoopedBFS", 36),
        ("ZBVZeroBubble", 12),
    ];
    assert_eq!(read, BTreeMap::from(expected));
    assert_eq!(lawful["eager"], 124);
}

fn custom(csv: &str, p: u32, m: u32) -> Result<Plan, Vec<Fault>> {
    let mut scenario = Scenario { schema_version: 1, name: "test".to_owned(), ..Scenario::default() };
    scenario.parallel.pipeline_model_parallel_size = Some(p);
    scenario.training.num_microbatches = Some(m);
    let csv_file = Some("mine.csv".to_owned());
    scenario.schedules = vec![ScheduleEntry { csv: csv_file, ..ScheduleEntry::named("custom") }];
    Ok(resolve(&scenario, &|_| Ok(csv.to_owned()))?.remove(0))
}

#[test]
fn what_has_no_meaning_in_one_pipeline_is_told_once_with_its_counts() {
    let csv = "0UNSHARD,0F0,0B0,0REDUCE_GRAD,0RESHARD\n1UNSHARD,1F0,1B0,1REDUCE_GRAD,1RESHARD,1WAIT_SEND_B0\n";
    let plan = custom(csv, 2, 1).unwrap();
    let told: Vec<&String> = plan.warnings.iter().filter(|w| w.contains("skipped")).collect();
    assert_eq!(told.len(), 1, "{told:?}");
    for part in ["mine.csv", "2 UNSHARD", "2 RESHARD", "2 REDUCE_GRAD", "1 WAIT_SEND_B"] {
        assert!(told[0].contains(part), "{part}: {}", told[0]);
    }
    assert!(!plan.program().has(|op| op == Op::ReduceGrad));
    assert!(plan.schedule(&Workload::abstract_stages(2)).is_ok());
    assert!(custom("0F0,0B0\n1F0,1B0\n", 2, 1).unwrap().warnings.is_empty());
    for nothing in ["", "# mine\n\n", ".,.\n,\n", "0UNSHARD\n1UNSHARD\n"] {
        assert_eq!(custom(nothing, 2, 1).unwrap_err()[0].code, "custom::empty", "{nothing:?}");
    }
}

#[test]
fn every_violation_points_at_its_cells() {
    // Twice, missing, out of range, on the wrong rank, and a backward before its forward.
    let csv = "0F0,0F0,0B0,0F7,1F1\n1B0,1F0,1B1\n";
    let plan = custom(csv, 2, 2).unwrap();
    let draft = plan.draft(&Workload::abstract_stages(2));
    let source = plan.source.as_ref().unwrap();
    let places = source.places(&draft);
    let mut drawn: BTreeMap<Rule, Vec<(usize, usize, &str)>> = BTreeMap::new();
    for violation in draft.check(Semantics::Eager) {
        assert_eq!(violation.ids.len(), violation.tasks.len());
        for place in violation.ids.iter().filter_map(|id| places[id.index()]) {
            let cell = &csv[place.span.0..place.span.0 + place.span.1];
            drawn.entry(violation.rule).or_default().push((place.line, place.cell, cell));
        }
    }
    assert_eq!(drawn[&Rule::InRange], [(1, 4, "0F7")]);
    assert_eq!(drawn[&Rule::ExactlyOnce], [(1, 1, "0F0"), (1, 2, "0F0")]);
    assert_eq!(drawn[&Rule::Placement], [(1, 5, "1F1")]);
    assert_eq!(drawn[&Rule::ForwardFirst], [(2, 1, "1B0"), (2, 2, "1F0")]);
}

#[test]
fn cells_that_cannot_be_read_do_not_hide_what_else_is_wrong() {
    let csv = "0F0,0F0,zero,0F9\n1F0,1B0\n2F0\n";
    let faults = custom(csv, 2, 1).unwrap_err();
    let codes: Vec<&str> = faults.iter().map(|f| f.code).collect();
    assert_eq!(codes, ["custom::cell", "custom::ranks", "custom::rule", "custom::rule"], "{faults:?}");
    let cell =
        |f: &Fault| f.file.as_ref().map(|place| &csv[place.span.0..place.span.0 + place.span.1]).map(str::to_owned);
    let cells: Vec<Option<String>> = faults.iter().map(cell).collect();
    assert_eq!(cells, [Some("zero"), None, Some("0F9"), Some("0F0")].map(|c| c.map(str::to_owned)));
}
