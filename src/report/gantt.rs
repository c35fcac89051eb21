//! One schedule as a Gantt chart: a row a rank.

use super::axis::{TimeAxis, plain};
use super::canvas::Canvas;
use super::colour::{INK, QUIET};
use super::legend;
use super::picture::Picture;
use super::rows::{self, Frame};
use super::run::{Facts, Run};
use super::text;
use plotters::style::text_anchor::HPos;

/// Width of a picture [px].
pub(super) const WIDTH: f64 = 1280.0;
/// Free space at the edges [px].
pub(super) const MARGIN: f64 = 24.0;
/// Space for the names of the ranks [px].
pub(super) const NAMES: f64 = 62.0;
/// Space for the idle share of each rank [px].
const SHARES: f64 = 60.0;

/// Draws when each rank runs what, over all steps.
pub fn gantt(run: &Run<'_>) -> Picture {
    let facts = Facts::of(run);
    let ranks = run.schedule.ranks();
    let makespan = facts.metrics.makespan;
    let scale = run.unit.scale(makespan);
    let axis =
        TimeAxis { left: MARGIN + NAMES, width: WIDTH - 2.0 * MARGIN - NAMES - SHARES, longest: makespan, scale };
    let pitch = (560.0 / ranks.max(1) as f64).clamp(10.0, 36.0);
    let source = capital(run.timeline.source.name());
    let mut lines = vec![format!("{source}, makespan {} · {}", scale.show(makespan), run.bubble(&facts))];
    lines.extend(run.note.clone());
    let mut canvas = Canvas::new();
    let head = legend::head(&mut canvas, run.name, &run.shape(), &lines);
    let legend = legend::draw(&mut canvas, MARGIN, head + 14.0, &rows::legend(&[run], pitch));
    let frame = Frame { axis, top: legend + 42.0, pitch, stripe: rows::stripe(ranks, axis.width) };
    let bottom = frame.bottom(ranks);
    rows::draw(&mut canvas, run, &facts, &frame);
    draw_idle(&mut canvas, &facts, &frame);
    axis.draw(&mut canvas, bottom + 3.0);
    axis.caption(&mut canvas, bottom + 40.0);
    canvas.finish(WIDTH, bottom + 56.0)
}

/// The idle share of each rank, right of its row.
fn draw_idle(canvas: &mut Canvas, facts: &Facts, frame: &Frame) {
    let right = WIDTH - MARGIN;
    let size = (frame.pitch * 0.9).clamp(7.0, 11.0);
    if !facts.metrics.ranks.is_empty() {
        canvas.text((right, frame.top - 6.0), "idle", plain(11.0, QUIET, HPos::Right));
    }
    for (rank, metrics) in facts.metrics.ranks.iter().enumerate() {
        let share = if facts.metrics.makespan > 0.0 { metrics.idle / facts.metrics.makespan } else { 0.0 };
        let middle = frame.top + (rank as f64 + 0.5) * frame.pitch;
        canvas.text_middle((right, middle), text::percent(share), plain(size, INK, HPos::Right));
    }
}

/// The sentence with a capital first letter.
pub(super) fn capital(sentence: &str) -> String {
    let mut letters = sentence.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
