//! Whatever a file says, reading it comes to an end and never to a panic: one target a reader, each with bytes at random
//! and with valid files damaged at random.
//!
//! `PIPEWRIGHT_FUZZ_CASES` sets the cases of each target; a release build runs 20,000.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(clippy::print_stdout, reason = "the counts are the result")]

#[path = "../src/cli/locate.rs"]
mod locate;

#[cfg(test)]
mod support {
    pub(crate) mod random;
}

use pipewright::ir::action::{Action, Op, parse_cell, write_cell};
use pipewright::ir::cost_table::{CostTable, LayoutCosts, StageCosts};
use pipewright::ir::interchange::json::ScheduleFile;
use pipewright::ir::interchange::{csv, dot};
use pipewright::ir::metrics::Metrics;
use pipewright::ir::order::PipelineOrder;
use pipewright::ir::passes::{add_gradient_reduction, add_optimizer_step, add_send_recv};
use pipewright::ir::plan::{Plan, resolve};
use pipewright::ir::scenario::Scenario;
use pipewright::ir::schedule::Draft;
use pipewright::ir::schedules::{FAMILIES, ScheduleParams};
use pipewright::ir::spec::Semantics;
use pipewright::ir::workload::{StageWorkload, Workload};
use pipewright::sim::cost::{TableCost, workload_of};
use pipewright::sim::{Options, simulate};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};
use support::random::Random;

fn cases() -> u32 {
    let set = std::env::var("PIPEWRIGHT_FUZZ_CASES").ok().map(|n| n.parse().unwrap());
    set.unwrap_or(if cfg!(debug_assertions) { 1_000 } else { 20_000 })
}

/// What became of the inputs: read whole, or refused at some stage.
type Counts = BTreeMap<&'static str, u32>;

/// Runs `reader` on random bytes and, three times of four, on what `damaged` makes of a random seed.
fn fuzz(target: &str, damaged: impl Fn(&mut Random) -> String, reader: impl Fn(&str, &mut Random) -> &'static str) {
    let counts: RefCell<Counts> = RefCell::default();
    let config = Config { cases: cases(), failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let bytes = proptest::collection::vec(any::<u8>(), 0..200);
    let input = (0_u8..4, any::<u64>(), bytes);
    let outcome = TestRunner::new_with_rng(config, rng).run(&input, |(kind, seed, bytes)| {
        let mut random = Random(seed);
        let text = match kind {
            0 => String::from_utf8_lossy(&bytes).into_owned(),
            _ => damaged(&mut random),
        };
        let end = reader(&text, &mut random);
        *counts.borrow_mut().entry(end).or_default() += 1;
        Ok(())
    });
    let counts = counts.into_inner();
    println!("{target}: {counts:?}");
    assert!(outcome.is_ok(), "{target}: {}", outcome.unwrap_err());
    assert_eq!(counts.values().sum::<u32>(), cases(), "{target}: every case was run");
    assert!(counts.len() > 1, "{target}: damage that always or never matters tests nothing: {counts:?}");
}

/// Numbers at which things break.
const NUMBERS: [&str; 16] = [
    "0",
    "1",
    "2",
    "3",
    "255",
    "65535",
    "65536",
    "1048577",
    "2147483648",
    "4294967295",
    "4294967296",
    "18446744073709551615",
    "-1",
    "0.5",
    "1e308",
    "-1e308",
];

/// Changes a few characters.
fn damage_text(text: &str, random: &mut Random) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    for _ in 0..random.between(1, 3) {
        let at = random.below(chars.len() + 1);
        let end = (at + random.below(8)).min(chars.len());
        match random.below(5) {
            0 => drop(chars.drain(at..end)),
            1 => {
                let again: Vec<char> = chars[at..end].to_vec();
                chars.splice(at..at, again);
            }
            2 => {
                let number: Vec<char> = random.pick(&NUMBERS).chars().collect();
                // In the place of a number, where there is one.
                let start = (at..chars.len()).find(|i| chars[*i].is_ascii_digit()).unwrap_or(at);
                let digits = chars[start..].iter().take_while(|c| c.is_ascii_digit()).count();
                chars.splice(start..start + digits, number);
            }
            3 => chars.truncate(at),
            _ => chars
                .insert(at, random.pick(&['"', '{', '[', ',', ':', '\n', '(', ')', ';', '.', '-', '\u{0}', 'é', '#'])),
        }
        if chars.is_empty() {
            break;
        }
    }
    chars.into_iter().collect()
}

