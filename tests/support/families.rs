//! The orders of our own families.

use super::data::{number, numbers};
use pipewright::ir::order::PipelineOrder;
use pipewright::ir::schedules::{Family, ScheduleParams, find};

/// The parameters of a record; `g` as published, `None` for the strict form.
pub(crate) fn params(p: u32, m: u32, v: u32, g: Option<u32>) -> ScheduleParams {
    ScheduleParams { microbatch_group_size: g, ..ScheduleParams::new(p, m, v) }
}

/// The order of a family that must accept `params`.
pub(crate) fn order(family: &str, params: &ScheduleParams) -> PipelineOrder {
    find(family).unwrap().order(params).unwrap_or_else(|faults| panic!("{family} {params:?} is refused: {faults:?}"))
}

/// The family and the parameters of a record `family p m v x`: `x` is the group size, for Seq1F1B the number of slices,
/// and `-` where there is neither.
pub(crate) fn params_of(head: &[&str]) -> (&'static Family, ScheduleParams) {
    let family = find(head[0]).unwrap_or_else(|| panic!("no family is called {}", head[0]));
    let [p, m, v] = numbers(&head[1..4])[..] else { panic!("{head:?}") };
    let x = (head[4] != "-").then(|| number(head[4]));
    let slices = x.filter(|_| family.knobs.slices).map(|k| u16::try_from(k).unwrap());
    (family, ScheduleParams { num_seq_splits: slices, ..params(p, m, v, x.filter(|_| family.knobs.group)) })
}
