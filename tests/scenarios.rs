//! Every shipped scenario is run, and says what its comment promises.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use pipewright::ir::schedules::FAMILIES;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

fn scenarios() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let files = |folder: PathBuf| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_scenario = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.ends_with(".json") && !name.ends_with("schema.json")
    };
    let mut files: Vec<PathBuf> =
        files(folder.clone()).chain(files(folder.join("schedules"))).filter(is_scenario).collect();
    files.sort();
    files
}

#[test]
fn every_schedule_has_a_scenario_of_its_own() {
    for family in &FAMILIES {
        let answer = simulate(&format!("schedules/{}.json", family.name));
        assert_eq!(answer["runs"][0]["schedule"], family.name);
    }
}

fn pipewright(args: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_pipewright")).args(args).output().unwrap()
}

fn simulate(name: &str) -> Value {
    let file = format!("{}/scenarios/{name}", env!("CARGO_MANIFEST_DIR"));
    let output = pipewright(&["simulate", &file, "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn makespans(name: &str) -> Vec<f64> {
    simulate(name)["runs"].as_array().unwrap().iter().map(|r| r["makespan"].as_f64().unwrap()).collect()
}

#[test]
fn every_scenario_is_checked_compared_and_listed() {
    let index = std::fs::read_to_string(format!("{}/scenarios/README.md", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("scenarios");
    assert!(scenarios().len() >= 5);
    for file in scenarios() {
        let name = file.file_name().unwrap().to_str().unwrap();
        assert!(index.contains(name), "scenarios/README.md does not mention {name}");
        let file = file.to_str().unwrap();
        let output = pipewright(&["check", file]);
        assert_eq!(output.status.code(), Some(0), "{name}: {}", String::from_utf8_lossy(&output.stdout));
        if cfg!(not(feature = "exec")) && (name.contains("quickstart") || name.contains("every-axis")) {
            continue;
        }
        if name.contains("every-axis") {
            let output = pipewright(&["verify", file, "--steps", "2", "--json"]);
            assert_eq!(output.status.code(), Some(0), "{name}: {}", String::from_utf8_lossy(&output.stdout));
            let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(answer["runs"].as_array().unwrap().len(), 10, "five ways, two schedules each");
            continue;
        }
        // A scenario that executes does so in full, but for fewer steps.
        let steps = if name.contains("quickstart") { "2" } else { "1" };
        let output = pipewright(&["compare", file, "--steps", steps, "--out", out.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
    for picture in [
        "four-schedules/comparison.png",
        "four-schedules/pareto.png",
        "slow-links/timeline-1f1b.svg",
        "custom-order/memory-1f1b.png",
    ] {
        assert!(out.join(picture).metadata().unwrap().len() > 1000, "{picture}");
    }
}

#[test]
fn four_schedules() {
    assert_eq!(makespans("02-four-schedules.json"), [96.0, 33.0, 33.0, 33.0, 28.5]);
}

#[test]
fn with_slow_links_1f1b_loses_to_gpipe_and_more_chunks_are_not_free() {
    assert_eq!(makespans("03-slow-links.json"), [36.0, 41.0, 36.0, 35.5, 45.0]);
}

#[test]
fn an_uneven_stage_makes_every_rank_wait_for_it() {
    let answer = simulate("04-uneven-stages.json");
    let one_f_one_b = &answer["runs"][2];
    // The slow rank is busy 8 x 4.5 = 36; before it come three forwards, after it three backwards.
    assert_eq!(one_f_one_b["ranks"][3]["busy"], 36.0);
    assert_eq!(one_f_one_b["makespan"], 36.0 + 3.0 + 6.0);
}

#[test]
fn a_hand_written_order_matches_the_schedule_it_imitates() {
    let [family, custom] = makespans("05-custom-order.json")[..] else { panic!("two schedules") };
    assert_eq!(family, custom);
}

/// What is generated and kept in the repository is what the tool generates now.
#[test]
fn kept_files_are_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (of, file) in [
        ("scenario", "scenarios/schema.json"),
        ("schedule", "scenarios/schedule-schema.json"),
        ("cluster", "scenarios/cluster-schema.json"),
    ] {
        let schema = pipewright(&["schema", of]).stdout;
        let kept = std::fs::read(root.join(file)).unwrap();
        assert!(kept == schema, "run `cargo run --release -- schema {of} > {file}`");
    }
    assert_eq!(pipewright(&["schema"]).stdout, pipewright(&["schema", "scenario"]).stdout);

    for (scenario, kept) in [("02-four-schedules.json", "four-schedules.svg"), ("dualpipe-overlap.json", "overlap.svg")]
    {
        let picture = Path::new(env!("CARGO_TARGET_TMPDIR")).join(kept);
        let scenario = root.join("scenarios").join(scenario);
        pipewright(&["simulate", scenario.to_str().unwrap(), "--plot", picture.to_str().unwrap()]);
        let help = format!("run `cargo run --release -- simulate {} --plot docs/{kept}`", scenario.display());
        assert!(std::fs::read(root.join("docs").join(kept)).unwrap() == std::fs::read(picture).unwrap(), "{help}");
    }
}

/// What README.md shows is what the commands above it print.
#[test]
fn the_readme_shows_what_the_tool_prints() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    for args in [&["simulate", "03-slow-links.json"][..], &["explain", "02-four-schedules.json", "--schedule", "1f1b"]]
    {
        let scenario = root.join("scenarios").join(args[1]);
        let printed = pipewright(&[&[args[0], scenario.to_str().unwrap()], &args[2..]].concat()).stdout;
        for line in String::from_utf8(printed).unwrap().lines() {
            assert!(readme.contains(line.trim_end()), "README.md lacks: {line}");
        }
    }
}