/// A random value inside a JSON value.
fn inside<'a>(value: &'a mut Value, random: &mut Random) -> &'a mut Value {
    let children = match &*value {
        Value::Array(items) => items.len(),
        Value::Object(fields) => fields.len(),
        _ => 0,
    };
    if children == 0 || random.below(6) == 0 {
        return value;
    }
    let n = random.below(children);
    let child = match value {
        Value::Array(items) => items.get_mut(n),
        Value::Object(fields) => fields.values_mut().nth(n),
        _ => None,
    };
    inside(child.unwrap(), random)
}

/// Changes a few values of a JSON file, and sometimes its text.
fn damage_json(file: &Value, random: &mut Random) -> String {
    let mut file = file.clone();
    for _ in 0..random.below(4) {
        let number: Value = serde_json::from_str(random.pick(&NUMBERS)).unwrap();
        let choice = random.below(9);
        let target = inside(&mut file, random);
        match (choice, &mut *target) {
            (0, Value::Array(items)) if !items.is_empty() => {
                let n = random.below(items.len());
                items.push(items[n].clone());
            }
            (1, Value::Array(items)) if !items.is_empty() => drop(items.remove(random.below(items.len()))),
            (1, Value::Object(fields)) if !fields.is_empty() => {
                let key = fields.keys().nth(random.below(fields.len())).unwrap().clone();
                fields.remove(&key);
            }
            (2, Value::Object(fields)) => drop(fields.insert("surprise".to_owned(), Value::Null)),
            (3, target) => *target = Value::Null,
            (4, target) => *target = json!([[[[[[]]]]]]),
            (5, target) => *target = json!("\u{0}\\\"é"),
            (6, target) => *target = Value::Bool(true),
            (_, Value::Array(_) | Value::Object(_)) => {}
            (_, target) => *target = number,
        }
    }
    let text = file.to_string();
    if random.below(3) == 0 { damage_text(&text, random) } else { text }
}

/// An order of a family, small.
fn small_order(random: &mut Random) -> PipelineOrder {
    loop {
        let family = &FAMILIES[random.below(FAMILIES.len())];
        let (p, m) = (random.between(1, 4), random.between(1, 6));
        let chunks = family.default_chunks(Some(random.between(1, 2)));
        if let Ok(order) = family.order(&ScheduleParams::new(p, m, chunks)) {
            return order;
        }
    }
}

/// Everything that is done with an order that was read.
fn use_order(order: &PipelineOrder) -> &'static str {
    if order.is_empty() {
        return "empty";
    }
    // As a plan does: what the order has already stays as it is.
    let mut program = order.clone();
    if !order.has(|op| op.is_send() || op.is_receive()) {
        program = add_send_recv(&program);
    }
    if !order.has(|op| op == Op::ReduceGrad) {
        program = add_gradient_reduction(program);
    }
    if !order.has(|op| op == Op::OptimizerStep) {
        program = add_optimizer_step(program);
    }
    assert!(program.len() <= order.len() * 5 + 4096, "{} actions from {}", program.len(), order.len());
    let stage = StageWorkload { activations: 5, output: 3, ..StageWorkload::default() };
    let stages = order.placement.stages().min(64) as usize;
    let workload = Workload { stages: vec![stage; stages], ..Workload::default() };
    let draft = Draft::lower(&program, &workload);
    for semantics in Semantics::ALL {
        for violation in draft.check(semantics) {
            assert!(!violation.to_string().is_empty() && violation.ids.len() == violation.tasks.len());
        }
    }
    let Ok(schedule) = draft.seal() else { return "unlawful" };
    let file = ScheduleFile::of("fuzz", &schedule, &workload);
    let again: ScheduleFile = serde_json::from_str(&file.to_text().unwrap()).unwrap();
    assert_eq!(again.read().unwrap().0, program, "a lawful order survives its JSON form");
    let _ = dot::write("fuzz", &schedule);
    "lawful"
}

