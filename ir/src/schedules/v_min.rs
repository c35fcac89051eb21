//! V-Min: two chunks a rank in a V, split backwards, and a third of the memory of 1F1B.
//!
//! ```text
//! stage of each rank, p = 3        the way of a microbatch
//! rank 0  0 5                      F down, F up, I back down the second chunks, I back up the first;
//! rank 1  1 4                      ranks hold one chunk long and the other briefly, so that all hold equally much,
//! rank 2  2 3                      and the shorter the whole way, the fewer microbatches are on it at once
//! ```
//! The order is built for the costs at hand under the limit of the paper: at most `2 floor((p + 4) / 3)` chunks alive on a rank until
//! W, `floor((p + 4) / 3)` whole shares. There is no closed form of the makespan; `4 m (p - 1)` messages. A lower limit, down
//! to one microbatch, is met with longer waits, a higher one is used.
//! Qi et al. 2024, Pipeline Parallelism with Controllable Memory (arXiv 2405.15362).

use super::{Chunks, Family, Knobs, ScheduleParams, adapt};
use crate::order::PipelineOrder;
use crate::placement::Placement;
use crate::search::Effort;

pub(super) const FAMILY: Family = Family {
    name: "v-min",
    aliases: &["VMin", "V-Min"],
    summary: "two chunks a rank in a V at a third of 1F1B's memory; adapts to costs and limit",
    paper: "Qi et al. 2024, arXiv 2405.15362",
    makespan: "no closed form",
    peak_activations: "min(2 m, 2 floor((p + 4) / 3))",
    chunks: Chunks::Two,
    knobs: Knobs { limit: true, ..Knobs::NONE },
    constraints: adapt::limit_faults,
    order,
};

fn order(params: &ScheduleParams) -> PipelineOrder {
    let p = params.ranks;
    adapt::search(params, &Placement::v_shaped(p), Some((p + 4) / 3), &[], Effort::NAMED)
}
