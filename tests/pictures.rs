//! Pictures and traces: what they must say, on any machine, for any schedule.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use pipewright::ir::order::PipelineOrder;
use pipewright::ir::passes::{add_optimizer_step, add_send_recv};
use pipewright::ir::placement::Placement;
use pipewright::ir::schedule::{Draft, Schedule};
use pipewright::ir::schedules::{ScheduleParams, find};
use pipewright::ir::timeline::{MemorySample, Source, Timeline};
use pipewright::ir::unit_costs::UnitCosts;
use pipewright::ir::workload::{StageWorkload, Workload};
use pipewright::report::{
    Picture, PictureError, Run, TimeUnit, comparison, gantt, memory, memory_against, pareto,
    predicted_against_measured, trace,
};
use pipewright::sim::{Options, cost::UnitCost, simulate};
use resvg::{tiny_skia, usvg};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// A schedule with its timeline.
struct Case {
    schedule: Schedule,
    timeline: Timeline,
    chunks: u32,
}

impl Case {
    fn run<'a>(&'a self, name: &'a str) -> Run<'a> {
        let Case { schedule, timeline, chunks } = self;
        Run { name, schedule, timeline, unit: TimeUnit::Abstract, chunks: *chunks, note: None }
    }
}

fn case(family: &str, (p, m, v): (u32, u32, u32), workload: &Workload, costs: &UnitCosts, steps: usize) -> Case {
    let order = find(family).unwrap().order(&ScheduleParams::new(p, m, v)).unwrap();
    let order = add_send_recv(&add_optimizer_step(order));
    let schedule = Draft::lower(&order, workload).seal().unwrap();
    let cost = UnitCost::new(costs, &schedule);
    let timeline = simulate(&schedule, &cost, &Options { steps, ..Options::default() });
    Case { schedule, timeline, chunks: v }
}

fn plain(family: &str, p: u32, m: u32, v: u32) -> Case {
    case(family, (p, m, v), &Workload::abstract_stages(p * v), &UnitCosts::default(), 1)
}

/// Stages with sizes, hops and an optimizer, over some steps.
fn rich(family: &str, p: u32, m: u32, v: u32, steps: usize) -> Case {
    let stage = StageWorkload {
        parameters: 400 << 20,
        gradients: 400 << 20,
        optimizer: 800 << 20,
        activations: 300 << 20,
        output: 16 << 20,
        forward_workspace: 60 << 20,
        backward_workspace: 120 << 20,
        ..StageWorkload::default()
    };
    let workload = Workload { stages: vec![stage; (p * v) as usize], ..Workload::default() };
    let costs = UnitCosts { hop: 0.25, optimizer: 1.5, ..UnitCosts::default() };
    case(family, (p, m, v), &workload, &costs, steps)
}

/// The same schedule as if measured: a tenth slower, with counted memory.
fn as_measured(case: &Case) -> Case {
    let mut timeline = case.timeline.clone();
    timeline.source = Source::Measured;
    for span in &mut timeline.spans {
        span.start = span.start * 1.1 + 5.0;
        span.end = span.end * 1.1 + 5.0;
    }
    timeline.memory = vec![MemorySample { before: 3 << 30, peak: 5 << 30, after: 4 << 30 }; timeline.spans.len()];
    Case { schedule: case.schedule.clone(), timeline, chunks: case.chunks }
}

/// The font inside the program, and nothing else.
fn parsed(picture: &Picture) -> usvg::Tree {
    let mut options = usvg::Options::default();
    for font in ["DejaVuSans.ttf", "DejaVuSans-Bold.ttf"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/report/fonts").join(font);
        options.fontdb_mut().load_font_data(std::fs::read(path).unwrap());
    }
    usvg::Tree::from_str(picture.svg(), &options).unwrap()
}

fn all_pictures(case: &Case) -> Vec<Picture> {
    let measured = as_measured(case);
    let (run, second) = (case.run("1F1B"), measured.run("1F1B"));
    vec![
        gantt(&run),
        gantt(&second),
        memory(&run),
        memory_against(&run, &second),
        comparison("Schedules", &[run.clone(), second.clone()]),
        pareto("Schedules", &[run.clone(), second.clone()]),
        predicted_against_measured("Predicted against measured", &[(run, second)]),
    ]
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let (first, second) = (rich("interleaved-1f1b", 4, 8, 2, 2), rich("interleaved-1f1b", 4, 8, 2, 2));
    assert_eq!(all_pictures(&first), all_pictures(&second));
    assert_eq!(trace(&first.run("a")).to_string(), trace(&second.run("a")).to_string());
    let picture = gantt(&first.run("a"));
    assert_eq!(picture.png(1.0).unwrap(), picture.png(1.0).unwrap());
}

