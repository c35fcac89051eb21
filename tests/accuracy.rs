//! How far predictions are from published measurements, and that docs/accuracy.md says so.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use pipewright::ir::cluster;
use pipewright::measurements::{Accuracy, Errors, Measurements, fit};
use pipewright::report::accuracy::markdown;
use pipewright::sim::cost::analytic::{STACKS, stack};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// How far a table may be off.
struct Target {
    /// Its file in tests/published.
    file: &'static str,
    /// Mean and largest error of step times, as shares.
    step_times: Option<[f64; 2]>,
    /// Mean and largest error of bubble rates, as differences.
    bubble_rates: Option<[f64; 2]>,
    /// Why the largest error is larger than it should be; empty where it is not.
    missed: &'static str,
}

const fn step_times(file: &'static str, most: [f64; 2], missed: &'static str) -> Target {
    Target { file, step_times: Some(most), bubble_rates: None, missed }
}

const fn bubble_rates(file: &'static str, most: [f64; 2], missed: &'static str) -> Target {
    Target { file, step_times: None, bubble_rates: Some(most), missed }
}

/// The largest error that needs no reason.
const LARGEST: f64 = 0.12;
/// The same of a bubble rate: half a point.
const LARGEST_BUBBLE: f64 = 0.005;

const TARGETS: &[Target] = &[
    step_times("bloom-topology.json", [0.10, 0.25], "three rows of early runs are slower than their neighbours"),
    step_times("korthikanti-table5.json", [0.05, LARGEST], ""),
    step_times("megatron-core-h100-weak-scaling.json", [0.05, LARGEST], ""),
    step_times("megatron-sc21-table1.json", [0.05, LARGEST], ""),
    step_times("megatron-sc21-table2.json", [0.05, LARGEST], ""),
    step_times("mosaic-mpt-fsdp-a100.json", [0.08, 0.24], "760m 512 and 70b x64, next to full memory or disturbed"),
    step_times("mosaic-mpt-fsdp-h100.json", [0.08, 0.22], "30b 8192, next to full memory"),
    step_times("simumax-b200-measured.json", [0.05, LARGEST], ""),
    step_times("vtrain-multi-node.json", [0.08, 0.48], "rows that are not monotonic, and one next to full memory"),
    bubble_rates(
        "zero-bubble-bubble-rates.json",
        [0.005, 0.019],
        "ZB-2p of 1.5B, ZB-V of few microbatches: other orders",
    ),
    step_times("zero-bubble-table4.json", [0.06, LARGEST], ""),
    step_times("zero-bubble-table6.json", [0.06, LARGEST], ""),
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/published")
}

fn files() -> Vec<String> {
    let names = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".json")).collect();
    names.sort();
    names
}

/// All tables, predicted once: schedules that are searched for take their time.
static TABLES: LazyLock<Vec<Accuracy>> = LazyLock::new(|| {
    let table = |file: &String| {
        let measurements: Measurements = serde_json::from_str(&beside(file).unwrap()).unwrap();
        let rows = measurements.prepare(&beside).unwrap();
        Accuracy::of(measurements, &rows).unwrap()
    };
    files().iter().map(table).collect()
});

/// Files that a table names lie beside it.
fn beside(file: &str) -> Result<String, String> {
    std::fs::read_to_string(folder().join(file)).map_err(|error| error.to_string())
}

fn no_files(file: &str) -> Result<String, String> {
    Err(format!("no file {file}"))
}

#[test]
fn published_measurements_are_predicted_as_well_as_promised() {
    let named: Vec<&str> = TARGETS.iter().map(|target| target.file).collect();
    assert_eq!(files(), named, "every table has a target");
    for (target, accuracy) in TARGETS.iter().zip(TABLES.iter()) {
        let hold = |errors: &Option<Errors>, most: Option<[f64; 2]>, what: &str| {
            assert_eq!(errors.is_some(), most.is_some(), "{}: {what}", target.file);
            let (Some(errors), Some([mean, max])) = (errors, most) else { return };
            assert!(errors.mean() <= mean, "{}: mean error of {what} {:.4}", target.file, errors.mean());
            assert!(errors.max() <= max, "{}: largest error of {what} {:.4}", target.file, errors.max());
        };
        hold(&accuracy.step_times, target.step_times, "step times");
        hold(&accuracy.bubble_rates, target.bubble_rates, "bubble rates");
        let too_large = |most: Option<[f64; 2]>, largest: f64| most.is_some_and(|[_, max]| max > largest);
        let missed = too_large(target.step_times, LARGEST) || too_large(target.bubble_rates, LARGEST_BUBBLE);
        assert_eq!(missed, !target.missed.is_empty(), "{}: a miss has a reason", target.file);
        assert!(!missed || !accuracy.measurements.known_misses.is_empty(), "{}: users are told of misses", target.file);
    }
}

#[test]
fn the_page_is_what_the_tool_says() {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/accuracy.md")).unwrap();
    let said = markdown(&TABLES);
    let differs = said.lines().zip(page.lines()).find(|(said, page)| said != page);
    assert!(
        said == page,
        "pipewright accuracy --markdown tests/published/*.json > docs/accuracy.md; first difference: {differs:?}"
    );
}

