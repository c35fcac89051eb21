//! The task graph of a small schedule in Graphviz' DOT: a cluster a rank, in it a row a lane, an edge style a kind.
//!
//! One law: a picture that nobody can read is refused, not drawn.

use crate::action::Op;
use crate::ids::Rank;
use crate::schedule::Schedule;
use crate::task::{Dep, Lane};
use petgraph::visit::EdgeRef;
use std::fmt::Write as _;

/// Most tasks that are drawn.
pub const MAX_TASKS: usize = 500;

/// A schedule with more tasks than anyone could read a picture of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{tasks} tasks are more than {MAX_TASKS}, the most that a drawn graph can be read with")]
pub struct TooLarge {
    /// How many it has.
    pub tasks: usize,
}

/// The task graph as DOT, with `title` above it. `dot -Tsvg` draws it.
///
/// # Errors
/// More than [`MAX_TASKS`] tasks.
pub fn write(title: &str, schedule: &Schedule) -> Result<String, TooLarge> {
    if schedule.len() > MAX_TASKS {
        return Err(TooLarge { tasks: schedule.len() });
    }
    let mut dot = String::new();
    // Writing to a String cannot fail.
    let _ = draw(&mut dot, title, schedule);
    Ok(dot)
}

fn draw(dot: &mut String, title: &str, schedule: &Schedule) -> std::fmt::Result {
    writeln!(dot, "digraph schedule {{")?;
    writeln!(dot, "  label={};", quoted(title))?;
    writeln!(dot, "  labelloc=t; rankdir=LR; newrank=true; nodesep=0.12; ranksep=0.3;")?;
    writeln!(dot, "  fontname=\"sans-serif\"; edge [arrowsize=0.6];")?;
    writeln!(dot, "  node [shape=box, style=filled, height=0.3, margin=\"0.06,0.03\", fontname=\"sans-serif\"];")?;
    for rank in (0..schedule.ranks()).map(Rank::at) {
        writeln!(dot, "  subgraph cluster_rank_{rank} {{")?;
        writeln!(dot, "    label=\"rank {rank}\"; labeljust=l; color=gray60;")?;
        for lane in Lane::ALL {
            let tasks: Vec<_> = schedule.program(rank).filter(|(_, task)| task.lane == lane).collect();
            if tasks.is_empty() {
                continue;
            }
            writeln!(dot, "    subgraph cluster_rank_{rank}_{} {{", lane.name())?;
            writeln!(dot, "      label={}; fontsize=10; color=gray85;", quoted(lane.name()))?;
            for (id, task) in tasks {
                let group = format!("r{rank}{}", lane.name());
                let fill = colour(task.action.op);
                // Parts of a compound action stand out.
                let border = if task.group.is_some() { ", penwidth=2" } else { "" };
                let label = quoted(&task.action.to_string());
                writeln!(dot, "      t{id} [label={label}, group={group}, fillcolor=\"{fill}\"{border}];")?;
            }
            writeln!(dot, "    }}")?;
        }
        writeln!(dot, "  }}")?;
    }
    for edge in schedule.graph().edge_references() {
        let (from, to) = (edge.source().index(), edge.target().index());
        writeln!(dot, "  t{from} -> t{to} [{}];", style(*edge.weight()))?;
    }
    writeln!(dot, "}}")
}

/// How an edge of a kind looks: what follows in a lane is grey and straight, what crosses to another rank is blue.
fn style(kind: Dep) -> &'static str {
    match kind {
        Dep::Program => "color=gray60, style=dashed, weight=8",
        Dep::Data => "color=black, style=solid",
        Dep::Transfer => "color=\"#1f6fb4\", style=bold, constraint=true",
        Dep::Weight => "color=\"#7a4fa3\", style=dotted",
    }
}

/// Fill of a task: forward blue, backward green, its two halves lighter and orange, all else grey.
fn colour(op: Op) -> &'static str {
    match op {
        Op::Forward => "#cfe2f3",
        Op::FullBackward => "#c6e5c3",
        Op::BackwardInput => "#e2f2df",
        Op::BackwardWeight => "#fbe0c4",
        _ => "#f0f0f0",
    }
}

/// A string of DOT.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::add_send_recv;
    use crate::schedule::Draft;
    use crate::schedules::{ScheduleParams, find};
    use crate::workload::Workload;

    fn schedule(p: u32, m: u32) -> Schedule {
        let order = find("1f1b").unwrap().order(&ScheduleParams::new(p, m, 1)).unwrap();
        Draft::lower(&add_send_recv(&order), &Workload::abstract_stages(p)).seal().unwrap()
    }

    #[test]
    fn every_task_and_edge_is_drawn_once() {
        let schedule = schedule(2, 2);
        let dot = write("say \"hi\"", &schedule).unwrap();
        assert!(dot.contains(r#"label="say \"hi\"";"#), "{dot}");
        assert_eq!(dot.matches("fillcolor").count(), schedule.len());
        assert_eq!(dot.matches(" -> ").count(), schedule.graph().edge_count());
        assert_eq!(dot.matches("label=\"rank ").count(), 2);
        assert_eq!(dot.matches('{').count(), dot.matches('}').count());
        for (id, task) in schedule.tasks() {
            assert_eq!(dot.matches(&format!(" t{id} [label=\"{}\",", task.action)).count(), 1);
        }
    }

    #[test]
    fn what_nobody_could_read_is_refused() {
        let tasks = schedule(8, 16).len();
        assert!(tasks > MAX_TASKS);
        assert_eq!(write("", &schedule(8, 16)), Err(TooLarge { tasks }));
    }
}
