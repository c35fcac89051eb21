//! Step time over peak memory: a point a schedule, and which of them no other beats in both.

mod labels;

use super::axis::{plain, ticks_between};
use super::canvas::{Canvas, Point};
use super::colour::{AXIS, DOMINATED, GRID, INK, QUIET, SOONER, WHITE};
use super::gantt::{MARGIN, WIDTH};
use super::legend::{self, Entry};
use super::picture::Picture;
use super::run::{Run, TimeScale, TimeUnit};
use super::{font, text};
use labels::{Block, Labels};
use pipewright_ir::metrics::Metrics;
use plotters::style::text_anchor::HPos;

/// Differences below this share are rounding.
const ROUNDING: f64 = 1e-9;
/// Height of the plot [px].
const HEIGHT: f64 = 520.0;
/// Space for the numbers of the upward axis [px].
const NUMBERS: f64 = 58.0;
/// Radius of a point [px].
const DOT: f64 = 5.5;
/// Longest label [px].
const LONGEST: f64 = 260.0;

/// Which of several schedules are on the Pareto front of time against peak memory: no other one is better in one of the
/// two and not worse in the other. Memory is the peak in bytes where every schedule's is known, else peak activations.
pub fn on_front<'a>(metrics: impl IntoIterator<Item = &'a Metrics>) -> Vec<bool> {
    let metrics: Vec<&Metrics> = metrics.into_iter().collect();
    let bytes = in_bytes(metrics.iter().copied());
    let points: Vec<Point> = metrics.iter().map(|m| (memory(m, bytes), m.makespan)).collect();
    front(&points)
}

/// Whether the peak memory of every schedule is known in bytes.
pub fn in_bytes<'a>(metrics: impl IntoIterator<Item = &'a Metrics>) -> bool {
    metrics.into_iter().all(|m| m.peak_memory() > 0)
}

/// Peak memory [B], or peak activations [microbatches].
fn memory(metrics: &Metrics, bytes: bool) -> f64 {
    if bytes { metrics.peak_memory() as f64 } else { metrics.peak_activations() }
}

fn front(points: &[Point]) -> Vec<bool> {
    let less = |a: f64, b: f64| a < b - ROUNDING * b.abs();
    let beats = |a: &Point, b: &Point| (less(a.0, b.0) && !less(b.1, a.1)) || (less(a.1, b.1) && !less(b.0, a.0));
    points.iter().map(|point| !points.iter().any(|other| beats(other, point))).collect()
}

/// A stretch of an axis.
#[derive(Clone, Copy)]
struct Range {
    low: f64,
    high: f64,
}

impl Range {
    /// A little more than what the values span; from 0 where that is not far.
    fn around(values: impl Iterator<Item = f64> + Clone) -> Self {
        let low = values.clone().fold(f64::INFINITY, f64::min);
        let high = values.fold(f64::NEG_INFINITY, f64::max);
        if !(low.is_finite() && high.is_finite()) {
            return Self { low: 0.0, high: 1.0 };
        }
        let span = if high > low { high - low } else { (high.abs() * 0.5).max(1.0) };
        let below = (low - 0.12 * span).max(0.0);
        let low = if below < 0.3 * high { 0.0 } else { below };
        Self { low, high: high + 0.14 * span }
    }

    fn share(self, value: f64) -> f64 {
        ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }
}

/// The plot.
struct Plot {
    left: f64,
    top: f64,
    width: f64,
    memory: Range,
    time: Range,
}

impl Plot {
    fn at(&self, (memory, time): Point) -> Point {
        (self.left + self.memory.share(memory) * self.width, self.top + (1.0 - self.time.share(time)) * HEIGHT)
    }

    fn right(&self) -> f64 {
        self.left + self.width
    }

    fn bottom(&self) -> f64 {
        self.top + HEIGHT
    }

