//! Memory over time: a panel a rank, classes stacked, on shared scales.

mod panel;

use super::axis::{TimeAxis, plain, ticks};
use super::canvas::Canvas;
use super::colour::{self, INK, QUIET};
use super::gantt::{MARGIN, WIDTH, capital};
use super::legend::{self, Entry};
use super::live::{self, Live};
use super::picture::Picture;
use super::run::{Run, TimeScale};
use super::text;
use panel::Panel;
use pipewright_ir::ids::Rank;
use pipewright_ir::task::MemoryClass;
use plotters::style::text_anchor::HPos;

/// Space for the numbers of the upward axis [px].
const NUMBERS: f64 = 58.0;
/// Space between panels [px].
const GAP: f64 = 18.0;
/// Height of a panel's own line [px].
const HEAD: f64 = 24.0;

/// What all panels share.
struct Figure {
    live: Vec<Live>,
    /// Corners of each rank's measured line.
    counted: Vec<Vec<(f64, f64)>>,
    /// Whether levels are bytes; else microbatches of activations.
    bytes: bool,
    /// When the stacked run ends.
    end: f64,
    /// Right end of the time axes.
    longest: f64,
    scale: TimeScale,
    /// Top of the upward axis [B or microbatches].
    most: f64,
}

/// Draws the memory of every rank: bytes by class, or activations alive where no bytes are known. If memory was
/// counted while the timeline was measured, it is a line over the classes.
pub fn memory(run: &Run<'_>) -> Picture {
    draw(run, run)
}

/// Draws the memory counted in `measured` as a line over the predicted memory by class.
pub fn memory_against(predicted: &Run<'_>, measured: &Run<'_>) -> Picture {
    draw(predicted, measured)
}

fn draw(run: &Run<'_>, measured: &Run<'_>) -> Picture {
    let figure = Figure::of(run, measured);
    let ranks = figure.live.len();
    let columns = columns(ranks);
    let lines = ranks.div_ceil(columns);
    let height = (600.0 / lines.max(1) as f64 - HEAD - GAP).clamp(64.0, 230.0);
    let width = (WIDTH - 2.0 * MARGIN - NUMBERS - GAP * (columns - 1) as f64) / columns as f64;
    let mut words = vec![figure.words(run)];
    words.extend(run.note.clone());
    let mut canvas = Canvas::new();
    let head = legend::head(&mut canvas, run.name, &run.shape(), &words);
    let top = 18.0 + legend::draw(&mut canvas, MARGIN, head + 14.0, &figure.legend());
    for rank in 0..ranks {
        let (column, line) = (rank % columns, rank / columns);
        let left = MARGIN + NUMBERS + column as f64 * (width + GAP);
        let axis = TimeAxis { left, width, longest: figure.longest, scale: figure.scale };
        let upper = top + line as f64 * (HEAD + height + GAP) + HEAD;
        let panel = Panel { axis, top: upper, bottom: upper + height, most: figure.most, end: figure.end };
        draw_levels(&mut canvas, &figure, &panel, column == 0, width);
        panel.draw(&mut canvas, &figure.live[rank], figure.counted.get(rank).map_or(&[], Vec::as_slice));
        draw_head(&mut canvas, &figure, &panel, rank);
        if rank + columns >= ranks {
            axis.draw(&mut canvas, upper + height);
        }
    }
    let caption = TimeAxis {
        left: MARGIN + NUMBERS,
        width: WIDTH - 2.0 * MARGIN - NUMBERS,
        longest: figure.longest,
        scale: figure.scale,
    };
    caption.caption(&mut canvas, top + lines as f64 * (HEAD + height + GAP) + 22.0);
    canvas.finish(WIDTH, top + lines as f64 * (HEAD + height + GAP) + 36.0)
}

/// Panels side by side.
fn columns(ranks: usize) -> usize {
    match ranks {
        0..=1 => 1,
        2..=8 => 2,
        9..=24 => 4,
        _ => 8,
    }
}

