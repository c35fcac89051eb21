//! Where idle time goes, as JSON and in words: names in the JSON are a contract (`schema_version` 1).

use super::run::Run;
use super::table::{TimeScale, percent, table};
use super::text::count;
use pipewright_ir::action::Op;
use pipewright_ir::explain::{Cause, Causes, Explanation, Wait};
use pipewright_ir::ids::{Stage, TaskId};
use pipewright_ir::metrics::Metrics;
use pipewright_ir::task::Lane;
use serde::Serialize;
use std::collections::BTreeMap;

/// The answer of `explain`.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// Version of this format: 1.
    pub schema_version: u32,
    /// Name of the scenario.
    pub scenario: String,
    /// `units` under unit costs, else `s`.
    pub time_unit: &'static str,
    /// One entry a schedule.
    pub runs: Vec<ExplainedRun>,
}

/// One schedule.
#[derive(Clone, Debug, Serialize)]
pub struct ExplainedRun {
    /// The family, or `custom`.
    pub schedule: String,
    /// The family with its knobs, or the file of a custom order.
    pub name: String,
    /// First start to last end over all steps \[s or units\].
    pub makespan: f64,
    /// No order of the same stages on the same ranks, within the memory limit where one is given, has a shorter step;
    /// null where that is not known.
    pub lower_bound: Option<f64>,
    /// One entry a rank.
    pub ranks: Vec<IdleRow>,
    /// Every wait for something of another rank, longest first.
    pub waits: Vec<WaitRow>,
    /// What would change it, and by how much.
    pub what_if: Vec<WhatIf>,
    /// The same in a paragraph.
    pub words: String,
}

/// The idle time of one rank.
#[derive(Clone, Debug, Serialize)]
pub struct IdleRow {
    /// The rank.
    pub rank: usize,
    /// Makespan - compute time \[s or units\].
    pub idle: f64,
    /// Its parts by cause; they sum to `idle`.
    pub causes: BTreeMap<&'static str, f64>,
    /// The part of `imbalance` by the stage that is slower than this rank's own.
    pub slow_stages: BTreeMap<String, f64>,
}

/// One wait.
#[derive(Clone, Debug, Serialize)]
pub struct WaitRow {
    /// Who waits.
    pub rank: u32,
    /// In which step, from 0.
    pub step: usize,
    /// From when \[s or units\] ...
    pub from: f64,
    /// ... to when.
    pub to: f64,
    /// What it does then.
    pub task: String,
    /// Whose output it needed for that ...
    pub waits_for: String,
    /// ... and on which rank that ran.
    pub of_rank: u32,
    /// The time by cause; only causes that it has.
    pub causes: BTreeMap<&'static str, f64>,
}

/// One change and what it does.
#[derive(Clone, Debug, Serialize)]
pub struct WhatIf {
    /// The change, such as `hop = 0`.
    pub change: String,
    /// The makespan then \[s or units\]; null where the schedule cannot be built so.
    pub makespan: Option<f64>,
    /// The makespan then / now - 1.
    pub difference: Option<f64>,
    /// Time for each microbatch then / now - 1: differs where the change is more microbatches.
    pub difference_per_microbatch: Option<f64>,
    /// Why the schedule cannot be built so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// Waits that people are shown.
const SHOWN: usize = 5;

impl ExplainedRun {
    /// The row of a run of `family` and its explanation.
    pub fn new(
        family: &str,
        run: &Run<'_>,
        metrics: &Metrics,
        explanation: &Explanation,
        what_if: Vec<WhatIf>,
    ) -> Self {
        let task = |id: TaskId| run.schedule.task(id);
        let all = |causes: &Causes| Cause::ALL.iter().map(|c| (c.name(), causes.get(*c))).collect::<BTreeMap<_, _>>();
        let ranks = metrics.ranks.iter().zip(&explanation.ranks).enumerate().map(|(rank, (metrics, causes))| {
            let waits = explanation.waits.iter().filter(|w| w.rank.index() == rank);
            let slow = Explanation::slow_stages(waits).into_iter();
            IdleRow {
                rank,
                idle: metrics.idle,
                causes: all(causes),
                slow_stages: slow.map(|(stage, time)| (stage.to_string(), time)).collect(),
            }
        });
        let wait = |w: &&Wait| {
            let (id, input) = w.task.zip(w.input)?;
            Some(WaitRow {
                rank: w.rank.0,
                step: w.step,
                from: w.span.start,
                to: w.span.end,
                task: task(id).action.to_string(),
                waits_for: task(input).action.to_string(),
                of_rank: task(input).rank.0,
                causes: all(&w.causes).into_iter().filter(|(_, time)| *time > 0.0).collect(),
            })
        };
        Self {
            schedule: family.to_owned(),
            name: run.name.to_owned(),
            makespan: metrics.makespan,
            lower_bound: None,
            ranks: ranks.collect(),
            waits: explanation.longest().iter().filter_map(wait).collect(),
            what_if,
            words: Words::new(run, metrics, explanation).paragraph(),
        }
    }

