//! The simulator gives the published closed forms, exactly.
//!
//! F and B = I + W are times of one chunk action unless a test says that they are a rank's whole share.

#[cfg(test)]
mod support {
    pub(crate) mod build;
    pub(crate) mod costs;
    pub(crate) mod csv;
    pub(crate) mod data;
    pub(crate) mod families;
    pub(crate) mod published;
}

use pipewright::ir::order::PipelineOrder;
use pipewright::ir::plan::resolve;
use pipewright::ir::scenario::{Scenario, ScheduleEntry};
use pipewright::ir::schedules::{Chunks, ScheduleParams, find};
use pipewright::ir::unit_costs::UnitCosts;
use pipewright::sim::Options;
use std::collections::BTreeMap;
use support::build::{Run, chunk_costs, run};
use support::costs::costs;
use support::data::{number, records};
use support::families::{order, params, params_of};
use support::published::{each, peak_to_input_gradient, published_orders};

const CASES: &str = include_str!("oracle_data/cases.txt");
/// The families with a closed form that their own orders have.
const GRID: [&str; 12] = [
    "naive",
    "gpipe",
    "1f1b",
    "eager-1f1b",
    "seq1f1b",
    "looped-bfs",
    "interleaved-1f1b",
    "interleaved-zb",
    "zb-v",
    "chimera",
    "dualpipe",
    "dualpipe-v",
];

/// One step with F = I = W = 1 of a rank's whole share.
fn unit(family: &str, [p, m, v]: [u32; 3], hop: f64) -> Run {
    let costs = UnitCosts { hop, ..UnitCosts::default() };
    run(&order(family, &params(p, m, v, None)), &costs, &Options::default())
}

/// Messages of a step; one rank needs none.
fn messages([p, m, v]: [u32; 3]) -> usize {
    if p == 1 { 0 } else { 2 * m as usize * (p * v - 1) as usize }
}

/// What is published of a schedule: no hops, compound actions as one without any gain.
#[derive(Debug, PartialEq)]
struct Numbers {
    makespan: f64,
    /// Work of every rank.
    busy: f64,
    /// Most activations alive on each rank, in chunks or slices of them.
    peaks: Vec<u32>,
    messages: usize,
    /// The longest time between a rank's first start and last end, where that is published.
    span: Option<f64>,
}

/// Whether the closed form of a family holds for these costs F, I, W of one action.
fn has_closed_form(family: &str, [p, m]: [u32; 2], [f, i, w]: [f64; 3]) -> bool {
    match family {
        "zb-h2" | "zb-v" => m >= 2 * p - 1 && f == i && i == w,
        "interleaved-zb" => m >= p && f >= i.min(w),
        "dualpipe" | "dualpipe-v" => m >= 2 * p && f == i,
        "chimera" => m == p && [f, 2.0 * f].contains(&(i + w)),
        _ => true,
    }
}

/// The closed forms.
fn closed_form(family: &str, params: &ScheduleParams, [f, i, w]: [f64; 3]) -> Numbers {
    let [p, m, v] = [params.ranks, params.microbatches, params.chunks];
    let k = params.num_seq_splits.map_or(1, u32::from);
    let (b, slot) = (i + w, f + i + w);
    let slots = |n: u32| f64::from(n) * slot;
    let busy = slots(m * v * k);
    // PyTorch's group size, of as many rounds as hold p microbatches each.
    let g = params.microbatch_group_size.unwrap_or(if family == "interleaved-zb" { m / (m / p).max(1) } else { p });
    let ramp = |n: u32, time: f64| busy + f64::from(n) * time;
    let makespan = match family {
        "naive" => slots(m * p),
        "interleaved-1f1b" if m >= p => slots(m * v + p - 1),
        "interleaved-1f1b" => slots((v - 1) * p + m + p - 1),
        "looped-bfs" => slots((v - 1) * m.max(p) + m + p - 1),
        "seq1f1b" => slots(m * k + p - 1),
        "interleaved-zb" | "zb-h1" => ramp(p - 1, f + f64::max(0.0, i - w)),
        "zb-h2" | "zb-v" => ramp(p - 1, f),
        "dualpipe" => ramp(p / 2 - 1, f + b + b - 3.0 * w),
        "dualpipe-v" => ramp(p - 1, f + b + b - 3.0 * w),
        "chimera" => ramp(p - 2, if b == f { f } else { 2.0 * f }),
        _ => slots(m + p - 1),
    };
    let peak = |r: u32| match family {
        "naive" => 1,
        "gpipe" => m,
        "1f1b" => m.min(p - r),
        "eager-1f1b" | "zb-h2" => m.min(2 * (p - r) - 1),
        "interleaved-1f1b" => (m * v).min((v - 1) * g + 2 * (p - 1 - r) + 1),
        "looped-bfs" => m * v,
        "seq1f1b" => (m * k).min(p - 1 - r + k),
        "interleaved-zb" | "zb-h1" => (m * v).min((v - 1) * g + p),
        "zb-v" => 2 * p,
        "dualpipe" => p + 1,
        "dualpipe-v" => 2 * p + 1,
        "chimera" => p / 2 + 1 + r.min(p - 1 - r),
        _ => unreachable!("no closed form is known for {family}"),
    };
    let messages = match family {
        // The turn of the V is on one rank.
        "zb-v" | "dualpipe-v" => 4 * m as usize * (p - 1) as usize,
        _ => k as usize * messages([p, m, v]),
    };
    let span = ["zb-h2", "zb-v"].contains(&family).then_some(busy);
    Numbers { makespan, busy, peaks: (0..p).map(peak).collect(), messages, span }
}

