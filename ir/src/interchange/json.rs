//! A whole schedule as JSON: placement, programs, task graph, memory. Schema: `pipewright schema schedule`.
//!
//! One law: the programs, the placement and the sizes are the schedule; everything else follows from them by lowering.
//! What a file says of it must agree, and may be left out.

use crate::action::{Action, Op};
use crate::ids::{LayerRange, Microbatch, Pipe, Rank, Stage, TaskId};
use crate::order::PipelineOrder;
use crate::placement::Placement;
use crate::schedule::{Draft, Schedule};
use crate::schedules::size_faults;
use crate::task::{Dep, Lane, MemoryClass, Touch};
use crate::workload::Workload;
use petgraph::visit::EdgeRef;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// A schedule file, version 1: one training step of a pipeline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduleFile {
    /// Where an editor finds the JSON schema of this file; not read by pipewright.
    #[serde(rename = "$schema", skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
    /// Version of this format: 1.
    pub schema_version: u32,
    /// Name of the schedule, for people.
    #[serde(default)]
    pub name: String,
    /// Microbatches of the step, of both pipes where there are two.
    pub microbatches: u32,
    /// Sequence slices of each microbatch; 1 where microbatches are whole.
    #[serde(default = "whole")]
    pub slices: u16,
    /// Which rank holds which stage.
    pub placement: PlacementRow,
    /// What each stage computes, keeps and sends for one microbatch. Left out: nothing has a size.
    #[serde(default)]
    pub sizes: Workload,
    /// The programs of all ranks: rank by rank, each in program order. The id of a task is its position.
    pub tasks: Vec<TaskRow>,
    /// Which task waits for which. Derived; left out, it is not compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edges: Option<Vec<EdgeRow>>,
    /// Memory that lives from one task to another; the id of a buffer is its position. Derived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buffers: Option<Vec<BufferRow>>,
    /// Memory that exists before and after the step. Derived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent: Option<Vec<PersistentRow>>,
}

fn whole() -> u16 {
    1
}

/// Which rank holds which stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlacementRow {
    /// Pipeline ranks.
    pub ranks: u32,
    /// Rank of each stage, of the downward pipe where there are two.
    pub rank_of_stage: Vec<u32>,
    /// Rank of each stage of the upward pipe, in a bidirectional schedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank_of_stage_up: Option<Vec<u32>>,
}

/// A task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskRow {
    /// Its position among the tasks, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u32>,
    /// The rank that runs it.
    pub rank: u32,
    /// The lane of the rank that it runs on. Derived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lane: Option<Lane>,
    /// The stage it acts on.
    pub stage: u32,
    /// The pipe of the stage.
    #[serde(default, skip_serializing_if = "is_only")]
    pub pipe: Pipe,
    /// What it does.
    pub op: Op,
    /// Its microbatch, from 0 in each pipe; none for what happens once a step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub microbatch: Option<u32>,
    /// Its slice of the microbatch, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slice: Option<u16>,
    /// Id of the first part of the compound action that it is a part of, its own if it is the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    /// The rank at the other end of a message. Derived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<u32>,
    /// Size of the message \[B\], 0 for compute. Derived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload_bytes: Option<u64>,
    /// The layers it runs, first and one past the last. Derived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<LayerRange>,
    /// Floating-point operations. Derived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flops: Option<f64>,
    /// What it does to memory. Derived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effects: Option<Vec<EffectRow>>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_only(pipe: &Pipe) -> bool {
    *pipe == Pipe::Only
}

/// A touch of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EffectRow {
    /// Id of the buffer.
    pub buffer: u32,
    /// What happens to it.
    pub touch: Touch,
}

/// An edge of the task graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EdgeRow {
    /// Id of the task that must end first.
    pub from: u32,
    /// Id of the task that waits for it.
    pub to: u32,
    /// Why.
    pub kind: Dep,
}

/// A buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BufferRow {
    /// Whose memory it is.
    pub rank: u32,
    /// What it holds.
    pub class: MemoryClass,
    /// Its size \[B\].
    pub bytes: u64,
}