    /// For people: the idle time of each rank by cause, the longest waits, the paragraph and the what-ifs.
    pub fn text(&self, in_seconds: bool) -> String {
        let changes = format!("{}{}", self.bound(in_seconds), self.changes(in_seconds));
        let sections = [self.idle_table(in_seconds), self.longest(in_seconds), wrapped(&self.words), changes];
        let sections: Vec<&str> = sections.iter().map(|s| s.trim_end()).filter(|s| !s.is_empty()).collect();
        format!("{}\n{}\n", self.name, sections.join("\n\n"))
    }

    fn bound(&self, in_seconds: bool) -> String {
        let Some(bound) = self.lower_bound else { return String::new() };
        let scale = TimeScale::of([self.makespan], in_seconds);
        let gap = percent((self.makespan / bound - 1.0).max(0.0));
        format!("lower bound of any order: {}, gap {gap}\n", scale.show(bound))
    }

    fn idle_table(&self, in_seconds: bool) -> String {
        let scale = TimeScale::of(self.ranks.iter().map(|r| r.idle), in_seconds);
        let total = |name: &str| self.ranks.iter().map(|r| r.causes[name]).sum::<f64>();
        let used: Vec<&str> = Cause::ALL.iter().map(|c| c.name()).filter(|name| total(name) > 0.0).collect();
        let mut headers = vec!["rank".to_owned(), scale.header("idle")];
        headers.extend(used.iter().map(|name| name.replace('_', " ")));
        let row = |name: String, idle: f64, of: &dyn Fn(&str) -> f64| {
            let causes = used.iter().map(|cause| scale.show(of(cause)));
            [name, scale.show(idle)].into_iter().chain(causes).collect::<Vec<_>>()
        };
        let mut rows: Vec<_> =
            self.ranks.iter().map(|r| row(r.rank.to_string(), r.idle, &|cause| r.causes[cause])).collect();
        if rows.len() > 1 {
            rows.push(row("all".to_owned(), self.ranks.iter().map(|r| r.idle).sum(), &total));
        }
        table(&headers, &rows)
    }

    fn longest(&self, in_seconds: bool) -> String {
        if self.waits.is_empty() {
            return String::new();
        }
        let shown = self.waits.get(..SHOWN).unwrap_or(&self.waits);
        let scale = TimeScale::of(shown.iter().map(|w| w.to), in_seconds);
        let headers = ["longest\nwaits", "from", "to", "for", "of rank", "to run", "causes"];
        let row = |w: &WaitRow| {
            let causes =
                w.causes.iter().map(|(cause, time)| format!("{} {}", cause.replace('_', " "), scale.show(*time)));
            vec![
                format!("rank {}", w.rank),
                scale.show(w.from),
                scale.show(w.to),
                w.waits_for.clone(),
                w.of_rank.to_string(),
                w.task.clone(),
                causes.collect::<Vec<_>>().join("\n"),
            ]
        };
        let mut headers = headers.map(str::to_owned);
        headers[1] = scale.header("from");
        headers[2] = scale.header("to");
        table(&headers, &shown.iter().map(row).collect::<Vec<_>>())
    }

    fn changes(&self, in_seconds: bool) -> String {
        let times = self.what_if.iter().filter_map(|w| w.makespan);
        let scale = TimeScale::of(times.chain([self.makespan]), in_seconds);
        let mut text = String::new();
        for what in &self.what_if {
            let outcome = match (what.makespan, &what.refused) {
                (Some(makespan), _) => {
                    let signed = |share: Option<f64>| share.map_or_else(|| "-".to_owned(), signed_percent);
                    let mut difference = signed(what.difference);
                    if what.difference != what.difference_per_microbatch {
                        difference.push_str(&format!(", {} a microbatch", signed(what.difference_per_microbatch)));
                    }
                    let now = scale.show(self.makespan);
                    format!("{} instead of {now} {}({difference})", scale.show(makespan), spaced(scale.unit))
                }
                (None, why) => format!("not possible: {}", why.as_deref().unwrap_or_default()),
            };
            text.push_str(&wrapped(&format!("{}: {outcome}", what.change)));
        }
        text
    }
}

/// A unit with a blank behind it, nothing for abstract units.
fn spaced(unit: &str) -> String {
    if unit.is_empty() { String::new() } else { format!("{unit} ") }
}

/// `-12.2 %`, `+3.0 %`.
fn signed_percent(share: f64) -> String {
    format!("{:+.1} %", share * 100.0)
}

/// Lines of at most 80 characters, broken at blanks.
pub fn wrapped(text: &str) -> String {
    let (mut lines, mut length) = (String::new(), 0);
    for word in text.split_whitespace() {
        let width = word.chars().count();
        if length > 0 && length + 1 + width > 80 {
            lines.push('\n');
            length = 0;
        } else if length > 0 {
            lines.push(' ');
            length += 1;
        }
        lines.push_str(word);
        length += width;
    }
    lines.push('\n');
    lines
}

/// What the paragraph is made from.
struct Words<'a> {
    run: &'a Run<'a>,
    metrics: &'a Metrics,
    explanation: &'a Explanation,
    scale: TimeScale,
}