/// The same numbers of a simulated order. The peak of ZB-H2 is published until I.
fn simulated(family: &str, order: &PipelineOrder, params: &ScheduleParams, costs: [f64; 3], what: &str) -> Numbers {
    let parts = params.chunks * u32::from(order.slices);
    let run = run(order, &chunk_costs(costs, 0.0, parts), &Options { compound: true, ..Options::default() });
    run.assert_metrics_agree(parts, what);
    let busy: Vec<f64> = run.metrics.ranks.iter().map(|r| r.busy).collect();
    assert_eq!(busy, run.each(|_| busy[0]), "busy of {what}");
    assert_eq!(run.idle(), run.each(|_| run.timeline.makespan() - busy[0]), "idle of {what}");
    let spans = run.starts().into_iter().zip(run.ends()).map(|(start, end)| end - start);
    let span = ["zb-h2", "zb-v"].contains(&family).then(|| spans.fold(0.0, f64::max));
    let peaks = if family == "zb-h2" { peak_to_input_gradient(order) } else { run.peaks() };
    Numbers { makespan: run.timeline.makespan(), busy: busy[0], peaks, messages: run.schedule.messages(), span }
}

fn assert_closed_form(family: &str, params: &ScheduleParams, costs: [f64; 3]) {
    let what = format!("{family} {params:?} {costs:?}");
    let simulated = simulated(family, &order(family, params), params, costs, &what);
    assert_eq!(simulated, closed_form(family, params, costs), "{what}");
}

/// The formulas of every family that has one over a grid, for costs of every proportion.
#[test]
fn closed_forms_hold_on_a_grid() {
    let mut cases: BTreeMap<&str, usize> = BTreeMap::new();
    for (p, m) in (1..=8).flat_map(|p| (1..=16).map(move |m| (p, m))) {
        for costs in [[1.0, 1.0, 1.0], [2.0, 5.0, 4.0], [2.0, 2.0, 1.0], [2.0, 1.0, 1.0]] {
            for family in GRID.into_iter().filter(|family| has_closed_form(family, [p, m], costs)) {
                let known = find(family).unwrap();
                let chunks = match known.chunks {
                    Chunks::One => 1..=1,
                    Chunks::Two => 2..=2,
                    Chunks::Any => 1..=3,
                };
                let groups = std::iter::once(None).chain((1..=m).map(Some).filter(|_| known.knobs.group));
                let slices: &[Option<u16>] = if known.knobs.slices { &[Some(1), Some(2), Some(4)] } else { &[None] };
                for (v, g) in groups.flat_map(|g| chunks.clone().map(move |v| (v, g))) {
                    for k in slices {
                        let params = ScheduleParams { num_seq_splits: *k, ..params(p, m, v, g) };
                        if known.faults(&params).is_empty() {
                            assert_closed_form(family, &params, costs);
                            *cases.entry(family).or_default() += 1;
                        }
                    }
                }
            }
        }
    }
    println!("cases: {cases:?}");
    assert_eq!(cases.len(), GRID.len());
    assert!(cases.values().sum::<usize>() > 10_000, "{cases:?}");
}

