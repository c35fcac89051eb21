//! The command line from outside: exit codes, JSON names, and what bad input is answered.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use serde_json::Value;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

fn pipewright(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pipewright")).args(args).env("NO_COLOR", "1").output().unwrap()
}

/// Runs with a scenario on stdin, from the folder of shipped scenarios.
fn with_scenario(args: &[&str], scenario: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_pipewright"))
        .args(args)
        .env("NO_COLOR", "1")
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(scenario.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn json(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> String {
    // Diagnostics wrap to the terminal; compare without line breaks and box characters.
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    text.split_whitespace().filter(|w| !["│", "×", "╰─▶"].contains(w)).collect::<Vec<_>>().join(" ")
}

/// A temporary file in a folder of this test run.
fn temporary(name: &str, content: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join(name);
    std::fs::write(&path, content).unwrap();
    path
}

const P4_M8: &str = r#"{ "schema_version": 1, "name": "p4-m8", "costs": { "model": "unit" },
  "parallel": { "pipeline_model_parallel_size": 4 }, "training": { "num_microbatches": 8 },
  "schedules": ["gpipe", "1F1B", { "name": "Interleaved1F1B", "virtual_pipeline_model_parallel_size": 2 }] }"#;

#[test]
fn simulate_answers_with_the_names_that_scripts_rely_on() {
    let answer = json(&with_scenario(&["simulate", "-", "--json"], P4_M8));
    assert_eq!(answer["schema_version"], 1);
    assert_eq!(answer["scenario"], "p4-m8");
    let run = &answer["runs"][1];
    assert_eq!(run["schedule"], "1f1b");
    assert_eq!((run["p"].as_u64(), run["m"].as_u64(), run["v"].as_u64()), (Some(4), Some(8), Some(1)));
    assert_eq!(run["makespan"], 33.0);
    assert!((run["bubble_fraction"].as_f64().unwrap() - 9.0 / 33.0).abs() < 1e-12);
    assert_eq!(run["bubble_overhead"], 0.375);
    assert_eq!(run["messages"], 48);
    let rank = &run["ranks"][0];
    assert_eq!(rank["rank"], 0);
    for (key, value) in [("busy", 24.0), ("idle", 9.0), ("first_start", 0.0), ("last_end", 33.0), ("span_idle", 9.0)] {
        assert_eq!(rank[key], value, "{key}");
    }
    assert_eq!(rank["peak_activations"], 4.0);
    assert_eq!(rank["peak_memory_bytes"], 0);
    for class in ["parameters", "gradients", "optimizer", "activations", "logits", "buffers", "overhead"] {
        assert_eq!(rank["memory_at_peak"][class], 0);
    }
    assert_eq!(answer["runs"][2]["makespan"], 28.5);
    assert_eq!(answer["runs"][2]["ranks"][0]["peak_activations"], 5.5);
}

#[test]
fn steps_and_barrier() {
    let three = json(&with_scenario(&["simulate", "-", "--schedule", "1f1b", "--steps", "3", "--json"], P4_M8));
    assert_eq!(three["runs"].as_array().unwrap().len(), 1);
    assert_eq!(three["runs"][0]["makespan"], 99.0);
    assert_eq!(three["runs"][0]["steps"], 3);
}

#[test]
fn show_prints_the_order_and_a_family_that_is_not_listed() {
    let output = with_scenario(&["show", "-", "--schedule", "naive", "--csv"], &P4_M8.replace("8 }", "1 }"));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0F0,0B0\n1F0,1B0\n2F0,2B0\n3F0,3B0\n");
    let output = with_scenario(&["show", "-", "--schedule", "1f1b", "--csv", "--comms"], P4_M8);
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("0F0,0SEND_F0,0F1,0SEND_F1,"));
}

#[test]
fn check_says_yes_with_0_and_no_with_1() {
    let fine = with_scenario(&["check", "-", "--json"], P4_M8);
    let answer = json(&fine);
    assert_eq!((answer["ok"].as_bool(), answer["violations"].as_array().map(Vec::len)), (Some(true), Some(0)));

    let csv = temporary("broken.csv", "0F0,0B0,0F1,0F1\n1F0,1B0,1F1,1B1\n");
    let scenario = custom(&csv, 2, 2);
    let output = with_scenario(&["check", "-", "--json"], &scenario);
    assert_eq!(output.status.code(), Some(1));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rules: Vec<&str> =
        answer["violations"].as_array().unwrap().iter().map(|v| v["rule"].as_str().unwrap()).collect();
    assert!(
        rules.iter().filter(|r| **r == "R02 exactly-once").count() >= 2,
        "a duplicate and a missing one: {rules:?}"
    );
    let first = &answer["violations"][0];
    assert!(first["message"].is_string() && first["help"].is_string() && first["tasks"].is_array());
    // What breaks the law is not simulated.
    let output = with_scenario(&["simulate", "-"], &scenario);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("pipewright check"), "{}", stderr(&output));
}