impl Figure {
    fn of(run: &Run<'_>, measured: &Run<'_>) -> Self {
        let live = live::of_run(run);
        let bytes = live::has_bytes(run.schedule);
        // Counted bytes do not belong on an axis of microbatches.
        let ranks = if bytes { live.len() } else { 0 };
        let counted: Vec<_> = (0..ranks).map(|rank| live::counted(measured, Rank::at(rank))).collect();
        let counted_most = counted.iter().flatten().map(|c| c.1).fold(0.0, f64::max);
        let most = live.iter().map(|l| l.peak.total()).fold(counted_most, f64::max);
        let counted_end = if counted_most > 0.0 { measured.timeline.makespan() } else { 0.0 };
        let end = run.timeline.makespan();
        let longest = f64::max(end, counted_end);
        Self { live, counted, bytes, end, longest, scale: run.unit.scale(longest), most: most * 1.06 }
    }

    fn is_counted(&self) -> bool {
        self.counted.iter().any(|line| !line.is_empty())
    }

    fn show(&self, level: f64) -> String {
        if self.bytes { text::bytes(level) } else { text::number(level, 3) }
    }

    /// The line under the title.
    fn words(&self, run: &Run<'_>) -> String {
        let what = if self.bytes { "memory" } else { "activations alive, in microbatches of a rank's whole share," };
        let highest = self.live.iter().enumerate().max_by(|a, b| {
            // Of equal peaks the first rank's is named.
            a.1.peak.total().total_cmp(&b.1.peak.total()).then(b.0.cmp(&a.0))
        });
        let peak = highest.map_or_else(String::new, |(rank, live)| {
            let (level, time) = (self.show(live.peak.total()), self.scale.show(live.peak.time));
            format!(" · highest peak {level} on rank {rank} at {time}")
        });
        let over = if self.is_counted() { ", counted memory as a line" } else { "" };
        let source = run.timeline.source.name();
        capital(&format!("{what} at {source} times{over}{peak}"))
    }

    fn legend(&self) -> Vec<Entry> {
        let mut entries = Vec::new();
        for class in MemoryClass::ALL {
            let is_there = |live: &Live| live.changes.iter().any(|change| change.levels[class.index()] > 0.0);
            if self.live.iter().any(is_there) {
                entries.push(Entry::area(colour::of_class(class), text::class(class)));
            }
        }
        if self.is_counted() {
            entries.push(Entry { colours: vec![INK], word: "counted while running".to_owned(), line: true });
        }
        entries
    }
}

/// Grid lines and, in the first column, numbers of the upward axis.
fn draw_levels(canvas: &mut Canvas, figure: &Figure, panel: &Panel, with_numbers: bool, width: f64) {
    let (name, unit) = if figure.bytes { text::byte_unit(figure.most) } else { ("", 1.0) };
    let wanted = ((panel.bottom - panel.top) / 34.0).clamp(2.0, 6.0) as usize;
    let levels = ticks(figure.most / unit, wanted);
    for level in levels {
        let y = panel.y(level * unit);
        canvas.path(vec![(panel.axis.left, y), (panel.axis.left + width, y)], 0.8, colour::GRID);
        if with_numbers {
            let number = format!("{} {name}", text::number(level, 6));
            canvas.text_middle((panel.axis.left - 7.0, y), number.trim_end(), plain(10.5, INK, HPos::Right));
        }
    }
}

/// A panel's own line: the rank and its peak.
fn draw_head(canvas: &mut Canvas, figure: &Figure, panel: &Panel, rank: usize) {
    let Some(live) = figure.live.get(rank) else { return };
    let (left, right) = (panel.axis.left, panel.axis.left + panel.axis.width);
    let set = super::canvas::Type { size: 12.0, bold: true, colour: INK, anchor: HPos::Left };
    canvas.text((left, panel.top - 6.0), format!("rank {rank}"), set);
    let peak = figure.show(live.peak.total());
    let mut words =
        if panel.axis.width > 260.0 { format!("peak {peak} at {}", figure.scale.show(live.peak.time)) } else { peak };
    let counted = figure.counted.get(rank).map_or(0.0, |line| line.iter().map(|c| c.1).fold(0.0, f64::max));
    if counted > 0.0 && panel.axis.width > 260.0 {
        words = format!("{words} · counted {}", figure.show(counted));
        if let Some(difference) = text::difference(counted, live.peak.total()) {
            words = format!("{words} ({difference})");
        }
    }
    canvas.text((right, panel.top - 6.0), words, plain(11.0, QUIET, HPos::Right));
}