/// Each recorded case: the recorded number, the formula and the simulation are the same.
#[test]
fn recorded_cases_equal_formula_and_simulation() {
    let published = published_orders();
    // Family -> recorded cases.
    let mut cases: BTreeMap<&str, usize> = BTreeMap::new();
    for record in records(CASES) {
        let what = record[0].join(" ");
        let (family, source) = (record[0][0], record[0][6]);
        // Where a family looks for an order of its own the numbers are those of the published one.
        let (order, params) = if source == "-" {
            let (family, params) = params_of(&record[0]);
            (order(family.name, &params), params)
        } else {
            let [p, m, v] = [1, 2, 3].map(|field| number(record[0][field]));
            (published[&format!("{source} {p} {m} {v} -")].clone(), params(p, m, v, None))
        };
        let costs = costs(record[0][5]);
        let field = |i: usize| f64::from(number(record[0][i]));
        let recorded = Numbers {
            makespan: field(7),
            busy: field(8),
            peaks: each(&record[1], params.ranks),
            messages: number(record[0][11]) as usize,
            span: (record[0][12] != "-").then(|| field(12)),
        };
        assert_eq!(closed_form(family, &params, costs), recorded, "formula of {what}");
        assert_eq!(simulated(family, &order, &params, costs, &what), recorded, "simulation of {what}");
        assert_eq!(recorded.makespan - recorded.busy, field(9), "idle of {what}");
        let (idle, whole) = record[0][10].split_once('/').unwrap_or((record[0][10], "1"));
        let fraction = (recorded.makespan - recorded.busy) / recorded.makespan;
        assert_eq!(fraction, f64::from(number(idle)) / f64::from(number(whole)), "bubble of {what}");
        *cases.entry(family).or_default() += number(record[0][13]) as usize;
    }
    println!("cases: {cases:?}");
    let expected = [
        ("1f1b", 44),
        ("chimera", 10),
        ("dualpipe", 44),
        ("dualpipe-v", 18),
        ("eager-1f1b", 16),
        ("gpipe", 55),
        ("interleaved-1f1b", 298),
        ("interleaved-zb", 168),
        ("looped-bfs", 220),
        ("naive", 30),
        ("seq1f1b", 112),
        ("zb-h1", 42),
        ("zb-h2", 14),
        ("zb-v", 18),
    ];
    assert_eq!(cases, BTreeMap::from(expected));
    assert_eq!(cases.values().sum::<usize>(), 1089, "every recorded case");
}

/// A1: naive, GPipe and 1F1B on one clock: p = 4, m = 8, F = 1, B = 2.
#[test]
fn a1_gpipe_and_1f1b_on_one_clock() {
    for (family, m, makespan, fraction, overhead, peaks) in [
        ("naive", 1, 12.0, 0.75, 3.0, [1, 1, 1, 1]),
        ("gpipe", 8, 33.0, 9.0 / 33.0, 0.375, [8, 8, 8, 8]),
        ("1f1b", 8, 33.0, 9.0 / 33.0, 0.375, [4, 3, 2, 1]),
    ] {
        let run = unit(family, [4, m, 1], 0.0);
        assert_eq!(run.metrics.makespan, makespan, "{family}");
        assert_eq!(run.idle(), [9.0; 4], "{family}");
        assert_eq!((run.metrics.bubble_fraction, run.metrics.bubble_overhead), (fraction, overhead), "{family}");
        assert_eq!(run.peaks(), peaks, "{family}");
        run.assert_metrics_agree(1, family);
    }
    let run = unit("1f1b", [4, 8, 1], 0.0);
    let starts = |rank, n| run.spans(rank).into_iter().take(n).map(|s| (s.0, s.1)).collect::<Vec<_>>();
    let expected = [
        ("0F0", 0.0),
        ("0F1", 1.0),
        ("0F2", 2.0),
        ("0F3", 3.0),
        ("0B0", 10.0),
        ("0F4", 12.0),
        ("0B1", 13.0),
        ("0F5", 15.0),
    ];
    assert_eq!(starts(0, 8), expected.map(|(action, start)| (action.to_owned(), start)));
    let expected = [("3F0", 3.0), ("3B0", 4.0), ("3F1", 6.0), ("3B1", 7.0)];
    assert_eq!(starts(3, 4), expected.map(|(action, start)| (action.to_owned(), start)));
    assert_eq!(run.ends(), [33.0, 31.0, 29.0, 27.0]);
}

/// A1 with hops: 1F1B pays the round trip in its steady state, GPipe pays it once; a doubled warm-up buys it back with
/// memory.
#[test]
fn a1_hops_tell_gpipe_and_1f1b_apart() {
    for (hop, gpipe, one) in [(0.25, 34.5, 37.0), (0.5, 36.0, 41.0), (1.0, 39.0, 49.0)] {
        assert_eq!(unit("gpipe", [4, 8, 1], hop).metrics.makespan, gpipe, "hop {hop}");
        assert_eq!(unit("1f1b", [4, 8, 1], hop).metrics.makespan, one, "hop {hop}");
    }
    let eager = unit("eager-1f1b", [4, 8, 1], 0.5);
    assert_eq!((eager.metrics.makespan, eager.peaks()), (36.0, vec![7, 5, 3, 1]));
}