#[test]
fn a_gantt_chart_names_what_it_shows() {
    let case = plain("1f1b", 4, 8, 1);
    let picture = gantt(&case.run("My <1F1B> & friends"));
    let svg = picture.svg();
    for words in [
        "My &lt;1F1B&gt; &amp; friends",
        "p = 4 ranks, m = 8 microbatches, v = 1 chunk",
        "Predicted, makespan 33 units · bubble fraction 27.3 %, bubble overhead 37.5 %",
        "DejaVu Sans, Verdana, sans-serif",
        "time [units]",
        "F forward",
        "B backward",
    ] {
        assert!(svg.contains(words), "{words}");
    }
    assert!((0..4).all(|rank| svg.contains(&format!("rank {rank}\n"))));
    let large = plain("gpipe", 64, 64, 1);
    let svg = gantt(&large.run("GPipe")).svg().to_owned();
    assert!((0..64).all(|rank| svg.contains(&format!("rank {rank}\n"))));
}

#[test]
fn comparisons_say_which_ends_first() {
    let (gpipe, interleaved) = (plain("gpipe", 4, 8, 1), plain("interleaved-1f1b", 4, 8, 2));
    let picture = comparison("Two schedules", &[gpipe.run("GPipe"), interleaved.run("Interleaved")]);
    for words in ["33 units", "28.5 units", "\u{2212}13.6 %", "against GPipe"] {
        assert!(picture.svg().contains(words), "{words}");
    }
    let case = rich("1f1b", 4, 8, 1, 1);
    let measured = as_measured(&case);
    let picture = predicted_against_measured("Both", &[(case.run("1F1B"), measured.run("1F1B"))]);
    for words in ["1F1B, predicted", "1F1B, measured", "\u{2212}9.1 %", "against measured"] {
        assert!(picture.svg().contains(words), "{words}");
    }
    let svg = memory_against(&case.run("1F1B"), &measured.run("1F1B")).svg().to_owned();
    assert!(svg.contains("counted while running") && svg.contains("counted 5 GiB") && svg.contains("activations"));
}

/// Sixteen schedules, some in one place: every one is named beside its point.
fn many() -> Vec<(String, Case)> {
    let mut cases = Vec::new();
    for (family, chunks) in
        [("gpipe", &[1][..]), ("1f1b", &[1]), ("eager-1f1b", &[1]), ("interleaved-1f1b", &[2, 3, 4, 5, 6, 7, 8])]
    {
        for v in chunks {
            let costs = UnitCosts { hop: 0.05, ..UnitCosts::default() };
            let order = (4, 16, *v);
            cases.push((format!("{family} v={v}"), case(family, order, &Workload::abstract_stages(4 * v), &costs, 1)));
        }
    }
    for m in [8, 12, 14, 15, 17, 18] {
        cases.push((format!("1f1b of {m} microbatches"), plain("1f1b", 4, m, 1)));
    }
    cases
}

#[test]
fn a_front_names_every_schedule_once() {
    let cases = many();
    assert_eq!(cases.len(), 16);
    let runs: Vec<_> = cases.iter().map(|(name, case)| case.run(name)).collect();
    let picture = pareto("Sixteen schedules", &runs);
    let mut boxes = Vec::new();
    text_boxes(parsed(&picture).root(), &mut boxes);
    for (name, _) in &cases {
        assert_eq!(boxes.iter().filter(|(_, words)| words.trim() == name).count(), 1, "{name}");
    }
    assert_texts_stand_apart(&picture);
    assert!(picture.svg().contains("peak activations of the rank that holds most [microbatches]"));
    let (a, b) = (rich("1f1b", 4, 8, 1, 1), rich("gpipe", 4, 8, 1, 1));
    let svg = pareto("With bytes", &[a.run("1F1B"), b.run("GPipe")]).svg().to_owned();
    assert!(svg.contains("peak memory of the rank that holds most [GiB]"));
}