#[test]
fn check_names_the_semantics_of_a_deadlock() {
    let csv = temporary("a11.csv", "0SEND_F1,0RECV_B0\n1SEND_B0,1RECV_F1\n");
    let scenario = custom(&csv, 2, 2);
    let deadlock = |sends: &str| {
        let output = with_scenario(&["check", "-", "--sends", sends], &scenario);
        String::from_utf8_lossy(&output.stdout).contains("deadlock under")
    };
    assert!(deadlock("rendezvous") && deadlock("stream-fifo") && !deadlock("eager"));
}

fn custom(csv: &std::path::Path, p: u32, m: u32) -> String {
    format!(
        r#"{{ "schema_version": 1, "name": "custom", "costs": {{ "model": "unit" }},
           "parallel": {{ "pipeline_model_parallel_size": {p} }}, "training": {{ "num_microbatches": {m} }},
           "schedules": [{{ "name": "custom", "csv": {:?} }}] }}"#,
        csv.display().to_string()
    )
}

/// (what is wrong, the change to P4_M8, what the answer must say)
const BAD: &[(&str, &str, &str, &[&str])] = &[
    (
        "unknown field",
        "\"num_microbatches\"",
        "\"num_microbatch\"",
        &["num_microbatch", "did you mean `num_microbatches`", "2:68"],
    ),
    ("unknown section", "\"parallel\"", "\"paralel\"", &["paralel", "did you mean `parallel`"]),
    ("wrong type", "8 }", "\"eight\" }", &["training.num_microbatches", "eight", "expected a whole number"]),
    ("negative count", "8 }", "-8 }", &["training.num_microbatches", "-8"]),
    ("m = 0", "8 }", "0 }", &["training.num_microbatches is 0", "use 1 or more"]),
    ("p = 0", "_parallel_size\": 4", "_parallel_size\": 0", &["pipeline_model_parallel_size is 0"]),
    ("negative cost", "\"unit\" }", "\"unit\", \"forward\": -1 }", &["costs.forward is -1", "from 0 to"]),
    ("NaN", "\"unit\" }", "\"unit\", \"hop\": NaN }", &["not valid JSON", "NaN"]),
    ("not JSON", "\"training\"", "training", &["not valid JSON"]),
    ("a key twice", "\"name\": \"p4-m8\"", "\"name\": \"a\", \"name\": \"b\"", &["\"name\" stands twice"]),
    ("unknown schedule", "\"gpipe\"", "\"gpip\"", &["`gpip` is not a schedule", "gpipe"]),
    (
        "chunks where there are none",
        "\"gpipe\"",
        "{ \"name\": \"gpipe\", \"virtual_pipeline_model_parallel_size\": 2 }",
        &["gpipe holds one chunk a rank, not 2"],
    ),
    ("interleaved, m = 10", "8 }", "10 }", &["10 % 4 = 2", "m = 8 or 12", "microbatch_group_size_per_vp_stage"]),
    ("interleaved, m = 3", "8 }", "3 }", &["3 % 4 = 3", "m = 4", "global_batch_size"]),
    (
        "wrong stage_scale",
        "\"unit\" }",
        "\"unit\", \"stage_scale\": [1, 2] }",
        &["stage_scale has 2 entries", "4 stages"],
    ),
    (
        "A4 f",
        "\"num_microbatches\": 8 }",
        "\"global_batch_size\": 2048, \"micro_batch_size\": 3, \"num_microbatches\": null }, \"execute\": null",
        &["not a multiple", "2048 % 3 = 2"],
    ),
    (
        "A4 l",
        "\"num_microbatches\": 8 }",
        "\"global_batch_size\": 8, \"num_microbatches\": 3 }",
        &["8 % 3 = 2", "use 2 or 4 microbatches"],
    ),
    ("unknown version", "\"schema_version\": 1", "\"schema_version\": 2", &["schema_version 2", "use 1"]),
    (
        "no schedules",
        "\"schedules\": [\"gpipe\", \"1F1B\", { \"name\": \"Interleaved1F1B\", \"virtual_pipeline_model_parallel_size\": 2 }]",
        "\"schedules\": []",
        &["no schedule is named"],
    ),
    ("custom without csv", "\"gpipe\"", "\"custom\"", &["needs the path of its order"]),
    (
        "csv missing",
        "\"gpipe\"",
        "{ \"name\": \"custom\", \"csv\": \"nowhere.csv\" }",
        &["cannot read nowhere.csv", "relative to the scenario"],
    ),
    ("too much", "8 }", "4000000000 }", &["are 16000000000 pairs, more than 1048576"]),
    (
        "heads",
        "\"costs\"",
        "\"model\": { \"num_layers\": 4, \"hidden_size\": 20, \"num_attention_heads\": 3 }, \"costs\"",
        &["20 % 3 = 2", "use 2 or 4 heads"],
    ),
    (
        "v does not divide layers",
        "\"costs\"",
        "\"model\": { \"num_layers\": 12, \"hidden_size\": 16, \"num_attention_heads\": 2 }, \"costs\"",
        &["12 % 8 = 4", "8 or 16 layers"],
    ),
    (
        "layout",
        "_parallel_size\": 4 }, \"training\"",
        "_parallel_size\": 4, \"layout\": [1, 2, 2] }, \"model\": { \"num_layers\": 8, \"hidden_size\": 16, \"num_attention_heads\": 2 }, \"training\"",
        &["3 entries for 4 stages", "sum to 5"],
    ),
];

