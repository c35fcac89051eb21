//! The times, peaks and messages of every order that another tool prints are those of an independent event simulation.
//!
//! The orders are read as they were printed, so nothing here depends on a family of ours. The data is in
//! `tests/oracle_data/`, its README says where each number comes from.

#[cfg(test)]
mod support {
    pub(crate) mod build;
    pub(crate) mod costs;
    pub(crate) mod csv;
    pub(crate) mod data;
    pub(crate) mod published;
}

use pipewright::ir::order::PipelineOrder;
use pipewright::sim::Options;
use std::collections::BTreeMap;
use support::build::{Run, chunk_costs, run};
use support::costs::costs;
use support::data::{number, records};
use support::published::{each, peak_to_input_gradient, published_orders};

const TIMES: &str = include_str!("oracle_data/times.txt");

/// What all rows of an order have in common.
struct Expected<'a> {
    name: String,
    order: &'a PipelineOrder,
    chunks: u32,
    /// Published records that print this order: PyTorch's, and those of the other tools.
    records: [usize; 2],
    messages: u32,
    peak_to_weight: Vec<u32>,
}

/// Simulates one row: `cost latency sequential|atomic makespan`, idle, first start and last end of each rank.
fn simulate(expected: &Expected<'_>, row: &[Vec<&str>]) -> (Run, Result<(), String>) {
    let order = expected.order;
    let ranks = order.placement.ranks();
    let options = Options { compound: row[0][2] == "atomic", ..Options::default() };
    // The published costs are of one action, ours of a rank's share of a whole microbatch.
    let parts = expected.chunks * u32::from(order.slices);
    let run = run(order, &chunk_costs(costs(row[0][0]), f64::from(number(row[0][1])), parts), &options);
    let exact = |group: usize| each(&row[group], ranks).into_iter().map(f64::from).collect::<Vec<_>>();
    let ours = (run.timeline.makespan(), run.idle(), run.starts(), run.ends(), run.schedule.messages(), run.peaks());
    let theirs = (
        f64::from(number(row[0][3])),
        exact(1),
        exact(2),
        exact(3),
        expected.messages as usize,
        expected.peak_to_weight.clone(),
    );
    let same = if ours == theirs { Ok(()) } else { Err(format!("ours {ours:?}, theirs {theirs:?}")) };
    (run, same)
}

/// Makespan, idle, first start, last end, activation peaks and messages of all published orders, under five sets of
/// costs and with latency, compound actions part by part and as one.
#[test]
fn every_published_time_is_ours() {
    let orders = published_orders();
    // Compound actions part by part or as one -> published rows of PyTorch's orders and of the other tools'.
    let mut published: BTreeMap<&str, [usize; 2]> = BTreeMap::new();
    let (mut rows, mut different) = (0, Vec::new());
    let mut current: Option<Expected<'_>> = None;
    for record in records(TIMES) {
        if record[0][0] == "order" {
            let name = record[0][1..6].join(" ");
            let order = orders.get(&name).unwrap_or_else(|| panic!("{name} is in no file of orders"));
            let ranks = order.placement.ranks();
            assert_eq!(peak_to_input_gradient(order), each(&record[2], ranks), "peak until I of {name}");
            current = Some(Expected {
                order,
                chunks: number(record[0][4]),
                records: [6, 7].map(|field| number(record[0][field]) as usize),
                messages: number(record[0][8]),
                peak_to_weight: each(&record[1], ranks),
                name,
            });
            continue;
        }
        let expected = current.as_ref().unwrap();
        let what = format!("{}, {}", expected.name, record[0].join(" "));
        let (run, same) = simulate(expected, &record);
        run.assert_metrics_agree(expected.chunks * u32::from(expected.order.slices), &what);
        if let Err(numbers) = same {
            different.push(format!("{what}: {numbers}"));
        }
        let counts = published.entry(record[0][2]).or_default();
        counts.iter_mut().zip(expected.records).for_each(|(count, records)| *count += records);
        rows += 1;
    }
    println!("rows: {rows}, published: {published:?}, different: {}", different.len());
    assert!(different.is_empty(), "{} rows differ:\n{}", different.len(), different.join("\n"));
    assert_eq!(published, BTreeMap::from([("atomic", [90, 888]), ("sequential", [3078, 3588])]));
    assert_eq!(90 + 888 + 3078 + 3588, 3168 + 4476, "every published row");
}