impl<'a> Words<'a> {
    fn new(run: &'a Run<'a>, metrics: &'a Metrics, explanation: &'a Explanation) -> Self {
        let in_seconds = run.unit == super::TimeUnit::Seconds;
        Self { run, metrics, explanation, scale: TimeScale::of([metrics.makespan], in_seconds) }
    }

    fn paragraph(&self) -> String {
        let idle: f64 = self.metrics.ranks.iter().map(|r| r.idle).sum();
        let ranks = count(self.metrics.ranks.len(), "rank", "ranks");
        if self.explanation.total().total() <= 0.0 {
            return "No rank is ever idle.".to_owned();
        }
        let share = percent(self.metrics.bubble_fraction);
        let mut sentences =
            vec![format!("Of the time of {ranks}, {} ({share}) are idle: {}.", self.time(idle), self.causes())];
        sentences.extend(self.slowest_stage());
        if let Some(wait) = self.explanation.longest().into_iter().find(|w| w.causes.get(Cause::Fill) <= 0.0) {
            sentences.extend(self.longest_wait(wait));
        }
        sentences.join(" ")
    }

    /// `6 units`, `12.3 ms`.
    fn time(&self, time: f64) -> String {
        let number = self.scale.show(time);
        match (self.scale.unit, number.as_str()) {
            ("", "1") => "1 unit".to_owned(),
            ("", _) => format!("{number} units"),
            (unit, _) => format!("{number} {unit}"),
        }
    }

    /// The causes, largest first.
    fn causes(&self) -> String {
        let total = self.explanation.total();
        let mut causes: Vec<Cause> = Cause::ALL.into_iter().filter(|c| total.get(*c) > 0.0).collect();
        causes.sort_by(|a, b| total.get(*b).total_cmp(&total.get(*a)));
        let part = |cause: &Cause| {
            let why = match cause {
                Cause::Fill => "while the pipe fills",
                Cause::Drain => "while it drains",
                Cause::Forward => "waiting for activations",
                Cause::Backward => "waiting for gradients",
                Cause::Hop => "waiting for messages under way",
                Cause::Imbalance => "because another stage is slower",
                Cause::MemoryLimit => "while the order holds back a task that is ready",
                Cause::Barrier => "waiting for a step to begin or a reduction to end",
            };
            format!("{} {why}", self.scale.show(total.get(*cause)))
        };
        joined(&causes.iter().map(part).collect::<Vec<_>>())
    }

    /// Which stage slows others most.
    fn slowest_stage(&self) -> Option<String> {
        let stages = Explanation::slow_stages(&self.explanation.waits);
        let worst = |a: &(Stage, f64), b: &(Stage, f64)| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0));
        let (stage, time) = stages.into_iter().max_by(worst)?;
        let rank = self.run.schedule.placement().rank_of(stage)?;
        Some(format!(
            "Stage {stage} on rank {rank} is the slow one: other ranks wait {} for what its tasks take more than theirs.",
            self.time(time)
        ))
    }

    /// The longest wait of a rank that has begun.
    fn longest_wait(&self, wait: &Wait) -> Option<String> {
        let task = |id: TaskId| self.run.schedule.task(id);
        let (id, input) = wait.task.zip(wait.input)?;
        let action = task(id).action;
        let kind = match action.op {
            Op::Forward => "forward",
            Op::FullBackward | Op::BackwardInput | Op::BackwardWeight => "backward",
            _ => "optimizer step",
        };
        let mut like = self.run.schedule.program(wait.rank).filter(|(_, t)| t.action.op == action.op);
        let first = if like.next().is_some_and(|(first, _)| first == id) { "first " } else { "" };
        let started = |op| {
            let before = |(other, t): &(TaskId, &pipewright_ir::task::Task)| *other < id && t.action.op == op;
            self.run.schedule.program(wait.rank).filter(|(_, t)| t.lane == Lane::Compute).filter(before).count()
        };
        let span = wait.span;
        let (from, to) = (self.scale.show(span.start), self.scale.show(span.end));
        let mut words = format!(
            "Rank {} waits longest for its {first}{kind} {action}: {}, from {from} to {to}, for {} of rank {}",
            wait.rank,
            self.time(span.duration()),
            task(input).action,
            task(input).rank
        );
        let held = TimeScale::of([], false).show(wait.activations);
        if kind == "backward" && started(Op::Forward) > 0 && wait.activations > 0.0 {
            let microbatches = if held == "1" { "microbatch" } else { "microbatches" };
            words.push_str(&format!(", so it holds {held} {microbatches}"));
        }
        if let Some(ready) = wait.held_back {
            words.push_str(&format!("; {} is ready, but the order holds it back", task(ready).action));
        }
        words.push('.');
        Some(words)
    }
}

/// `a, b and c`.
fn joined(parts: &[String]) -> String {
    match parts.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
        None => String::new(),
    }
}