#[test]
fn bad_scenarios_are_answered_with_the_place_the_rule_and_the_way_out() {
    for (what, from, to, expected) in BAD {
        let scenario = P4_M8.replacen(from, to, 1);
        assert_ne!(&scenario, P4_M8, "{what}: the change does nothing");
        let output = with_scenario(&["simulate", "-"], &scenario);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{what}: {text}");
        assert!(output.stdout.is_empty(), "{what}: no result on stdout");
        for part in *expected {
            assert!(text.contains(part), "{what}: expected `{part}` in: {text}");
        }
        assert!(!text.contains("panicked"), "{what}: {text}");
    }
}

#[test]
fn every_bad_cell_of_a_csv_is_reported() {
    for (name, csv, expected) in [
        ("cells.csv", "0F0,zero,0B0\n1F0,1B0,1Q1\n", ["line 1, cell 2", "line 2, cell 3"]),
        ("lines.csv", "0F0,0B0\n", ["has 1 lines", "parallel.pipeline_model_parallel_size"]),
    ] {
        let path = temporary(name, csv);
        let output = with_scenario(&["check", "-"], &custom(&path, 2, 1));
        assert_eq!(output.status.code(), Some(2));
        for part in expected {
            assert!(stderr(&output).contains(part), "{name}: {}", stderr(&output));
        }
    }
    let path = temporary("range.csv", "0F0,0F9,0B0,9F0\n1F0,1B0\n");
    let output = with_scenario(&["check", "-"], &custom(&path, 2, 1));
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("0F9 is outside the plan") && text.contains("9F0 is outside the plan"), "{text}");
}