#[test]
fn memory_without_bytes_counts_activations() {
    let case = plain("1f1b", 4, 8, 1);
    let svg = memory(&case.run("1F1B")).svg().to_owned();
    assert!(svg.contains("highest peak 4 on rank 0 at 3 units"), "peak");
    assert!((1..=4).all(|peak| svg.contains(&format!("peak {peak} at"))));
}

/// Every text with its box on the page [px].
fn text_boxes(group: &usvg::Group, boxes: &mut Vec<(usvg::Rect, String)>) {
    for node in group.children() {
        match node {
            usvg::Node::Group(group) => text_boxes(group, boxes),
            usvg::Node::Text(text) => {
                let words = text.chunks().iter().map(|chunk| chunk.text()).collect();
                boxes.push((text.abs_bounding_box(), words));
            }
            _ => {}
        }
    }
}

#[test]
fn texts_are_inside_the_page_and_do_not_overlap() {
    let cases = [
        plain("gpipe", 1, 2, 1),
        plain("gpipe", 4, 8, 1),
        plain("1f1b", 16, 32, 1),
        rich("interleaved-1f1b", 4, 8, 2, 3),
        plain("1f1b", 64, 128, 1),
    ];
    for picture in cases.iter().flat_map(all_pictures) {
        assert_texts_stand_apart(&picture);
    }
}

fn assert_texts_stand_apart(picture: &Picture) {
    let (width, height) = picture.size();
    let mut boxes = Vec::new();
    text_boxes(parsed(picture).root(), &mut boxes);
    assert!(!boxes.is_empty());
    for (i, (a, words)) in boxes.iter().enumerate() {
        let inside = a.left() >= 0.0 && a.top() >= 0.0 && a.right() <= width as f32 && a.bottom() <= height as f32;
        assert!(inside, "{words} at {a:?}");
        for (b, other) in &boxes[i + 1..] {
            let across = a.right().min(b.right()) - a.left().max(b.left());
            let down = a.bottom().min(b.bottom()) - a.top().max(b.top());
            // Line boxes are higher than letters; a third of the lower one may be shared.
            let shared = across > 0.5 && down > a.height().min(b.height()) * 0.35;
            assert!(!shared, "`{words}` lies over `{other}`");
        }
    }
}

#[test]
fn png_shows_the_text_without_fonts_of_the_machine() {
    let case = plain("1f1b", 4, 8, 1);
    let picture = gantt(&case.run("1F1B"));
    let (width, height) = picture.size();
    let png = picture.png(2.0).unwrap();
    assert_eq!(&png[..8], b"\x89PNG\r\n\x1a\n");
    let pixels = tiny_skia::Pixmap::decode_png(&png).unwrap();
    assert_eq!((pixels.width(), pixels.height()), (2 * width, 2 * height));
    let dark = |x: std::ops::Range<u32>, y: std::ops::Range<u32>| {
        let points = y.flat_map(|y| x.clone().map(move |x| (x, y)));
        points.filter(|(x, y)| pixels.pixel(*x, *y).is_some_and(|p| p.red() < 90 && p.blue() < 90)).count()
    };
    // Nothing but the title is up there, and nothing but the ranks' names left of the rows.
    assert!(dark(40..160, 30..84) > 200, "the title is missing");
    assert!(dark(40..160, 250..500) > 200, "the names of the ranks are missing");
    assert_eq!(dark(0..2 * width, 0..30), 0);
}

#[test]
fn the_extension_of_a_file_says_its_format() {
    let case = plain("gpipe", 2, 2, 1);
    let picture = gantt(&case.run("GPipe"));
    assert_eq!(picture.encode(Path::new("picture.svg")).unwrap(), picture.svg().as_bytes());
    assert!(picture.encode(Path::new("picture.PNG")).unwrap().starts_with(b"\x89PNG"));
    let refused = picture.encode(Path::new("picture.pdf")).unwrap_err();
    assert!(refused.to_string().contains(".svg or .png"), "{refused}");
    for scale in [0.0, -1.0, f64::NAN, 1e6] {
        assert!(matches!(picture.png(scale), Err(PictureError::Scale { .. })), "{scale}");
    }
}

#[test]
fn large_schedules_stay_small() {
    for (family, v) in [("gpipe", 1), ("1f1b", 1), ("interleaved-1f1b", 2)] {
        let case = plain(family, 64, 512, v);
        let run = case.run(family);
        for picture in [gantt(&run), memory(&run), comparison("Twice", &[run.clone(), run.clone()])] {
            assert!(picture.svg().len() < 4_000_000, "{family}: {} bytes", picture.svg().len());
        }
    }
}