#[test]
fn the_verbs_answer_in_json_and_refuse_what_is_no_table() {
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pipewright"));
        let output = command.current_dir(folder()).args(args).output().unwrap();
        (output.status.code(), [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()))
    };
    let table = "megatron-core-h100-weak-scaling.json";
    let (code, [said, _]) = run(&["accuracy", table, "--json", "--stack", "b200-megatron"]);
    let answer: Value = serde_json::from_str(&said).unwrap();
    let errors = &answer["tables"][0]["step_seconds"];
    assert_eq!(
        (code, answer["tables"][0]["stacks"][0].as_str(), errors["counted"].as_u64()),
        (Some(0), Some("b200-megatron"), Some(6))
    );
    let (code, [said, _]) = run(&["fit", table, "--parameters", "launch,tile_128+tile_64", "--rounds", "3"]);
    let stack: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, stack["name"].as_str()), (Some(0), Some("h100-megatron")));
    assert_eq!(stack["tile_64"]["source"], "fitted on Megatron-core on H100: weak scaling");
    for (args, words) in [
        (["accuracy", "clusters/zero-bubble-one-network.json", "--json"], "cannot read a table of measurements"),
        (["fit", table, "--parameters=speed"], "`speed` is no number above 0 of the software stack h100-megatron"),
        (["accuracy", table, "--stack=x"], "no parameters are known for the software stack `x`"),
    ] {
        let (code, [_, told]) = run(&args);
        let told = told.split_whitespace().collect::<Vec<_>>().join(" ").replace(" | ", " ");
        assert_eq!(code, Some(2), "{told}");
        assert!(told.contains(words), "{told}");
    }
}

#[test]
fn every_cluster_names_a_stack_and_every_number_a_source() {
    for (name, _) in cluster::PRESETS {
        let hardware = cluster::preset(name).unwrap();
        assert!(stack(&hardware.stack).is_some(), "{name} names {}", hardware.stack);
    }
    for (name, _) in STACKS {
        let parameters = stack(name).unwrap();
        assert_eq!(parameters.name, *name);
        for (key, number) in serde_json::to_value(&parameters).unwrap().as_object().unwrap() {
            let sourced = number.is_string()
                || number.is_boolean()
                || number["source"].as_str().is_some_and(|source| !source.is_empty());
            assert!(sourced, "{name}: {key} has no source");
        }
    }
}

/// Two runs of a small model, one of them on twice as many GPUs, as a table.
fn own_table(cluster: &Value, seconds: [f64; 2]) -> Measurements {
    let row = |name: &str, data: u32, seconds: f64| json!({ "name": name, "set": { "parallel.data_parallel_size": data }, "step_seconds": seconds });
    serde_json::from_value(json!({
        "schema_version": 1, "name": "mine", "source": "my runs",
        "scenario": {
            "schema_version": 1, "name": "mine", "cluster": cluster, "model": { "preset": "llama-3-8b" },
            "training": { "seq_length": 4096, "num_microbatches": 4 }, "schedules": ["1f1b"]
        },
        "rows": [row("one", 8, seconds[0]), row("two", 16, seconds[1])]
    }))
    .unwrap()
}

#[test]
fn a_stack_of_ones_own_is_read_from_beside_the_table() {
    let mut own = serde_json::to_value(stack("h100-megatron").unwrap()).unwrap();
    own["gemm_efficiency"]["value"] = json!(0.3);
    let read = |file: &str| if file == "mine.json" { Ok(own.to_string()) } else { no_files(file) };
    let times = |stack: &str| {
        let rows = own_table(&json!({ "preset": "dgx-h100", "stack": stack }), [1.0; 2]).prepare(&read)?;
        rows.iter().map(|row| row.predict().map(|p| p.step_seconds)).collect::<Result<Vec<f64>, _>>()
    };
    let (known, own) = (times("h100-megatron").unwrap(), times("mine.json").unwrap());
    assert!(own[0] > 1.5 * known[0], "{own:?} {known:?}");
    let missing = times("other.json").unwrap_err().to_string();
    assert!(missing.contains("other.json") && missing.contains("no file"), "{missing}");
    let unknown = times("other").unwrap_err().to_string();
    assert!(unknown.contains("`other`") && unknown.contains("h100-megatron"), "{unknown}");
}

#[test]
fn a_fit_finds_what_the_measurements_were_made_with() {
    let known = stack("h100-megatron").unwrap();
    let mut made_with = known.clone();
    made_with.gemm_efficiency.value = 0.52;
    let cluster = json!({ "preset": "dgx-h100" });
    let rows = own_table(&cluster, [1.0; 2]).prepare(&no_files).unwrap();
    let seconds = [0, 1].map(|i: usize| rows[i].predict_with(&made_with).unwrap().step_seconds);
    let rows = own_table(&cluster, seconds).prepare(&no_files).unwrap();
    let fitted = fit(&known, &["gemm_efficiency".to_owned()], &rows, 40, "mine").unwrap();
    let found = &fitted.parameters.gemm_efficiency;
    assert!((found.value / 0.52 - 1.0).abs() < 0.01, "{}", found.value);
    assert_eq!(found.source, "mine");
    assert!(fitted.error[1] < 0.005 && fitted.error[0] > 0.05, "{:?}", fitted.error);
    let other = fit(&known, &["gemm_speed".to_owned()], &rows, 1, "mine").unwrap_err().to_string();
    assert!(other.contains("gemm_speed"), "{other}");
}
