//! The orders that other tools print.

use super::csv::csv;
use super::data::{number, numbers, records};
use pipewright::ir::action::{Action, Op};
use pipewright::ir::order::PipelineOrder;
use std::collections::BTreeMap;

const ORDERS: &str = include_str!("../oracle_data/orders.txt");
const READ_ORDERS: &str = include_str!("../oracle_data/read_orders.txt");

/// Every printed order under each of its names, `tool:schedule p m v x`: `x` is Megatron's group size or the number of
/// slices, where the tool's record has one.
pub(crate) fn published_orders() -> BTreeMap<String, PipelineOrder> {
    let ours = records(ORDERS).map(|record| (record[0][1..6].to_vec(), record));
    let read = records(READ_ORDERS).map(|record| ([&record[0][..3], &["-"], &record[0][3..4]].concat(), record));
    let mut orders = BTreeMap::new();
    // What is only read comes second: of JaxPP's interleaved 1F1B it has the compound actions as printed.
    for (head, record) in ours.chain(read) {
        let [p, m, v, x, sources] = head[..] else { panic!("{head:?}") };
        let order = PipelineOrder::from_csv(&csv(&record[1..]), number(m)).unwrap();
        for source in sources.split(',') {
            let x = if ["Megatron-LM:interleaved-1F1B", "sail-sg:seq1f1b"].contains(&source) { x } else { "-" };
            orders.insert(format!("{source} {p} {m} {v} {x}"), order.clone());
        }
    }
    orders
}

/// Most activations alive on each rank when B or I ends their life, as if W needed none: read off the order alone.
pub(crate) fn peak_to_input_gradient(order: &PipelineOrder) -> Vec<u32> {
    let rank = |actions: &Vec<Action>| {
        let (mut live, mut peak) = (0, 0);
        for action in actions {
            live += i32::from(action.op == Op::Forward) - i32::from(action.op.makes_input_gradient());
            peak = peak.max(live);
            assert!(live >= 0, "{action}");
        }
        u32::try_from(peak).unwrap()
    };
    order.ranks.iter().map(rank).collect()
}

/// One number for each of `ranks` ranks; a single one stands for all.
pub(crate) fn each(group: &[&str], ranks: u32) -> Vec<u32> {
    let numbers = numbers(group);
    if let [all] = numbers[..] { vec![all; ranks as usize] } else { numbers }
}
