//! The orders of our own families.

use super::data::number;
use pipewright::ir::order::PipelineOrder;
use pipewright::ir::schedules::{ScheduleParams, find};

/// The parameters of a record; `g` as published, `None` for the strict form.
pub(crate) fn params(p: u32, m: u32, v: u32, g: Option<u32>) -> ScheduleParams {
    ScheduleParams { microbatch_group_size: g, ..ScheduleParams::new(p, m, v) }
}

/// The order of a family that must accept `params`.
pub(crate) fn order(family: &str, params: &ScheduleParams) -> PipelineOrder {
    find(family).unwrap().order(params).unwrap_or_else(|faults| panic!("{family} {params:?} is refused: {faults:?}"))
}

/// The fields `family p m v g`; a group size of `-` is none.
pub(crate) fn key<'a>(head: &[&'a str]) -> (&'a str, [u32; 3], Option<u32>) {
    (head[0], [number(head[1]), number(head[2]), number(head[3])], (head[4] != "-").then(|| number(head[4])))
}