#[test]
fn check_draws_violations_at_their_cells() {
    let path = temporary("drawn.csv", "0F0,0B0,0F1,0F1\n1F0,1B0,1F1,1B1\n");
    let scenario = custom(&path, 2, 2);
    let text = String::from_utf8(with_scenario(&["check", "-"], &scenario).stdout).unwrap();
    let drawn = format!("{}, line 1, cell 4:\n      0F0,0B0,0F1,0F1\n                  ^^^\n", path.display());
    assert!(text.contains(&drawn), "{text}");
    let answer: Value = serde_json::from_slice(&with_scenario(&["check", "-", "--json"], &scenario).stdout).unwrap();
    let twice = answer["violations"].as_array().unwrap().iter().find(|v| v["tasks"].as_array().unwrap().len() == 2);
    let place = &twice.unwrap()["places"][1];
    assert_eq!((place["line"].as_u64(), place["cell"].as_u64()), (Some(1), Some(4)));
    assert_eq!((place["offset"].as_u64(), place["length"].as_u64()), (Some(12), Some(3)));
}

#[test]
fn what_pytorch_writes_beyond_a_pipeline_is_skipped_with_a_word() {
    let path =
        temporary("torch.csv", "0UNSHARD,0F0,0B0,0REDUCE_GRAD,0RESHARD\n1UNSHARD,1F0,1B0,1REDUCE_GRAD,1RESHARD\n");
    let output = with_scenario(&["check", "-"], &custom(&path, 2, 1));
    assert_eq!(output.status.code(), Some(0));
    let told = stderr(&output);
    assert!(told.contains("skipped 2 REDUCE_GRAD, 2 RESHARD, 2 UNSHARD"), "{told}");
    assert_eq!(told.matches("skipped").count(), 1, "{told}");
}

#[test]
fn a_schedule_goes_out_as_json_and_comes_back() {
    let show = |args: &[&str], scenario: &str| {
        let output = with_scenario(&[&["show", "-", "--schedule"], args].concat(), scenario);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let text = show(&["interleaved-1f1b", "--format", "json"], P4_M8);
    let file: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(file["placement"]["rank_of_stage"], serde_json::json!([0, 1, 2, 3, 0, 1, 2, 3]));
    assert_eq!(file["tasks"][0]["op"], "F");
    assert_eq!(
        (file["edges"][0]["kind"].as_str(), file["buffers"][0]["class"].as_str()),
        (Some("data"), Some("activations"))
    );
    let path = temporary("schedule.json", &text);
    let entry = format!("[{{ \"name\": \"custom\", \"json\": {:?} }}]", path.display().to_string());
    let start = P4_M8.find("[\"gpipe\"").unwrap();
    let scenario = format!("{}{entry} }}", &P4_M8[..start]);
    assert_eq!(
        show(&["custom", "--csv", "--comms"], &scenario),
        show(&["interleaved-1f1b", "--csv", "--comms"], P4_M8)
    );
    let again: Value = serde_json::from_str(&show(&["custom", "--format", "json"], &scenario)).unwrap();
    assert_eq!((&again["tasks"], &again["edges"]), (&file["tasks"], &file["edges"]));
    // What the file says of the graph must follow from its programs, and it must be for this scenario.
    let path = temporary("schedule.json", &text.replacen("\"payload_bytes\":0", "\"payload_bytes\":7", 1));
    let output = with_scenario(&["check", "-"], &scenario);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("payload_bytes is 7, but 0 follows"), "{}", stderr(&output));
    std::fs::write(&path, &text).unwrap();
    let output = with_scenario(&["check", "-"], &scenario.replace("8 }", "4 }"));
    assert!(stderr(&output).contains("a step of 8 microbatches, but this scenario has 4"), "{}", stderr(&output));
    std::fs::write(&path, &text[..text.len() / 2]).unwrap();
    let output = with_scenario(&["check", "-"], &scenario);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("EOF while parsing"), "{}", stderr(&output));
}

