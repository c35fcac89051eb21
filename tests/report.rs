//! The report of a step, and the details of a simulation, from outside.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output};

/// A GPT of 8 layers on two nodes, tensor 2, context 2, data 2, pipeline 2.
const SCENARIO: &str = r#"{ "schema_version": 1, "name": "small", "cluster": { "preset": "dgx-a100-80g", "nodes": 2 },
  "model": { "num_layers": 8, "hidden_size": 1024, "num_attention_heads": 16, "vocab_size": 32768 },
  "parallel": { "tensor_model_parallel_size": 2, "context_parallel_size": 2, "data_parallel_size": 2,
    "pipeline_model_parallel_size": 2, "sequence_parallel": "ulysses" },
  "training": { "micro_batch_size": 2, "num_microbatches": 8, "seq_length": 2048, "dtype": "bf16", "recompute": "full" },
  "schedules": ["1f1b", "gpipe"] }"#;

const UNITS: &str = r#"{ "schema_version": 1, "name": "units", "costs": { "model": "unit", "hop": 0.5 },
  "parallel": { "pipeline_model_parallel_size": 4 }, "training": { "num_microbatches": 8 },
  "schedules": ["gpipe", "1f1b", "zb-h1"] }"#;

fn run(name: &str, scenario: &str, args: &[&str]) -> Output {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.json"));
    std::fs::write(&path, scenario).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_pipewright"));
    command.arg(args[0]).arg(&path).args(&args[1..]).env("NO_COLOR", "1").output().unwrap()
}

fn json(name: &str, scenario: &str, args: &[&str]) -> Value {
    let output = run(name, scenario, args);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn text(name: &str, scenario: &str, args: &[&str]) -> String {
    let output = run(name, scenario, args);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

fn sum<'a>(rows: &'a Value, key: &'a str) -> f64 {
    rows.as_array().unwrap().iter().map(|row| number(&row[key])).sum()
}

#[test]
fn shares_sum_to_one_for_the_mean_and_for_every_rank() {
    for (name, scenario) in [("shares", SCENARIO), ("shares-units", UNITS)] {
        let answer = json(name, scenario, &["report", "--json"]);
        assert_eq!(answer["schema_version"], 1);
        for run in answer["runs"].as_array().unwrap() {
            assert!((sum(&run["breakdown"], "share") - 1.0).abs() < 1e-9);
            assert!((sum(&run["breakdown"], "time") / number(&run["makespan"]) - 1.0).abs() < 1e-9);
            for rank in run["ranks"].as_array().unwrap() {
                assert!((sum(&rank["breakdown"], "share") - 1.0).abs() < 1e-9);
            }
        }
    }
}

/// Field case A1 with a hop of 0.5: 1F1B takes 41, of which each rank computes 8 x 3.
#[test]
fn a1_a_report_in_units_says_where_time_goes_without_a_model() {
    let answer = json("units", UNITS, &["report", "--schedule", "1f1b", "--json"]);
    let run = &answer["runs"][0];
    assert_eq!((number(&run["makespan"]), &run["detail"]), (41.0, &Value::from("stage")));
    let part = |part: &str| {
        let rows = run["breakdown"].as_array().unwrap();
        number(&rows.iter().find(|row| row["part"] == part).unwrap()["time"])
    };
    assert_eq!((part("forward"), part("backward"), part("optimizer")), (8.0, 16.0, 0.0));
    assert!(part("exposed_pp") > 0.0 && run.get("mfu").is_none());
}

#[test]
fn a_report_says_how_fast_a_step_is_and_by_which_formula() {
    let answer = json("speed", SCENARIO, &["report", "--json"]);
    let simulated = json("speed-simulated", SCENARIO, &["simulate", "--json"]);
    for (run, row) in answer["runs"].as_array().unwrap().iter().zip(simulated["runs"].as_array().unwrap()) {
        let (step, counted) = (number(&run["step_seconds"]), &run["counted"]);
        assert_eq!(number(&run["tokens_per_second"]), 2.0 * 8.0 * 2.0 * 2048.0 / step);
        // 72 B L s h^2 (1 + s / 6h + V / 12hL), multiplied out: exact.
        let (b, l, h, s, v) = (32.0, 8.0, 1024.0, 2048.0, 32768.0);
        let formula = 72.0 * b * l * s * h * h + 12.0 * b * l * s * s * h + 6.0 * b * s * h * v;
        assert_eq!(number(&counted["model_flops"]), formula);
        assert_eq!(number(&run["mfu"]), formula / (step * 16.0 * 312e12));
        assert!(number(&run["hfu"]) > number(&run["mfu"]));
        assert!(counted["formulas"]["mfu"].as_str().unwrap().contains("peak_flops"));
        // The same at the detail of stages, but for messages that go on beside the next action.
        for key in ["step_seconds", "tokens_per_second", "tflops_per_gpu", "mfu", "hfu"] {
            assert!((number(&row[key]) / number(&run[key]) - 1.0).abs() < 0.01, "{key}");
        }
    }
}

#[test]
fn a_report_says_what_is_sent_over_which_axis() {
    let answer = json("axes", SCENARIO, &["report", "--schedule", "1f1b", "--json"]);
    let rows = answer["runs"][0]["communication"].as_array().unwrap();
    let axes: Vec<&str> = rows.iter().map(|row| row["axis"].as_str().unwrap()).collect();
    assert_eq!(axes, ["tp", "cp", "pp", "dp"]);
    for row in rows {
        assert!(number(&row["sent_bytes"]) > 0.0);
        assert_eq!(row["sent_bytes"], row["received_bytes"]);
        assert_eq!(sum(&row["kinds"], "sent_bytes"), number(&row["sent_bytes"]));
        let [time, exposed, hidden] = ["time", "exposed", "hidden"].map(|key| number(&row[key]));
        assert!(exposed <= time && (exposed + hidden - time).abs() <= 1e-12 * time);
    }
    // Tensor, context and data parallelism fill a node; only the pipeline leaves it, but for the norm of the gradients.
    let in_node: Vec<f64> = rows.iter().map(|row| number(&row["share_in_node"])).collect();
    assert_eq!([in_node[0], in_node[1], in_node[3]], [1.0; 3]);
    assert!(in_node[2] < 1e-6, "{}", in_node[2]);
}

#[test]
fn the_text_has_a_table_each_for_time_messages_and_memory() {
    let shown = text("text", SCENARIO, &["report"]);
    for words in ["2 of 16 devices shown, replicas folded", "TFLOP/s per GPU", "MFU", "forward again (recompute)"] {
        assert!(shown.contains(words), "{words} is not in\n{shown}");
    }
    for words in ["100.0 %", "all-to-all", "send-forward", "exposed", "memory at the peak"] {
        assert!(shown.contains(words), "{words} is not in\n{shown}");
    }
}

#[test]
fn the_figure_has_a_bar_a_schedule() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("step.svg");
    text("figure", SCENARIO, &["report", "--plot", path.to_str().unwrap()]);
    let svg = std::fs::read_to_string(&path).unwrap();
    for words in ["1f1b", "gpipe", "waits for tensor parallel", "MFU"] {
        assert!(svg.contains(words), "{words}");
    }
}