/// A2: interleaved 1F1B, p = 4, v = 2, m = 8, F = 1 and B = 2 of a rank's whole share.
#[test]
fn a2_interleaving_halves_the_bubble_for_memory_and_messages() {
    let run = unit("interleaved-1f1b", [4, 8, 2], 0.0);
    assert_eq!((run.metrics.makespan, run.idle()), (28.5, vec![4.5; 4]));
    assert_eq!(run.metrics.bubble_fraction, 4.5 / 28.5);
    assert_eq!(run.metrics.bubble_overhead, 0.1875);
    assert_eq!(run.peaks(), [11, 9, 7, 5]);
    let shares: Vec<_> = run.metrics.ranks.iter().map(|r| r.peak_activations).collect();
    assert_eq!(shares, [5.5, 4.5, 3.5, 2.5]);
    assert_eq!(shares[0] / unit("1f1b", [4, 8, 1], 0.0).metrics.ranks[0].peak_activations, 1.375);
    // The steady state begins with a forward, so one more than the warm-up stands before the first backward.
    let forwards = run.each(|r| run.spans(r).iter().take_while(|s| s.0.contains('F')).count());
    assert_eq!(forwards, [10 + 1, 8 + 1, 6 + 1, 4 + 1]);
    let first: Vec<String> = run.spans(0).into_iter().take(12).map(|s| s.0).collect();
    assert_eq!(first, ["0F0", "0F1", "0F2", "0F3", "4F0", "4F1", "4F2", "4F3", "0F4", "0F5", "0F6", "4B0"]);
    assert_eq!(run.spans(0)[11].1, 7.0, "start of the first backward");
    assert_eq!(run.schedule.messages(), 2 * 8 * 7);
    assert_eq!(unit("1f1b", [4, 8, 1], 0.0).schedule.messages(), 2 * 8 * 3);
}

/// A2, other sizes: two microbatches a rank are enough, and more chunks are not free once hops cost.
#[test]
fn a2_more_chunks_are_not_free() {
    let small = unit("interleaved-1f1b", [2, 4, 2], 0.0);
    assert_eq!((small.metrics.makespan, small.idle()), (13.5, vec![1.5; 2]));
    assert_eq!(unit("interleaved-1f1b", [4, 8, 4], 0.0).metrics.makespan, 26.25);
    for (family, v, makespan) in [("1f1b", 1, 41.0), ("interleaved-1f1b", 2, 35.5), ("interleaved-1f1b", 4, 45.0)] {
        assert_eq!(unit(family, [4, 8, v], 0.5).metrics.makespan, makespan, "v = {v}");
    }
}

/// A3, the column of 1F1B: idle inside each rank's own span, three steps with and without a barrier, peaks.
#[test]
fn a3_idle_inside_a_ranks_span() {
    let run = unit("1f1b", [4, 8, 1], 0.0);
    assert_eq!(run.metrics.ranks.iter().map(|r| r.span_idle).collect::<Vec<_>>(), [9.0, 6.0, 3.0, 0.0]);
    assert_eq!((run.metrics.makespan, run.peaks()), (33.0, vec![4, 3, 2, 1]));
    let order = order("1f1b", &params(4, 8, 1, None));
    for barrier in [false, true] {
        let options = Options { steps: 3, barrier, ..Options::default() };
        let three = support::build::run(&order, &UnitCosts::default(), &options);
        assert_eq!(three.metrics.makespan, 99.0, "barrier {barrier}");
        // Without a barrier the last rank begins its second step while the first rank still ends the first.
        assert_eq!(three.timeline.spans[three.timeline.tasks].start, 33.0, "rank 0's second step");
        let last_rank =
            three.schedule.program(pipewright::ir::ids::Rank(3)).find(|(_, t)| t.action.to_string() == "3F0");
        assert_eq!(three.timeline.span(1, last_rank.unwrap().0).start, 36.0);
    }
}

/// GPipe pays each hop once each way: (m + p - 1)(F + B) + 2 (p - 1) c.
#[test]
fn gpipe_pays_each_hop_once_each_way() {
    for (p, m) in (1..=8).flat_map(|p| (1..=16).map(move |m| (p, m))) {
        for hop in [0.25, 0.5, 1.0, 7.0] {
            let expected = f64::from((m + p - 1) * 3) + f64::from(2 * (p - 1)) * hop;
            assert_eq!(unit("gpipe", [p, m, 1], hop).metrics.makespan, expected, "p={p} m={m} hop={hop}");
        }
    }
}