#[test]
fn nothing_to_draw_is_drawn_too() {
    let order = PipelineOrder::new(0, Placement::looped(0, 1), Vec::new());
    let schedule = Draft::lower(&order, &Workload::default()).seal().unwrap();
    let timeline = Timeline { source: Source::Predicted, tasks: 0, spans: Vec::new(), memory: Vec::new() };
    let empty = Case { schedule, timeline, chunks: 1 };
    let free = UnitCosts { forward: 0.0, backward_input: 0.0, backward_weight: 0.0, ..UnitCosts::default() };
    let instant = case("1f1b", (2, 2, 1), &Workload::abstract_stages(2), &free, 1);
    let no_steps = case("1f1b", (2, 2, 1), &Workload::abstract_stages(2), &UnitCosts::default(), 0);
    for case in [empty, instant, no_steps] {
        let run = case.run("nothing");
        for picture in all_pictures(&case) {
            assert!(parsed(&picture).size().width() > 0.0);
            picture.png(1.0).unwrap();
        }
        assert!(trace(&run)["traceEvents"].is_array());
    }
    assert!(comparison("No runs", &[]).png(1.0).is_ok());
    assert!(pareto("No runs", &[]).png(1.0).is_ok());
}

/// The events of a phase.
fn events<'a>(trace: &'a Value, phase: &str) -> Vec<&'a Value> {
    trace["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == phase).collect()
}

#[test]
fn spans_of_a_lane_follow_one_another() {
    let case = rich("interleaved-1f1b", 4, 8, 2, 3);
    for unit in [TimeUnit::Abstract, TimeUnit::Seconds] {
        let trace = trace(&Run { unit, ..case.run("interleaved") });
        let spans = events(&trace, "X");
        assert_eq!(spans.len(), case.timeline.spans.len());
        let mut ends: BTreeMap<(u64, u64), (f64, u64)> = BTreeMap::new();
        for span in spans {
            let lane = (span["pid"].as_u64().unwrap(), span["tid"].as_u64().unwrap());
            let (start, step) = (span["ts"].as_f64().unwrap(), span["args"]["step"].as_u64().unwrap());
            let (end, last_step) = ends.get(&lane).copied().unwrap_or((0.0, 0));
            assert!(start >= end - 1e-6 && step >= last_step, "{span} starts before {end}");
            ends.insert(lane, (start + span["dur"].as_f64().unwrap(), step));
        }
    }
}

#[test]
fn every_message_is_an_arrow() {
    let case = rich("1f1b", 4, 8, 1, 2);
    let trace = trace(&case.run("1F1B"));
    let by_id = |phase| -> BTreeMap<u64, f64> {
        events(&trace, phase).iter().map(|e| (e["id"].as_u64().unwrap(), e["ts"].as_f64().unwrap())).collect()
    };
    let (starts, ends) = (by_id("s"), by_id("f"));
    assert_eq!(starts.len(), 2 * case.schedule.messages());
    assert!(starts.keys().eq(ends.keys()));
    assert!(starts.iter().all(|(id, start)| ends[id] >= *start));
    assert!(events(&trace, "f").iter().all(|e| e["bp"] == "e"));
}

#[test]
fn a_trace_names_ranks_and_counts_memory() {
    let case = rich("1f1b", 4, 8, 1, 1);
    let trace = trace(&case.run("1F1B"));
    let names = events(&trace, "M");
    assert!(names.iter().any(|e| e["name"] == "process_name" && e["args"]["name"] == "rank 3"));
    assert!(names.iter().any(|e| e["name"] == "thread_name" && e["args"]["name"] == "compute"));
    assert_eq!(trace["otherData"]["time"], "abstract: 1 unit is shown as 1 ms");
    let most = |rank: u64| {
        let of_rank = events(&trace, "C").into_iter().filter(move |e| e["pid"] == rank);
        of_rank.map(|e| e["args"]["activations"].as_u64().unwrap()).max().unwrap()
    };
    assert!(most(0) > most(3) && most(3) > 0);
    assert!(events(&trace, "X").iter().any(|e| e["name"] == "2F0" && e["args"]["microbatch"] == 0));
    let times: Vec<_> = trace["traceEvents"].as_array().unwrap().iter().filter_map(|e| e["ts"].as_f64()).collect();
    assert!(times.is_sorted());
}