#[test]
fn forms_for_other_tools() {
    let show = |args: &[&str]| with_scenario(&[&["show", "-", "--schedule"], args].concat(), P4_M8);
    let text = |output: Output| String::from_utf8(output.stdout).unwrap();
    assert_eq!(text(show(&["1f1b", "--csv"])), text(show(&["1f1b", "--format", "torch-csv"])));
    let torch = text(show(&["1f1b", "--format", "torch-csv", "--comms"]));
    assert!(torch.contains("0REDUCE_GRAD\n") && !torch.contains("OPTIMIZER_STEP"), "{torch}");
    let dot = text(show(&["1f1b", "--format", "dot"]));
    assert!(dot.starts_with("digraph schedule {") && dot.contains("label=\"p4-m8: 1f1b\""), "{dot}");
    let output = with_scenario(&["show", "-", "--schedule", "1f1b", "--format", "dot"], &P4_M8.replace("8 }", "64 }"));
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("1284 tasks are more than 500"), "{}", stderr(&output));
    let output = with_scenario(&["show", "-", "--format", "json"], P4_M8);
    assert!(stderr(&output).contains("choose one with --schedule"), "{}", stderr(&output));
}

#[test]
fn one_microbatch_is_accepted_with_a_warning() {
    let output = with_scenario(&["simulate", "-", "--schedule", "1f1b", "--json"], &P4_M8.replace("8 }", "1 }"));
    let warning = stderr(&output);
    assert!(warning.contains("75 % of the time is idle"), "{warning}");
    assert_eq!(json(&output)["runs"][0]["makespan"], 12.0);
}