/// Equal bubbles without hops are not equal with them: a hop of one chunk's F, p = 4, m = 16.
#[test]
fn equal_bubbles_are_not_equal_under_hops() {
    for (family, v, idle) in
        [("gpipe", 1, 15.0), ("1f1b", 1, 37.0), ("eager-1f1b", 1, 15.0), ("interleaved-1f1b", 2, 23.0)]
    {
        let costs = chunk_costs([1.0, 1.0, 1.0], 1.0, v);
        let run = run(&order(family, &params(4, 16, v, None)), &costs, &Options::default());
        assert_eq!(run.idle(), [idle; 4], "{family}");
    }
}

/// The table on the front page: p = 4, m = 8, F = 1, B = 2.
#[test]
fn the_table_everyone_draws() {
    for (family, v, makespan) in [
        ("naive", 1, 96.0),
        ("gpipe", 1, 33.0),
        ("1f1b", 1, 33.0),
        ("eager-1f1b", 1, 33.0),
        ("interleaved-1f1b", 2, 28.5),
    ] {
        assert_eq!(unit(family, [4, 8, v], 0.0).metrics.makespan, makespan, "{family}");
    }
}

/// A4 a and b: interleaving refuses what does not divide, with the numbers and the way out.
#[test]
fn a4_interleaving_refuses_uneven_groups() {
    let family = find("interleaved-1f1b").unwrap();
    for (p, m, rule, ways) in [(4, 10, "10 % 4 = 2", ["8", "12"]), (6, 3, "3 % 6 = 3", ["6", "global_batch_size"])] {
        let faults = family.order(&params(p, m, 2, None)).unwrap_err();
        let text = format!("{}: {} / {}", faults[0].path, faults[0].message, faults[0].help);
        assert!(text.contains("training.num_microbatches") && text.contains(rule), "{text}");
        assert!(ways.iter().all(|way| text.contains(way)), "{text}");
    }
    // The flexible variant: two groups of five.
    assert_closed_form("interleaved-1f1b", &params(4, 10, 2, Some(5)), [1.0, 1.0, 1.0]);
}

/// A4 m: one microbatch on four ranks is legal, worth a warning, and idle three quarters of the time.
#[test]
fn a4_one_microbatch_is_accepted_with_a_warning() {
    let mut scenario = Scenario { schema_version: 1, name: "test".to_owned(), ..Scenario::default() };
    scenario.parallel.pipeline_model_parallel_size = Some(4);
    scenario.training.num_microbatches = Some(1);
    scenario.schedules = vec![ScheduleEntry::named("1f1b")];
    let plans = resolve(&scenario, &|_| Err("no files".to_owned())).unwrap();
    assert!(plans[0].warnings.iter().any(|w| w.contains("75 %")), "{:?}", plans[0].warnings);
    let run = run(&plans[0].order, &UnitCosts::default(), &Options::default());
    assert_eq!((run.metrics.makespan, run.metrics.bubble_fraction), (12.0, 0.75));
}

/// Chimera in units of p microbatches, whole and ragged, and fewer than one unit; B = 2 F for whole units alone.
#[test]
fn chimera_fills_each_unit_with_the_next() {
    let mut cases = 0;
    for (p, m) in (1..=5).flat_map(|half| (1..=20).map(move |each_way| (2 * half, 2 * each_way))) {
        let last = (m - 1) % p + 1;
        let whole = (last == p).then(|| ([1.0, 1.0, 1.0], (m / p + 1) * (p - 2)));
        for (costs, idle) in std::iter::once(([2.0, 1.0, 1.0], 2 * (2 * p - 2 - last))).chain(whole) {
            let run = run(&order("chimera", &params(p, m, 1, None)), &chunk_costs(costs, 0.0, 1), &Options::default());
            let what = format!("p={p} m={m} {costs:?}");
            assert_eq!(run.idle(), run.each(|_| f64::from(idle)), "idle of {what}");
            let peak = |r: u32| m.min(m.min(p) / 2 + 1 + r.min(p - 1 - r));
            assert_eq!(run.peaks(), run.each(peak), "peak of {what}");
            assert_eq!(run.schedule.messages(), messages([p, m, 1]), "messages of {what}");
            cases += 1;
        }
    }
    assert_eq!(cases, 100 + 20 + 10 + 6 + 5 + 4);
}