#[test]
fn action_text() {
    let damaged = |random: &mut Random| {
        let order = small_order(random);
        let program = add_optimizer_step(add_send_recv(&order));
        let all: Vec<Action> = program.ranks.concat();
        let (a, b) = (random.below(all.len()), random.below(all.len()));
        let cell = if random.below(2) == 0 { write_cell(&[all[a]]) } else { write_cell(&[all[a], all[b].joined()]) };
        if random.below(4) == 0 { cell } else { damage_text(&cell, random) }
    };
    fuzz("action text", damaged, |text, _| match parse_cell(text) {
        Ok(parts) => {
            assert_eq!(parse_cell(&write_cell(&parts)), Ok(parts), "{text}");
            "read"
        }
        Err(error) => {
            assert!(error.to_string().len() < 400, "{error}");
            "refused"
        }
    });
}

#[test]
fn order_csv() {
    let damaged = |random: &mut Random| {
        let order = small_order(random);
        let order = if random.below(2) == 0 { add_send_recv(&order) } else { order };
        let text = order.to_csv(true);
        if random.below(8) == 0 { text } else { damage_text(&text, random) }
    };
    fuzz("order CSV", damaged, |text, random| {
        let m = random.pick(&[1, 2, 3, 4, 5, 6, 1_048_577, u32::MAX]);
        let reading = csv::read(text, m);
        for place in reading.errors.iter().map(|e| e.place).chain(reading.places.iter().flatten().copied()) {
            assert!(text.get(place.span.0..place.span.0 + place.span.1).is_some_and(|cell| !cell.is_empty()));
        }
        let again = csv::read(&reading.order.to_csv(true), m);
        assert_eq!(again.order.ranks, reading.order.ranks, "what was read is written and read again");
        let end = use_order(&reading.order);
        if reading.errors.is_empty() { end } else { "refused" }
    });
}

#[test]
fn schedule_json() {
    let files: Vec<Value> = [("0F0,0B0\n1F0,1B0\n", 1), ("0dF0,1uF0,(1uB0;0dB0)FUSED\n1dF0,0uF0,1dB0,0uB0\n", 2)]
        .into_iter()
        .map(|(csv, m)| {
            let order = PipelineOrder::from_csv(csv, m).unwrap();
            let stage = StageWorkload { activations: 5, output: 3, gradients: 2, ..StageWorkload::default() };
            let workload = Workload { rank_overhead: 1, stages: vec![stage; 2], ..Workload::default() };
            let program = add_optimizer_step(add_gradient_reduction(add_send_recv(&order)));
            let schedule = Draft::lower(&program, &workload).seal().unwrap();
            let mut file = ScheduleFile::of("fuzz", &schedule, &workload);
            // Without what is derived, damage to the programs is more than a disagreement.
            if m == 1 {
                (file.edges, file.buffers, file.persistent) = (None, None, None);
                file.tasks.iter_mut().for_each(|t| (t.id, t.lane, t.peer, t.effects) = (None, None, None, None));
            }
            serde_json::to_value(&file).unwrap()
        })
        .collect();
    let damaged = |random: &mut Random| damage_json(&files[random.below(files.len())], random);
    fuzz("schedule JSON", damaged, |text, _| {
        let Ok(file) = serde_json::from_str::<ScheduleFile>(text) else { return "no such file" };
        match file.read() {
            Ok((order, _)) => use_order(&order),
            Err(faults) => {
                assert!(!faults.is_empty() && faults.iter().all(|f| !f.message.is_empty() && !f.help.is_empty()));
                "refused"
            }
        }
    });
}