/// Memory that outlives the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PersistentRow {
    /// Whose memory it is.
    pub rank: u32,
    /// The stage it belongs to.
    pub stage: u32,
    /// The pipe of the stage.
    #[serde(default, skip_serializing_if = "is_only")]
    pub pipe: Pipe,
    /// What it holds.
    pub class: MemoryClass,
    /// Its size \[B\].
    pub bytes: u64,
}

/// One thing wrong with a schedule file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {message}")]
pub struct FileFault {
    /// Where in the file: `tasks[5].peer`.
    pub path: String,
    /// What is wrong, with the numbers.
    pub message: String,
    /// The way out.
    pub help: String,
}

fn fault(path: impl Into<String>, message: impl Into<String>, help: impl Into<String>) -> FileFault {
    FileFault { path: path.into(), message: message.into(), help: help.into() }
}

impl ScheduleFile {
    /// The file of a schedule that was lowered with the sizes `workload`.
    pub fn of(name: &str, schedule: &Schedule, workload: &Workload) -> Self {
        Self::of_draft(name, schedule.draft(), workload)
    }

    fn of_draft(name: &str, draft: &Draft, workload: &Workload) -> Self {
        let placement = &draft.placement;
        let table = |pipe| {
            let stages = (0..placement.stages()).map(move |s| Stage::new(s).on(pipe));
            stages.map(|stage| placement.rank_of(stage).map_or(u32::MAX, |rank| rank.0)).collect::<Vec<_>>()
        };
        let two = placement.pipes().len() > 1;
        let edges = draft.graph.edge_references();
        let row = |(rank, stage, class, bytes): &(Rank, Stage, MemoryClass, u64)| PersistentRow {
            rank: rank.0,
            stage: stage.number(),
            pipe: stage.pipe(),
            class: *class,
            bytes: *bytes,
        };
        let buffers = draft.buffers.iter().map(|b| BufferRow { rank: b.rank.0, class: b.class, bytes: b.bytes });
        Self {
            schema: None,
            schema_version: 1,
            name: name.to_owned(),
            microbatches: draft.microbatches,
            slices: draft.index.cells.slices(),
            placement: PlacementRow {
                ranks: placement.ranks(),
                rank_of_stage: table(if two { Pipe::Down } else { Pipe::Only }),
                rank_of_stage_up: two.then(|| table(Pipe::Up)),
            },
            sizes: workload.clone(),
            tasks: (0..draft.graph.node_count()).map(|id| task_row(draft, TaskId::at(id))).collect(),
            edges: Some(
                edges
                    .map(|e| EdgeRow {
                        from: TaskId::at(e.source().index()).0,
                        to: TaskId::at(e.target().index()).0,
                        kind: *e.weight(),
                    })
                    .collect(),
            ),
            buffers: Some(buffers.collect()),
            persistent: Some(draft.persistent.iter().map(row).collect()),
        }
    }

    /// The text of the file, one task, edge or buffer a line.
    ///
    /// # Errors
    /// A number that JSON has no form for.
    pub fn to_text(&self) -> Result<String, serde_json::Error> {
        let mut text = String::from("{");
        let fields = serde_json::to_value(Self { tasks: Vec::new(), edges: None, buffers: None, ..self.clone() })?;
        let mut separator = "\n";
        for (key, value) in fields.as_object().into_iter().flatten().filter(|(key, _)| key.as_str() != "tasks") {
            text.push_str(&format!("{separator}  \"{key}\": {value}"));
            separator = ",\n";
        }
        lines(&mut text, "tasks", &self.tasks)?;
        if let Some(edges) = &self.edges {
            lines(&mut text, "edges", edges)?;
        }
        if let Some(buffers) = &self.buffers {
            lines(&mut text, "buffers", buffers)?;
        }
        text.push_str("\n}\n");
        Ok(text)
    }