#[test]
fn usage_errors_have_code_2_and_help_has_0() {
    for args in [&["simulate"][..], &["simulate", "nowhere.json"], &["fly"], &["simulate", "x.json", "--steps", "0"]] {
        assert_eq!(pipewright(args).status.code(), Some(2), "{args:?}");
    }
    for args in [
        &["--help"][..],
        &["--version"],
        &["simulate", "--help"],
        &["list"],
        &["schema"],
        &["schema", "schedule"],
        &["completions", "bash"],
    ] {
        let output = pipewright(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(!output.stdout.is_empty(), "{args:?}");
    }
}

/// A scenario with one compound action a rank in the middle, under `costs`.
fn compound(costs: &str) -> String {
    let csv = temporary("compound.csv", "0F0,0F1,0B0,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1\n");
    custom(&csv, 2, 2).replace("\"unit\"", &format!("\"unit\", {costs}"))
}

#[test]
fn overlap_decides_how_compound_actions_run() {
    let scenario = compound("\"overlap\": \"overlapped\", \"overlapped_forward_backward\": 2");
    let makespan = |args: &[&str]| {
        let all: Vec<&str> = ["simulate", "-", "--json"].into_iter().chain(args.iter().copied()).collect();
        json(&with_scenario(&all, &scenario))["runs"][0]["makespan"].as_f64().unwrap()
    };
    // F0; F0; F1 and B0; B1; B1, of 1, 1, 3 or 2, 2 and 2.
    assert_eq!(makespan(&[]), 8.0);
    assert_eq!(makespan(&["--overlap", "overlapped"]), 8.0);
    assert_eq!(makespan(&["--overlap", "atomic"]), 9.0);
    assert_eq!(makespan(&["--overlap", "sequential"]), 9.0);
    for mode in ["sequential", "atomic", "overlapped"] {
        for verb in ["simulate", "explain"] {
            let output = with_scenario(&[verb, "-", "--overlap", mode], &scenario);
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(text.starts_with(&format!("custom: 2 ranks, 2 microbatches, compound actions {mode}")), "{text}");
        }
    }
    let output = with_scenario(&["simulate", "-", "--overlap", "atomic"], P4_M8);
    assert!(!String::from_utf8_lossy(&output.stdout).contains("compound"), "there are none");
}

#[test]
fn an_overlap_that_cannot_be_predicted_is_refused() {
    let refused = |args: &[&str], scenario: &str, expected: &str| {
        let output = with_scenario(args, scenario);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{args:?}: {}", stderr(&output));
    };
    let plain = compound("\"hop\": 0");
    for verb in ["simulate", "explain", "compare"] {
        refused(&[verb, "-", "--overlap", "overlapped"], &plain, "how long an overlapped F and B take");
    }
    for mode in ["atomic", "overlapped"] {
        let scenario = compound("\"overlap\": \"overlapped\", \"overlapped_forward_backward\": 2");
        refused(&["simulate", "-", "--overlap", mode, "--cores", "1"], &scenario, "a device of its own");
        refused(&["simulate", "-", "--cores", "1"], &scenario, "--overlap sequential");
    }
    let output = with_scenario(&["simulate", "-", "--overlap", "sequential", "--cores", "1"], &plain);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn explain_answers_with_the_names_that_scripts_rely_on() {
    let scenario = P4_M8.replace("\"unit\" }", "\"unit\", \"hop\": 0.5, \"stage_scale\": [1, 1, 1, 2] }");
    let answer = json(&with_scenario(&["explain", "-", "--schedule", "1f1b", "--json"], &scenario));
    assert_eq!((answer["schema_version"].as_u64(), answer["time_unit"].as_str()), (Some(1), Some("units")));
    let run = &answer["runs"][0];
    assert_eq!(run["schedule"], "1f1b");
    let simulated = json(&with_scenario(&["simulate", "-", "--schedule", "1f1b", "--json"], &scenario));
    assert_eq!(run["makespan"], simulated["runs"][0]["makespan"]);
    for rank in 0..4 {
        let row = &run["ranks"][rank];
        assert_eq!((&row["rank"], &row["idle"]), (&rank.into(), &simulated["runs"][0]["ranks"][rank]["idle"]));
        let causes = ["fill", "drain", "forward", "backward", "hop", "imbalance", "memory_limit", "barrier"];
        let sum: f64 = causes.iter().map(|cause| row["causes"][cause].as_f64().unwrap()).sum();
        assert_eq!(Some(sum), row["idle"].as_f64(), "rank {rank}");
        assert_eq!(row["causes"].as_object().unwrap().len(), causes.len());
        let slow: f64 = row["slow_stages"].as_object().unwrap().values().map(|time| time.as_f64().unwrap()).sum();
        assert_eq!(row["causes"]["imbalance"], slow, "rank {rank}");
    }
    assert!(run["ranks"][0]["slow_stages"]["3"].as_f64().unwrap() > 0.0);
    let wait = &run["waits"][0];
    assert_eq!(
        (wait["rank"].as_u64(), wait["task"].as_str(), wait["waits_for"].as_str()),
        (Some(0), Some("0B0"), Some("1B0"))
    );
    let length = |w: &Value| w["to"].as_f64().unwrap() - w["from"].as_f64().unwrap();
    assert!(run["waits"].as_array().unwrap().is_sorted_by(|a, b| length(a) >= length(b)));
    let changes = run["what_if"].as_array().unwrap();
    assert_eq!(
        changes.iter().map(|c| c["change"].as_str().unwrap()).collect::<Vec<_>>(),
        ["hop = 0", "equal stages", "m = 16"]
    );
    // Each is what `simulate` says of the changed scenario.
    for (change, from, to) in [
        (0, "\"hop\": 0.5", "\"hop\": 0"),
        (1, "[1, 1, 1, 2]", "[1, 1, 1, 1]"),
        (2, "\"num_microbatches\": 8", "\"num_microbatches\": 16"),
    ] {
        let changed =
            json(&with_scenario(&["simulate", "-", "--schedule", "1f1b", "--json"], &scenario.replace(from, to)));
        assert_eq!(changes[change]["makespan"], changed["runs"][0]["makespan"]);
        let (then, now) = (changes[change]["makespan"].as_f64().unwrap(), run["makespan"].as_f64().unwrap());
        // As precise as JSON is read here.
        assert!((changes[change]["difference"].as_f64().unwrap() - (then / now - 1.0)).abs() < 1e-12);
    }
    let words = run["words"].as_str().unwrap();
    for part in [
        "Stage 3 on rank 3 is the slow one",
        "Rank 0 waits longest for its first backward 0B0",
        "so it holds 4 microbatches",
    ] {
        assert!(words.contains(part), "{part}: {words}");
    }
}

#[test]
fn explain_fits_a_terminal() {
    let scenario = P4_M8.replace("\"unit\" }", "\"unit\", \"hop\": 0.375, \"optimizer\": 0.5 }");
    let output = with_scenario(&["explain", "-", "--steps", "2", "--barrier"], &scenario);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    assert!(text.contains("hop = 0: ") && text.contains(" a microbatch)"), "{text}");
    assert_eq!(text.matches("longest").count(), 6, "a table and a sentence for each of three schedules: {text}");
}

#[test]
fn the_front_is_marked() {
    let scenario = P4_M8.replace("\"gpipe\"", "\"gpipe\", \"naive\"");
    let answer = json(&with_scenario(&["simulate", "-", "--json"], &scenario));
    let marks: Vec<_> = answer["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| (r["schedule"].as_str().unwrap(), r["pareto"].as_bool().unwrap()))
        .collect();
    assert_eq!(marks, [("gpipe", false), ("naive", true), ("1f1b", true), ("interleaved-1f1b", true)]);
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("front.svg");
    let output = with_scenario(&["simulate", "-", "--pareto", path.to_str().unwrap()], &scenario);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text.lines().filter(|line| line.contains(" * ")).count(), 3, "{text}");
    assert!(std::fs::read_to_string(path).unwrap().contains("interleaved-1f1b v=2"));
}

#[test]
fn a_picture_needs_a_format() {
    let output = with_scenario(&["simulate", "-", "--plot", "x.gif"], P4_M8);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains(".svg or .png"), "{}", stderr(&output));
}

#[test]
fn model_counts_parameters() {
    let scenario = P4_M8.replace(
        "\"costs\"",
        "\"model\": { \"num_layers\": 12, \"hidden_size\": 768, \"num_attention_heads\": 12, \"vocab_size\": 50257, \
         \"max_position_embeddings\": 1024 }, \"costs\"",
    );
    let answer = json(&with_scenario(&["model", "-", "--schedule", "1f1b", "--json"], &scenario));
    assert_eq!(answer["parameters"], 124_439_808);
    assert_eq!(answer["layers"], 12);
    assert_eq!(answer["stages"][1]["layers"], serde_json::json!([3, 6]));
}

#[cfg(feature = "exec")]
mod execution {
    use super::*;

    /// A job of a second or two.
    fn tiny(data: &str, schedules: &str) -> String {
        format!(
            r#"{{ "schema_version": 1, "name": "tiny",
               "model": {{ "num_layers": 4, "hidden_size": 16, "num_attention_heads": 2 }},
               "parallel": {{ "pipeline_model_parallel_size": 2 }},
               "training": {{ "micro_batch_size": 1, "num_microbatches": 2, "seq_length": 16 }},
               "schedules": [{schedules}],
               "execute": {{ "steps": 2, "data": "{data}", "optimizer": {{ "kind": "sgd", "lr": 0.1 }} }} }}"#
        )
    }

    const ALL: &str = r#""naive", "gpipe", "1f1b", "eager-1f1b",
        { "name": "interleaved-1f1b", "virtual_pipeline_model_parallel_size": 2 }"#;

    #[test]
    fn run_trains_and_verify_proves_it() {
        let out = env!("CARGO_TARGET_TMPDIR");
        let scenario = tiny("data/alice.txt", ALL);
        let answer = json(&with_scenario(
            &["run", "-", "--schedule", "1f1b", "--steps", "3", "--json", "--out", out],
            &scenario,
        ));
        assert_eq!(answer["device"], "cpu");
        assert_eq!(answer["losses"].as_array().map(Vec::len), Some(3));
        assert_eq!(answer["step_seconds"].as_array().map(Vec::len), Some(3));
        assert!(answer["tokens_per_second"].as_f64().unwrap() > 0.0);
        let timeline = std::fs::read_to_string(answer["timeline"].as_str().unwrap()).unwrap();
        assert!(timeline.contains("\"0OPTIMIZER_STEP\""));

        let answer = json(&with_scenario(&["verify", "-", "--json"], &scenario));
        assert_eq!((answer["ok"].as_bool(), answer["steps"].as_u64()), (Some(true), Some(2)));
        assert_eq!(answer["runs"].as_array().map(Vec::len), Some(5));
        assert!(answer["first_difference"].is_null() && answer["max_gradient_diff"].as_f64().unwrap() < 1e-6);
    }

    #[test]
    fn profile_writes_costs_that_simulate_predicts_from() {
        let costs = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("costs.json");
        let scenario = tiny("data/alice.txt", ALL);
        let output = with_scenario(&["profile", "-", "-o", &costs.display().to_string()], &scenario);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let table =
            format!("\"costs\": {{ \"model\": \"table\", \"file\": {:?} }}, \"parallel\"", costs.display().to_string());
        let predicted = json(&with_scenario(&["simulate", "-", "--json"], &scenario.replace("\"parallel\"", &table)));
        assert_eq!(predicted["time_unit"], "s");
        for run in predicted["runs"].as_array().unwrap() {
            assert!(run["makespan"].as_f64().unwrap() > 0.0);
            assert!(run["ranks"][0]["peak_memory_bytes"].as_u64().unwrap() > 0);
            assert!(run["ranks"][0]["memory_at_peak"]["optimizer"].as_u64().unwrap() == 0, "SGD keeps nothing");
        }
        // A table for one model says nothing of another.
        let other = scenario.replace("\"parallel\"", &table).replace("\"hidden_size\": 16", "\"hidden_size\": 32");
        let output = with_scenario(&["simulate", "-"], &other);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains("hidden 16") && stderr(&output).contains("hidden 32"), "{}", stderr(&output));
    }

    #[test]
    fn bad_data_is_refused() {
        let empty = temporary("empty.txt", "");
        let short = temporary("short.txt", "too short");
        for (data, expected) in [
            ("nowhere.txt", "cannot read the text"),
            (empty.to_str().unwrap(), "is empty"),
            (short.to_str().unwrap(), "has 9 bytes, but one sequence of seq_length 16 needs 17"),
        ] {
            let output = with_scenario(&["run", "-"], &tiny(data, "\"1f1b\""));
            assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
            assert!(stderr(&output).contains(expected), "{}", stderr(&output));
        }
    }

    #[test]
    fn what_cannot_be_executed_is_refused_with_its_knob() {
        let scenario =
            tiny("data/alice.txt", "\"1f1b\"").replace("\"seq_length\"", "\"dtype\": \"bf16\", \"seq_length\"");
        let output = with_scenario(&["run", "-"], &scenario);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains("16-bit training cannot be executed"), "{}", stderr(&output));
        // Of variants not the first alone is looked at.
        let variants = r#""variants": [{ "name": "fine", "set": { "training.clip_grad": 1.0 } },
            { "name": "half", "set": { "training.dtype": "bf16" } }], "execute""#;
        let scenario = tiny("data/alice.txt", "\"1f1b\"").replace("\"execute\"", variants);
        let output = with_scenario(&["verify", "-"], &scenario);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains("16-bit training cannot be executed"), "{}", stderr(&output));
        // No GPU here, or no CUDA in this build: a clear error and exit code 3.
        let output = with_scenario(&["run", "-", "--device", "cuda"], &tiny("data/alice.txt", "\"1f1b\""));
        assert_eq!(output.status.code(), Some(3));
        assert!(stderr(&output).contains("CUDA"), "{}", stderr(&output));
    }
}