    /// The border between what the front beats and what would beat it: steps from point to point, to the plot's edges.
    fn steps(&self, front: &[Point]) -> Vec<Point> {
        let mut corners: Vec<Point> = Vec::new();
        for point in front {
            let (x, y) = self.at(*point);
            let above = corners.last().map_or(self.top, |last| last.1);
            corners.extend([(x, above), (x, y)]);
        }
        corners.extend(corners.last().map(|last| (self.right(), last.1)));
        corners
    }
}

/// Draws the time of a step over the peak memory of each run, with the Pareto front. Their times must be in one unit.
pub fn pareto(title: &str, runs: &[Run<'_>]) -> Picture {
    let metrics: Vec<Metrics> = runs.iter().map(|run| Metrics::of(run.schedule, run.timeline)).collect();
    let bytes = in_bytes(&metrics);
    let step = |(run, m): (&Run<'_>, &Metrics)| (memory(m, bytes), m.makespan / run.timeline.steps().max(1) as f64);
    let points: Vec<Point> = runs.iter().zip(&metrics).map(step).collect();
    let on_front = front(&points);
    let scale =
        runs.first().map_or(TimeUnit::Abstract, |r| r.unit).scale(points.iter().map(|p| p.1).fold(0.0, f64::max));
    let mut canvas = Canvas::new();
    let what = if bytes { "step time over peak memory" } else { "step time over peak activations" };
    let head = legend::head(&mut canvas, title, what, &[]);
    let key = legend::draw(&mut canvas, MARGIN, head + 12.0, &entries());
    let plot = Plot {
        left: MARGIN + NUMBERS,
        top: key + 44.0,
        width: WIDTH - 2.0 * MARGIN - NUMBERS,
        memory: Range::around(points.iter().map(|p| p.0)),
        time: Range::around(points.iter().map(|p| p.1)),
    };
    let mut best: Vec<Point> = points.iter().zip(&on_front).filter(|(_, on)| **on).map(|(p, _)| *p).collect();
    best.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)));
    let steps = plot.steps(&best);
    draw_beaten(&mut canvas, &plot, &steps);
    draw_axes(&mut canvas, &plot, scale, bytes);
    if steps.len() > 1 {
        canvas.path(steps.clone(), 1.8, SOONER);
    }
    let named: Vec<_> = runs.iter().map(|r| font::fitted(r.name, labels::SIZE, true, LONGEST)).collect();
    let blocks = blocks(&plot, &points, &on_front, &named);
    let mut bottom = plot.bottom() + 56.0;
    let unplaced = draw_points(&mut canvas, &plot, &blocks, &steps);
    if !unplaced.is_empty() {
        let words = format!("Without room for a label: {}", unplaced.join(", "));
        for line in font::wrapped(&words, 12.0, WIDTH - 2.0 * MARGIN) {
            canvas.text((MARGIN, bottom), line, plain(12.0, QUIET, HPos::Left));
            bottom += 18.0;
        }
    }
    canvas.finish(WIDTH, bottom)
}

fn entries() -> Vec<Entry> {
    let line = Entry {
        colours: vec![SOONER],
        word: "Pareto front: none is faster with as little memory".to_owned(),
        line: true,
    };
    vec![line, Entry::area(DOMINATED, "beaten: another is faster, smaller, or both")]
}

/// The part of the plot in which a schedule would be beaten.
fn draw_beaten(canvas: &mut Canvas, plot: &Plot, steps: &[Point]) {
    if steps.len() > 1 {
        let mut corners = steps.to_vec();
        corners.push((plot.right(), plot.top));
        canvas.polygon(corners, DOMINATED);
    }
}

