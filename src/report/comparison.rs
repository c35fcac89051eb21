//! Several runs under one another on one time axis, so that the eye sees which ends first.

use super::axis::{TimeAxis, dashed, plain};
use super::canvas::{Canvas, Type};
use super::colour::{INK, LATER, QUIET, SOONER};
use super::gantt::{MARGIN, NAMES, WIDTH};
use super::legend::{self, Entry};
use super::picture::Picture;
use super::rows::{self, Frame};
use super::run::{Facts, Run, TimeScale, TimeUnit};
use super::{font, text};
use plotters::style::text_anchor::HPos;

/// Space for the makespans [px].
const ENDS: f64 = 112.0;
/// Height of a run's own lines above its rows [px].
const HEAD: f64 = 42.0;
/// Space between two runs [px].
const BETWEEN: f64 = 12.0;

/// A run in the figure.
struct Block<'a, 'b> {
    run: &'a Run<'b>,
    facts: Facts,
    name: String,
    /// The makespan to compare with, and whose it is.
    base: Option<(f64, String)>,
}

/// Draws `runs` on one time axis, each compared with the first. Their times must be in one unit; the first's counts.
pub fn comparison(title: &str, runs: &[Run<'_>]) -> Picture {
    let first = runs.first().map(|r| (r.timeline.makespan(), r.name.to_owned()));
    let sources_differ = runs.iter().any(|r| Some(r.timeline.source) != runs.first().map(|f| f.timeline.source));
    let block = |(i, run): (usize, &Run<'_>)| -> (String, Option<(f64, String)>) {
        let name = match sources_differ {
            true => format!("{}, {}", run.name, run.timeline.source.name()),
            false => run.name.to_owned(),
        };
        (name, first.clone().filter(|_| i > 0))
    };
    let named: Vec<_> = runs.iter().enumerate().map(block).collect();
    let blocks = runs.iter().zip(named).map(|(run, (name, base))| Block { run, facts: Facts::of(run), name, base });
    stack(title, &blocks.collect::<Vec<_>>())
}

/// Draws pairs of a prediction and a measurement of the same schedule on one time axis, with the difference between
/// the two. All times must be in one unit.
pub fn predicted_against_measured(title: &str, pairs: &[(Run<'_>, Run<'_>)]) -> Picture {
    let mut blocks = Vec::new();
    for (predicted, measured) in pairs {
        let base = Some((measured.timeline.makespan(), measured.timeline.source.name().to_owned()));
        for (run, base) in [(predicted, base), (measured, None)] {
            let name = format!("{}, {}", run.name, run.timeline.source.name());
            blocks.push(Block { run, facts: Facts::of(run), name, base });
        }
    }
    stack(title, &blocks)
}

fn stack(title: &str, blocks: &[Block<'_, '_>]) -> Picture {
    let longest = blocks.iter().map(|b| b.facts.metrics.makespan).fold(0.0, f64::max);
    let scale = blocks.first().map_or(TimeUnit::Abstract, |b| b.run.unit).scale(longest);
    let axis = TimeAxis { left: MARGIN + NAMES, width: WIDTH - 2.0 * MARGIN - NAMES - ENDS, longest, scale };
    let rows: usize = blocks.iter().map(|b| b.run.schedule.ranks()).sum();
    let pitch = (620.0 / rows.max(1) as f64).clamp(5.0, 28.0);
    let stripe = rows::stripe(rows, axis.width);
    let mut canvas = Canvas::new();
    let head = legend::head(&mut canvas, title, "", &[]);
    let runs: Vec<_> = blocks.iter().map(|b| b.run).collect();
    let mut entries = rows::legend(&runs, pitch);
    if blocks.len() > 1 {
        entries.push(Entry { colours: vec![SOONER], word: "where the shortest ends".to_owned(), line: true });
    }
    let mut top = 22.0 + legend::draw(&mut canvas, MARGIN, head + 12.0, &entries);
    let mut frames = Vec::new();
    for block in blocks {
        draw_names(&mut canvas, block, top);
        let frame = Frame { axis, top: top + HEAD, pitch, stripe };
        rows::draw(&mut canvas, block.run, &block.facts, &frame);
        top = frame.bottom(block.run.schedule.ranks()) + BETWEEN;
        frames.push(frame);
    }
    draw_shortest(&mut canvas, blocks, &frames, top);
    for (block, frame) in blocks.iter().zip(&frames) {
        draw_end(&mut canvas, block, frame, scale);
    }
    axis.draw(&mut canvas, top);
    axis.caption(&mut canvas, top + 36.0);
    canvas.finish(WIDTH, top + 52.0)
}

/// Name and numbers of a run, above its rows.
fn draw_names(canvas: &mut Canvas, block: &Block<'_, '_>, top: f64) {
    let set = Type { size: 15.0, bold: true, colour: INK, anchor: HPos::Left };
    let name = font::fitted(&block.name, set.size, true, WIDTH / 2.0);
    canvas.text((MARGIN, top + 20.0), name.as_str(), set);
    let bubble = || block.run.bubble(&block.facts);
    let words = format!("{} · {}", block.run.shape(), block.run.note.clone().unwrap_or_else(bubble));
    let left = MARGIN + font::width(&name, set.size, true) + 14.0;
    let words = font::fitted(&words, 12.0, false, WIDTH - MARGIN - left);
    canvas.text((left, top + 20.0), words, plain(12.0, QUIET, HPos::Left));
}

/// The end of a run: a line across its rows, with the makespan and the difference beside it.
fn draw_end(canvas: &mut Canvas, block: &Block<'_, '_>, frame: &Frame, scale: TimeScale) {
    let makespan = block.facts.metrics.makespan;
    let x = frame.axis.x(makespan);
    let bottom = frame.bottom(block.run.schedule.ranks());
    canvas.path(vec![(x, frame.top - 4.0), (x, bottom + 2.0)], 2.0, INK);
    let middle = f64::midpoint(frame.top, bottom);
    let set = Type { size: 14.0, bold: true, colour: INK, anchor: HPos::Left };
    let Some((base, whose)) = &block.base else {
        canvas.text_middle((x + 8.0, middle), scale.show(makespan), set);
        return;
    };
    let colour = if makespan <= *base { SOONER } else { LATER };
    let difference = text::difference(makespan, *base).unwrap_or_default();
    canvas.text((x + 8.0, middle - 8.0), scale.show(makespan), set);
    canvas.text((x + 8.0, middle + 9.0), difference, Type { colour, size: 13.0, ..set });
    canvas.text(
        (x + 8.0, middle + 23.0),
        font::fitted(&format!("against {whose}"), 10.0, false, ENDS + MARGIN - 12.0),
        plain(10.0, QUIET, HPos::Left),
    );
}

/// A dashed line down all rows, to the axis at `bottom`, where the shortest run ends.
fn draw_shortest(canvas: &mut Canvas, blocks: &[Block<'_, '_>], frames: &[Frame], bottom: f64) {
    let shortest = blocks.iter().map(|b| b.facts.metrics.makespan).fold(f64::INFINITY, f64::min);
    if blocks.len() < 2 || !shortest.is_finite() {
        return;
    }
    for (i, (block, frame)) in blocks.iter().zip(frames).enumerate() {
        let last = i + 1 == blocks.len();
        let end = if last { bottom } else { frame.bottom(block.run.schedule.ranks()) + 4.0 };
        let x = frame.axis.x(shortest);
        dashed(canvas, (x, frame.top - 4.0), (x, end), 1.0, SOONER);
    }
}
