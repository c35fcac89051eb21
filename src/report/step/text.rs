//! The report of a step in tables for people.

use super::{PartRow, RankReport, StepReport};
use crate::report::table::{TimeScale, mebibytes, percent, table};
use pipewright_ir::task::MemoryClass;

impl StepReport {
    /// The tables for people.
    pub fn text(&self, in_seconds: bool) -> String {
        let mut text = self.speed_line(in_seconds);
        text.push_str(&self.breakdown_table(in_seconds));
        text.push_str(&self.communication_table(in_seconds));
        text.push_str(&self.memory_table());
        text
    }

    fn speed_line(&self, in_seconds: bool) -> String {
        let scale = TimeScale::of([self.makespan], in_seconds);
        let step = format!("{} {}", scale.show(self.makespan), scale.unit);
        let step = format!("{}: step of {}", self.name, step.trim_end());
        let Some(speed) = &self.speed else { return format!("{step}\n") };
        format!(
            "{step}, {:.0} tokens/s, {:.1} TFLOP/s per GPU (model; {:.1} with recomputation), MFU {}, HFU {}\n",
            speed.tokens_per_second,
            speed.tflops_per_gpu,
            speed.hardware_tflops_per_gpu,
            percent(speed.mfu),
            percent(speed.hfu)
        )
    }

    /// The mean over the ranks, and the ranks with the least and the most of each part.
    fn breakdown_table(&self, in_seconds: bool) -> String {
        let scale = TimeScale::of([self.makespan], in_seconds);
        let headers = ["where the time goes\n(mean over ranks)".to_owned(), scale.header("time"), "share".to_owned()];
        let more = ["least\nof a rank".to_owned(), "most\nof a rank".to_owned()];
        let headers: Vec<String> = headers.into_iter().chain(more).collect();
        let row = |(i, part): (usize, &PartRow)| {
            let shares = || self.ranks.iter().filter_map(|rank| rank.breakdown.get(i)).map(|row| row.share);
            let (least, most) = (shares().fold(f64::INFINITY, f64::min), shares().fold(0.0, f64::max));
            let words = words(part.part).to_owned();
            (most > SMALLEST)
                .then(|| vec![words, scale.show(part.time), percent(part.share), percent(least.abs()), percent(most)])
        };
        let mut rows: Vec<Vec<String>> = self.breakdown.iter().enumerate().filter_map(row).collect();
        let total = self.breakdown.iter().map(|row| row.share).sum();
        let [empty, also] = [String::new(), String::new()];
        rows.push(vec!["sum".to_owned(), scale.show(self.makespan), percent(total), empty, also]);
        table(&headers, &rows)
    }

    fn communication_table(&self, in_seconds: bool) -> String {
        if self.communication.iter().all(|row| row.sent_bytes == 0.0 && row.time == 0.0) {
            return String::new();
        }
        let scale = TimeScale::of(self.communication.iter().map(|row| row.time), in_seconds);
        let mut headers = vec!["messages of a rank\n(mean over ranks)".to_owned(), "count".to_owned()];
        headers.extend(["sent\n[MiB]", "across\nnodes"].map(str::to_owned));
        headers.extend(["time", "exposed", "hidden"].map(|what| scale.header(what)));
        let share = |part: f64, whole: f64| if whole > 0.0 { percent(part / whole) } else { "-".to_owned() };
        let mebibytes = |bytes: f64| format!("{:.1}", bytes / MEBIBYTE);
        let mut rows = Vec::new();
        for row in &self.communication {
            let messages: f64 = row.kinds.iter().map(|kind| kind.messages).sum();
            rows.push(vec![
                axis_words(row.axis).to_owned(),
                count(messages),
                mebibytes(row.sent_bytes),
                share(row.across_nodes_bytes, row.sent_bytes),
                scale.show(row.time),
                scale.show(row.exposed),
                scale.show(row.hidden),
            ]);
            for kind in &row.kinds {
                let times = [(); 3].map(|()| String::new());
                let mut cells = vec![
                    format!("  {}", kind.kind),
                    count(kind.messages),
                    mebibytes(kind.sent_bytes),
                    share(kind.across_nodes_bytes, kind.sent_bytes),
                ];
                cells.extend(times);
                rows.push(cells);
            }
        }
        table(&headers, &rows)
    }

    fn memory_table(&self) -> String {
        if self.ranks.iter().all(|rank| rank.peak_memory_bytes == 0) {
            return String::new();
        }
        let classes: Vec<&str> = MemoryClass::ALL
            .iter()
            .map(|class| class.name())
            .filter(|class| self.ranks.iter().any(|rank| rank.memory_at_peak.get(class).is_some_and(|b| *b > 0)))
            .collect();
        let mut headers = vec!["memory at the peak\n[MiB]".to_owned(), "all".to_owned()];
        headers.extend(classes.iter().map(|class| (*class).to_owned()));
        let row = |rank: &RankReport| {
            let mut row = vec![format!("rank {}", rank.rank), mebibytes(rank.peak_memory_bytes)];
            row.extend(classes.iter().map(|c| mebibytes(rank.memory_at_peak.get(c).copied().unwrap_or(0))));
            row
        };
        table(&headers, &self.ranks.iter().map(row).collect::<Vec<_>>())
    }
}

const MEBIBYTE: f64 = 1024.0 * 1024.0;
/// Least share of the step that a table shows; JSON has them all.
const SMALLEST: f64 = 5e-5;

/// A mean number of messages: whole where it is.
fn count(messages: f64) -> String {
    if messages.fract() == 0.0 { format!("{messages:.0}") } else { format!("{messages:.1}") }
}

/// A part in words.
pub(in crate::report) fn words(part: &str) -> &str {
    match part {
        "recompute" => "forward again (recompute)",
        "backward_input" => "backward, inputs",
        "backward_weight" => "backward, weights",
        "optimizer" => "optimizer and fixed",
        "exposed_tp" => "waits for tensor parallel",
        "exposed_cp" => "waits for context parallel",
        "exposed_ep" => "waits for expert parallel",
        "exposed_pp" => "waits for pipeline messages",
        "exposed_dp" => "waits for data parallel",
        "bubble_fill" => "bubble: fill",
        "bubble_drain" => "bubble: drain",
        "bubble_forward" => "bubble: awaits a forward",
        "bubble_backward" => "bubble: awaits a backward",
        "bubble_imbalance" => "bubble: slower stages",
        "bubble_memory_limit" => "bubble: order's memory limit",
        "bubble_barrier" => "bubble: barrier",
        other => other,
    }
}

fn axis_words(axis: &str) -> &str {
    match axis {
        "tp" => "tensor (tp)",
        "cp" => "context (cp)",
        "ep" => "expert (ep)",
        "pp" => "pipeline (pp)",
        "dp" => "data (dp)",
        other => other,
    }
}