#[test]
fn simulate_shows_the_speed_and_says_that_replicas_are_folded() {
    let shown = text("simulate", SCENARIO, &["simulate"]);
    assert!(shown.contains("2 of 16 devices shown, replicas folded"), "{shown}");
    assert!(shown.contains("tokens/s") && shown.contains("MFU"), "{shown}");
    let units = text("simulate-units", UNITS, &["simulate"]);
    assert!(!units.contains("tokens/s") && !units.contains("folded"), "{units}");
}

#[test]
fn full_simulations_list_every_device_and_find_replicas_equal() {
    let folded = json("full-folded", SCENARIO, &["simulate", "--json"]);
    for detail in ["stage", "segment"] {
        let name = format!("full-{detail}");
        let answer = json(&name, SCENARIO, &["simulate", "--full", "--detail", detail, "--json"]);
        for (run, expected) in answer["runs"].as_array().unwrap().iter().zip(folded["runs"].as_array().unwrap()) {
            let devices = run["devices"].as_array().unwrap();
            let numbers: Vec<u64> = devices.iter().map(|device| device["device"].as_u64().unwrap()).collect();
            assert_eq!(numbers, (0..16).collect::<Vec<_>>());
            // tp-cp-dp-pp: device 13 = tensor 1, context 0, data 1, pipeline 1.
            assert_eq!(devices[13]["coordinates"], serde_json::json!({ "tp": 1, "cp": 0, "dp": 1, "pp": 1 }));
            assert!(devices[..8].iter().all(|device| device["busy"] == devices[0]["busy"]));
            if detail == "stage" {
                assert_eq!(run["makespan"], expected["makespan"]);
                assert_eq!(run["ranks"], expected["ranks"]);
            }
        }
    }
    let shown = text("full-text", SCENARIO, &["simulate", "--full"]);
    assert!(shown.contains("all 16 devices simulated, replicas are equal in time and memory"), "{shown}");
    assert!(!shown.contains("folded"), "{shown}");
}

#[test]
fn segments_and_replicas_need_a_model_on_a_cluster() {
    for option in [&["--detail", "segment"][..], &["--full"]] {
        let args: Vec<&str> = std::iter::once("simulate").chain(option.iter().copied()).collect();
        let output = run("refused", UNITS, &args);
        assert_eq!(output.status.code(), Some(2));
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains(&option.join(" ")) && error.contains("cluster"), "{error}");
    }
}