    /// The order that the file holds, and its sizes. Whether the order keeps the law is for
    /// [`spec`](crate::spec) to say.
    ///
    /// # Errors
    /// Everything that makes no order, or that disagrees with what follows from the order.
    pub fn read(&self) -> Result<(PipelineOrder, Workload), Vec<FileFault>> {
        let order = self.order()?;
        let derived = Self::of_draft(&self.name, &Draft::lower(&order, &self.sizes), &self.sizes);
        let mut faults = Vec::new();
        let tasks = self.tasks.iter().zip(&derived.tasks).zip(order.ranks.iter().flatten());
        for (i, ((given, derived), action)) in tasks.enumerate() {
            compare(|| format!("tasks[{i}] (rank {}: {action})", given.rank), given, derived, &mut faults);
        }
        if let (Some(given), Some(derived)) = (&self.edges, &derived.edges) {
            compare_edges(given, derived, &mut faults);
        }
        compare_rows("buffers", self.buffers.as_deref(), derived.buffers.as_deref(), &mut faults);
        compare_rows("persistent", self.persistent.as_deref(), derived.persistent.as_deref(), &mut faults);
        if faults.is_empty() { Ok((order, self.sizes.clone())) } else { Err(faults) }
    }

    fn order(&self) -> Result<PipelineOrder, Vec<FileFault>> {
        let mut faults = self.head_faults();
        let mut ranks: Vec<Vec<Action>> = Vec::new();
        if faults.is_empty() {
            ranks.resize(self.placement.ranks as usize, Vec::new());
        }
        let mut before: Option<&TaskRow> = None;
        for (i, row) in self.tasks.iter().enumerate() {
            let at = |field: &str| format!("tasks[{i}].{field}");
            if row.id.is_some_and(|id| id as usize != i) {
                let message = format!("is {}, but the task is number {i}", row.id.unwrap_or_default());
                faults.push(fault(at("id"), message, "number tasks by their position, or leave ids out"));
            }
            if row.rank >= self.placement.ranks {
                let message = format!("is {}, but there are {} ranks", row.rank, self.placement.ranks);
                faults.push(fault(at("rank"), message, "ranks count from 0"));
            }
            if let Some(last) = before.filter(|last| last.rank > row.rank) {
                let message = format!("is {} behind a task of rank {}", row.rank, last.rank);
                faults.push(fault(at("rank"), message, "write the tasks rank by rank, each in program order"));
            }
            if row.op.has_microbatch() != row.microbatch.is_some() {
                let (message, help) = if row.microbatch.is_some() {
                    (format!("{} acts once a step on the whole stage", row.op.code()), "leave it out")
                } else {
                    (format!("{} needs a microbatch", row.op.code()), "add it")
                };
                faults.push(fault(at("microbatch"), message, help));
            }
            if row.slice.is_some() && row.microbatch.is_none() {
                faults.push(fault(at("slice"), "there is no microbatch to be a slice of", "leave it out"));
            }
            let joins = row.group.is_some() && before.is_some_and(|b| b.rank == row.rank && b.group == row.group);
            if let Some(program) = ranks.get_mut(row.rank as usize) {
                let action = row.action();
                program.push(if joins { action.joined() } else { action });
            }
            before = Some(row);
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        let PlacementRow { ranks: p, rank_of_stage: down, rank_of_stage_up: up } = &self.placement;
        let table = |ranks: &[u32]| ranks.iter().copied().map(Rank).collect::<Vec<_>>();
        let placement = match up {
            Some(up) => Placement::two_pipes(*p, table(down), table(up)),
            None => Placement::table(*p, table(down)),
        };
        Ok(PipelineOrder { microbatches: self.microbatches, slices: self.slices, placement, ranks })
    }

    /// Faults of everything before the tasks.
    fn head_faults(&self) -> Vec<FileFault> {
        let mut faults = Vec::new();
        if self.schema_version != 1 {
            let message = format!("{} is not known to this version of pipewright", self.schema_version);
            faults.push(fault("schema_version", message, "use 1"));
        }
        if self.slices == 0 {
            faults.push(fault("slices", "is 0", "use 1 for whole microbatches"));
        }
        let PlacementRow { ranks, rank_of_stage, rank_of_stage_up } = &self.placement;
        let stages = u32::try_from(rank_of_stage.len()).unwrap_or(u32::MAX);
        if *ranks == 0 || stages == 0 || self.microbatches == 0 {
            let message = format!("{ranks} ranks, {stages} stages and {} microbatches make no step", self.microbatches);
            faults.push(fault("placement", message, "use 1 or more of each"));
        }
        let up = rank_of_stage_up.as_deref().unwrap_or_default();
        if rank_of_stage_up.is_some() && up.len() != rank_of_stage.len() {
            let message = format!("has {} stages, but the downward pipe {stages}", up.len());
            faults.push(fault("placement.rank_of_stage_up", message, "give both pipes the same stages"));
        }
        if rank_of_stage_up.is_some() && !self.microbatches.is_multiple_of(2) {
            let message = format!("{} microbatches cannot go half down and half up", self.microbatches);
            faults.push(fault("microbatches", message, "use an even number"));
        }
        for (key, table) in [("rank_of_stage", rank_of_stage.as_slice()), ("rank_of_stage_up", up)] {
            for (stage, rank) in table.iter().enumerate().filter(|(_, rank)| **rank >= *ranks) {
                let message = format!("is {rank}, but there are {ranks} ranks");
                faults.push(fault(format!("placement.{key}[{stage}]"), message, "ranks count from 0"));
            }
        }
        let sizes = self.sizes.stages.len();
        if sizes > 0 && sizes != rank_of_stage.len() {
            let message = format!("has {sizes} entries for {stages} stages");
            faults.push(fault("sizes.stages", message, "write one entry a stage, or none"));
        }
        let too_large = size_faults(*ranks, stages, self.microbatches, self.slices);
        faults.extend(too_large.into_iter().map(|f| fault("placement", f.message, f.help)));
        faults
    }
}

impl TaskRow {
    fn action(&self) -> Action {
        let stage = Stage::new(self.stage).on(self.pipe);
        let Some(microbatch) = self.microbatch.map(Microbatch::new) else { return Action::whole_stage(stage, self.op) };
        Action::new(stage, self.op, self.slice.map_or(microbatch, |slice| microbatch.sliced(slice)))
    }
}

fn task_row(draft: &Draft, id: TaskId) -> TaskRow {
    let task = draft.task(id);
    let Action { stage, op, microbatch, .. } = task.action;
    let effect = |e: &crate::task::MemoryEffect| EffectRow { buffer: e.buffer.0, touch: e.touch };
    TaskRow {
        id: Some(id.0),
        rank: task.rank.0,
        lane: Some(task.lane),
        stage: stage.number(),
        pipe: stage.pipe(),
        op,
        microbatch: microbatch.map(Microbatch::number),
        slice: microbatch.and_then(Microbatch::slice),
        group: task.group.map(|id| id.0),
        peer: task.peer.map(|rank| rank.0),
        payload_bytes: Some(task.payload),
        layers: Some(task.layers),
        flops: Some(draft.work(task).flops),
        effects: Some(draft.effects_of(id).iter().map(effect).collect()),
    }
}

/// `"key": [` and one element a line.
fn lines<T: Serialize>(text: &mut String, key: &str, rows: &[T]) -> Result<(), serde_json::Error> {
    text.push_str(&format!(",\n  \"{key}\": ["));
    let mut separator = "\n";
    for row in rows {
        text.push_str(&format!("{separator}    {}", serde_json::to_string(row)?));
        separator = ",\n";
    }
    text.push_str("\n  ]");
    Ok(())
}

const DERIVED: &str = "it follows from placement, sizes and programs: correct those, or leave this out";

/// Notes every field that a row gives and that follows to be another.
fn compare<T: Serialize + PartialEq>(name: impl Fn() -> String, given: &T, derived: &T, faults: &mut Vec<FileFault>) {
    if given == derived {
        return;
    }
    let fields = |row: &T| serde_json::to_value(row).unwrap_or_default();
    let (given, derived) = (fields(given), fields(derived));
    for (key, value) in given.as_object().into_iter().flatten() {
        let other = derived.get(key).unwrap_or(&Value::Null);
        if value != other {
            let message = format!("{key} is {value}, but {other} follows from the rest of the file");
            faults.push(fault(format!("{}.{key}", name()), message, DERIVED));
        }
    }
}

fn compare_rows<T: Serialize + PartialEq>(
    key: &str,
    given: Option<&[T]>,
    derived: Option<&[T]>,
    faults: &mut Vec<FileFault>,
) {
    let (Some(given), Some(derived)) = (given, derived) else { return };
    if given.len() != derived.len() {
        let message = format!("has {} entries, but {} follow from the rest of the file", given.len(), derived.len());
        faults.push(fault(key, message, DERIVED));
    }
    for (i, (given, derived)) in given.iter().zip(derived).enumerate() {
        compare(|| format!("{key}[{i}]"), given, derived, faults);
    }
}

/// Edges are a set: their order says nothing.
fn compare_edges(given: &[EdgeRow], derived: &[EdgeRow], faults: &mut Vec<FileFault>) {
    let mut balance: BTreeMap<EdgeRow, i64> = BTreeMap::new();
    derived.iter().for_each(|edge| *balance.entry(*edge).or_default() += 1);
    for (i, edge) in given.iter().enumerate() {
        let left = balance.entry(*edge).or_default();
        *left -= 1;
        if *left < 0 {
            let EdgeRow { from, to, .. } = edge;
            let message = format!("no such edge from task {from} to task {to} follows from the programs");
            faults.push(fault(format!("edges[{i}]"), message, DERIVED));
        }
    }
    for (EdgeRow { from, to, .. }, _) in balance.iter().filter(|(_, left)| **left > 0) {
        faults.push(fault("edges", format!("the edge from task {from} to task {to} is missing"), DERIVED));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::{add_gradient_reduction, add_optimizer_step, add_send_recv, add_tied_reduction};
    use crate::schedules::{FAMILIES, ScheduleParams};
    use crate::workload::StageWorkload;

    fn sizes(stages: u32) -> Workload {
        let stage = |s: u32| StageWorkload {
            layers: LayerRange { start: s, end: s + 1 },
            activations: 7,
            output: 3,
            gradients: 5,
            parameters: 5,
            optimizer: 10,
            tied: 2,
            forward_flops: 1e15 / 3.0,
            ..Default::default()
        };
        Workload { rank_overhead: 1, stages: (0..stages).map(stage).collect(), ..Workload::default() }
    }

    fn through_text(order: &PipelineOrder, name: &str) -> ScheduleFile {
        let workload = sizes(order.placement.stages());
        let program = add_gradient_reduction(add_send_recv(order));
        let program = add_optimizer_step(add_tied_reduction(program));
        let schedule = Draft::lower(&program, &workload).seal().unwrap();
        let file = ScheduleFile::of(name, &schedule, &workload);
        let text = file.to_text().unwrap();
        let again: ScheduleFile = serde_json::from_str(&text).unwrap();
        assert_eq!(again, file, "{name}: the text says what the value says");
        let (order, workload) = again.read().unwrap();
        assert_eq!(order, program, "{name}");
        let sealed = Draft::lower(&order, &workload).seal().unwrap();
        let of = |s: &Schedule| s.tasks().map(|(id, t)| (*t, s.effects(id).to_vec())).collect::<Vec<_>>();
        assert_eq!(of(&sealed), of(&schedule), "{name}: tasks and effects");
        let edges = |s: &Schedule| {
            s.graph().edge_references().map(|e| (e.source(), e.target(), *e.weight())).collect::<Vec<_>>()
        };
        assert_eq!(edges(&sealed), edges(&schedule), "{name}: edges");
        assert_eq!(sealed.persistent(), schedule.persistent(), "{name}");
        file
    }

    #[test]
    fn every_family_comes_back_whole() {
        for family in &FAMILIES {
            for (p, m, v) in [(1, 2, 1), (2, 4, 2), (4, 8, 2)] {
                let params = ScheduleParams::new(p, m, family.default_chunks(Some(v)));
                if let Ok(order) = family.order(&params) {
                    through_text(&order, &format!("{} p={p} m={m}", family.name));
                }
            }
        }
    }

    #[test]
    fn pipes_slices_and_compound_actions_come_back_whole() {
        for (csv, m) in [
            ("0dF0,1uF0,(1uB0;0dB0)FUSED\n1dF0,0uF0,1dB0,0uB0\n", 2),
            ("0F0.0,0F0.1,0B0.1,0B0.0\n1F0.0,1F0.1,1B0.1,1B0.0\n", 1),
            ("0F0,(0F1;0B0)OVERLAP_F_B,0I1,0W1\n", 2),
        ] {
            let order = PipelineOrder::from_csv(csv, m).unwrap();
            let file = through_text(&order, csv);
            assert!(file.tasks.iter().any(|t| t.group.is_some() || t.slice.is_some() || t.pipe != Pipe::Only), "{csv}");
        }
    }

    fn example() -> ScheduleFile {
        through_text(&FAMILIES[2].order(&ScheduleParams::new(2, 2, 1)).unwrap(), "example")
    }

    #[test]
    fn a_file_of_programs_alone_is_enough() {
        let text = r#"{ "schema_version": 1, "microbatches": 1, "placement": { "ranks": 1, "rank_of_stage": [0] },
            "tasks": [{ "rank": 0, "stage": 0, "op": "F", "microbatch": 0 },
                      { "rank": 0, "stage": 0, "op": "B", "microbatch": 0 }] }"#;
        let (order, _) = serde_json::from_str::<ScheduleFile>(text).unwrap().read().unwrap();
        assert_eq!(order.to_csv(true), "0F0,0B0\n");
    }

    #[test]
    fn what_disagrees_with_the_programs_is_told_with_both_values() {
        let mut file = example();
        let send = file.tasks.iter().position(|t| t.op == Op::SendForward).unwrap();
        file.tasks[send].payload_bytes = Some(99);
        file.tasks[send].peer = Some(0);
        file.edges.as_mut().unwrap().swap_remove(0);
        file.edges.as_mut().unwrap().push(EdgeRow { from: 0, to: 0, kind: Dep::Data });
        file.buffers.as_mut().unwrap()[0].bytes = 1000;
        let faults = file.read().unwrap_err();
        let paths: Vec<&str> = faults.iter().map(|f| f.path.rsplit(' ').next().unwrap()).collect();
        let edge = format!("edges[{}]", file.edges.as_ref().unwrap().len() - 1);
        assert_eq!(
            paths,
            ["0SEND_F0).payload_bytes", "0SEND_F0).peer", &edge, "edges", "buffers[0].bytes"][..].to_vec()
        );
        assert!(faults.iter().any(|f| f.message.contains("99") && f.message.contains('3')), "{faults:?}");
    }

    #[test]
    fn what_makes_no_order_is_told_at_once() {
        let mut file = example();
        file.tasks[0].id = Some(7);
        file.tasks[1].rank = 9;
        file.tasks[2].microbatch = None;
        file.placement.rank_of_stage[1] = 4;
        let paths: Vec<String> = file.read().unwrap_err().into_iter().map(|f| f.path).collect();
        let expected =
            ["placement.rank_of_stage[1]", "tasks[0].id", "tasks[1].rank", "tasks[2].rank", "tasks[2].microbatch"];
        assert_eq!(paths, expected);
        let mut file = example();
        (file.microbatches, file.placement.ranks, file.slices) = (u32::MAX, u32::MAX, u16::MAX);
        assert_eq!(file.read().unwrap_err().len(), 2, "too many ranks, too many pairs");
    }
}