fn draw_axes(canvas: &mut Canvas, plot: &Plot, scale: TimeScale, bytes: bool) {
    let (name, unit) = if bytes { text::byte_unit(plot.memory.high) } else { ("microbatches", 1.0) };
    for tick in ticks_between(plot.memory.low / unit, plot.memory.high / unit, 12) {
        let (x, y) = (plot.at((tick * unit, plot.time.low)).0, plot.bottom());
        canvas.path(vec![(x, plot.top), (x, y)], 0.8, GRID);
        canvas.path(vec![(x, y), (x, y + 4.0)], 1.0, AXIS);
        canvas.text((x, y + 17.0), text::number(tick, 6), plain(11.0, INK, HPos::Center));
    }
    for tick in ticks_between(plot.time.low / scale.length, plot.time.high / scale.length, 9) {
        let y = plot.at((plot.memory.low, tick * scale.length)).1;
        canvas.path(vec![(plot.left, y), (plot.right(), y)], 0.8, GRID);
        canvas.text_middle((plot.left - 8.0, y), text::number(tick, 6), plain(11.0, INK, HPos::Right));
    }
    canvas.path(vec![(plot.left, plot.top), (plot.left, plot.bottom()), (plot.right(), plot.bottom())], 1.0, AXIS);
    let what = if bytes { "peak memory" } else { "peak activations" };
    let caption = |words: String| (words, plain(12.0, QUIET, HPos::Left));
    let (words, set) = caption(format!("step time [{}]", scale.name));
    canvas.text((MARGIN, plot.top - 16.0), words, set);
    let (words, set) = caption(format!("{what} of the rank that holds most [{name}]"));
    let middle = f64::midpoint(plot.left, plot.right());
    canvas.text((middle, plot.bottom() + 38.0), words, super::canvas::Type { anchor: HPos::Center, ..set });
}

/// Points in one place share a block of labels; those on the front come first and so find the best places.
fn blocks(plot: &Plot, points: &[Point], on_front: &[bool], names: &[String]) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for ((point, on), name) in points.iter().zip(on_front).zip(names) {
        let (x, y) = plot.at(*point);
        match blocks.iter_mut().find(|b| b.on_front == *on && (b.point.0 - x).hypot(b.point.1 - y) < 1.0) {
            Some(block) => block.names.push(name.clone()),
            None => blocks.push(Block { point: (x, y), names: vec![name.clone()], on_front: *on }),
        }
    }
    blocks.sort_by_key(|block| !block.on_front);
    blocks
}

/// Draws points and labels; returns the names that found no place.
fn draw_points(canvas: &mut Canvas, plot: &Plot, blocks: &[Block], steps: &[Point]) -> Vec<String> {
    let page = (plot.left + 3.0, plot.top + 3.0, plot.right() - 3.0, plot.bottom() - 3.0);
    let mut labels = Labels::new(page, blocks.iter().map(|b| b.point).collect(), DOT, steps.to_vec());
    let places: Vec<_> = blocks.iter().map(|block| labels.place(block)).collect();
    for place in places.iter().flatten() {
        if let Some(leader) = &place.leader {
            canvas.path(leader.clone(), 0.9, AXIS);
        }
    }
    for block in blocks {
        canvas.dot(block.point, DOT + 1.6, WHITE);
        canvas.dot(block.point, DOT, if block.on_front { SOONER } else { AXIS });
    }
    let mut unplaced = Vec::new();
    for (block, place) in blocks.iter().zip(places) {
        match place {
            Some(place) => place.draw(canvas, block),
            None => unplaced.extend(block.names.iter().cloned()),
        }
    }
    unplaced
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_front_is_what_no_other_beats() {
        // Fast and large, slow and small, between both, beaten by that in one or both, and the same point twice.
        let points = [(8.0, 30.0), (1.0, 90.0), (4.0, 40.0), (4.0, 41.0), (5.0, 40.0), (6.0, 60.0), (8.0, 30.0)];
        assert_eq!(front(&points), [true, true, true, false, false, false, true]);
        assert_eq!(front(&[(1.0, 33.0), (2.0, 33.0 - 1e-12)]), [true, false], "rounding is no gain");
        assert_eq!(front(&[]), [false; 0]);
    }

    #[test]
    fn ranges_hold_all_values_and_start_at_zero_where_it_is_near() {
        let range = Range::around([30.0, 33.0].into_iter());
        assert!(range.low > 25.0 && range.low < 30.0 && range.high > 33.0);
        assert_eq!(Range::around([2.0, 8.0].into_iter()).low, 0.0);
        let one = Range::around(std::iter::once(0.0));
        assert!(one.high > one.low);
    }
}