/// A scenario with every section.
fn scenario() -> Value {
    json!({
        "schema_version": 1, "name": "fuzz",
        "costs": { "model": "unit", "forward": 1, "backward_input": 1, "backward_weight": 1, "hop": 0.5,
                   "optimizer": 0, "stage_scale": [1, 1], "overlap": "sequential" },
        "model": { "num_layers": 4, "hidden_size": 16, "num_attention_heads": 2, "vocab_size": 32,
                   "max_position_embeddings": 16 },
        "parallel": { "pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 1,
                      "data_parallel_size": 1, "layout": [2, 2], "zero_stage": 0, "tensor_model_parallel_size": 2,
                      "context_parallel_size": 2, "expert_model_parallel_size": 1, "world_size": 8,
                      "sequence_parallel": ["megatron", "ring"], "order": "tp-cp-dp-pp",
                      "account_for_loss_in_pipeline_split": false },
        "cluster": { "preset": "dgx-a100-80g", "nodes": 1, "gpus": 8, "stack": "a100-megatron" },
        "training": { "global_batch_size": 8, "micro_batch_size": 2, "num_microbatches": 4, "seq_length": 16,
                      "dtype": "bf16", "gradient_dtype": "fp32", "recompute": ["none", "full"], "attention": "flash",
                      "clip_grad": 1.0, "dropout": false, "tp_comm_overlap": true },
        "schedules": ["gpipe", { "name": "1f1b", "max_activations": null, "num_seq_splits": null },
                      { "name": "interleaved-1f1b", "virtual_pipeline_model_parallel_size": 1,
                        "microbatch_group_size_per_vp_stage": 2, "layout": "Ett|ttL" },
                      { "name": "custom", "csv": "order.csv" }],
        "execute": { "device": "cpu", "steps": 1, "data": "data.txt", "seed": 0,
                     "optimizer": { "kind": "adamw", "lr": 0.001, "betas": [0.9, 0.99] } }
    })
}

const ORDER: &str = "0F0,0F1,0B0,0B1,0F2,0F3,0B2,0B3\n1F0,1F1,1B0,1B1,1F2,1F3,1B2,1B3\n";

/// The plans of a text, as the command line makes them; every fault has a place inside the text.
fn plans(text: &str) -> Result<Vec<Plan>, &'static str> {
    let value = locate::parse(text).map_err(|(_, (start, length))| {
        assert!(length > 0 && start <= text.len(), "{start} + {length} of {}", text.len());
        "no JSON"
    })?;
    let scenario: Scenario = serde_json::from_value(value).map_err(|_| "no scenario")?;
    let read = |file: &str| if file == "order.csv" { Ok(ORDER.to_owned()) } else { Err("no such file".to_owned()) };
    resolve(&scenario, &read).map_err(|faults| {
        assert!(!faults.is_empty());
        for fault in faults {
            assert!(!fault.message.is_empty(), "{fault:?}");
            if let Some((start, length)) = locate::span(text, &fault.path) {
                assert!(text.get(start..start + length).is_some(), "{fault:?}");
            }
        }
        "refused"
    })
}

#[test]
fn scenario_json() {
    let whole = scenario();
    let damaged = |random: &mut Random| damage_json(&whole, random);
    fuzz("scenario JSON", damaged, |text, _| {
        let plans = match plans(text) {
            Ok(plans) => plans,
            Err(end) => return end,
        };
        for plan in plans.iter().filter(|plan| plan.order.len() < 2_000) {
            let schedule = plan.schedule(&Workload::abstract_stages(plan.placement().stages()));
            assert!(schedule.is_ok() || plan.family == "custom", "{}", plan.name);
            assert!(plan.batch.tokens() >= plan.batch.microbatch_tokens() || plan.batch.tokens() == 0);
            if let Some(model) = &plan.model {
                assert!(model.parameters() > 0);
            }
        }
        "planned"
    });
}

#[test]
fn cost_table_json() {
    let plan = plans(&scenario().to_string()).unwrap().remove(1);
    let stage = |layers| StageCosts { layers, activations: 100, parameters: 10, gradients: 10, ..Default::default() };
    let stages = vec![stage([0, 2]), stage([2, 4])];
    let layouts = vec![LayoutCosts { rank_overhead: 7, stages }];
    let table = CostTable { schema_version: 1, cores: 2, job: plan.job.clone(), layouts, ..CostTable::default() };
    let table = serde_json::to_value(&table).unwrap();
    let damaged = |random: &mut Random| damage_json(&table, random);
    fuzz("cost table JSON", damaged, |text, _| {
        let Ok(table) = serde_json::from_str::<CostTable>(text) else { return "no table" };
        if table.first_fault().is_some() {
            return "refused";
        }
        let Ok(costs) = TableCost::new(&table, &plan) else { return "of another job" };
        let schedule = plan.schedule(&workload_of(&table, &plan)).unwrap();
        for cores in [None, Some(table.cores)] {
            let options = Options { cores, contention: table.contention, ..Options::default() };
            let timeline = simulate(&schedule, &costs, &options);
            let metrics = Metrics::of(&schedule, &timeline);
            assert!(metrics.makespan.is_finite() && metrics.makespan >= 0.0, "{}", metrics.makespan);
        }
        "simulated"
    });
}

/// The tool itself answers whatever it is given with one of its codes, never with that of a bug.
#[test]
fn the_command_line_never_has_a_bug_to_report() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz");
    std::fs::create_dir_all(&folder).unwrap();
    let whole = scenario();
    let mut random = Random(1);
    let mut codes: BTreeMap<i32, u32> = BTreeMap::new();
    let runs = cases() / 100;
    for run in 0..runs {
        let csv = damage_text(ORDER, &mut random);
        std::fs::write(folder.join("order.csv"), csv).unwrap();
        let (text, verb) = if run.is_multiple_of(2) {
            (damage_json(&whole, &mut random), random.pick(&["plan", "check", "simulate", "model"]))
        } else {
            (whole.to_string(), "check")
        };
        let mut child = Command::new(env!("CARGO_BIN_EXE_pipewright"))
            .args([verb, "-", "--json"])
            .current_dir(&folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let code = output.status.code().unwrap_or(-1);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!((0..=2).contains(&code), "{verb}: code {code}\n{told}\n{text}");
        assert!(code != 2 || !told.is_empty(), "{verb}: refused without a word\n{text}");
        *codes.entry(code).or_default() += 1;
    }
    println!("command line: {codes:?}");
    assert_eq!(codes.values().sum::<u32>(), runs);
}

/// Inputs whose size is in a number, or in their depth, are refused before anything is made for them.
#[test]
fn what_is_absurdly_large_is_refused_early() {
    let with = |path: &str, value: Value| {
        let mut scenario = scenario();
        *scenario.pointer_mut(path).unwrap() = value;
        plans(&scenario.to_string())
    };
    for number in [json!(u32::MAX), json!(1 << 30), json!(100_000_000)] {
        for path in [
            "/parallel/pipeline_model_parallel_size",
            "/training/num_microbatches",
            "/schedules/2/virtual_pipeline_model_parallel_size",
            "/model/num_layers",
        ] {
            assert_eq!(with(path, number.clone()).err(), Some("refused"), "{path} = {number}");
        }
    }
    for text in ["[".repeat(1 << 20), "{\"a\":".repeat(1 << 20), "\"".repeat(1 << 20)] {
        assert_eq!(plans(&text).err(), Some("no JSON"));
        assert!(serde_json::from_str::<ScheduleFile>(&text).is_err());
    }
    let keys: Vec<String> = (0..200_000).map(|i| format!("\"k{i}\": 0")).collect();
    assert_eq!(plans(&format!("{{ {} }}", keys.join(", "))).err(), Some("no scenario"));
    // An order names numbers that no table could hold.
    for (csv, m) in [
        ("4294967295F4294967295\n", u32::MAX),
        ("0F0.65535\n", u32::MAX),
        ("0uF0,4294967294dF4294967295.65535\n", u32::MAX - 1),
        ("0F4294967295,0B0\n", 1 << 21),
    ] {
        let order = csv::read(csv, m).order;
        assert_eq!(use_order(&order), "unlawful", "{csv}");
        assert!(order.cells().len() <= 1 << 20, "{csv}");
    }
}
