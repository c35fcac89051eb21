//! The memory of one rank, drawn.

use crate::report::axis::TimeAxis;
use crate::report::canvas::{Canvas, Point};
use crate::report::colour::{self, INK};
use crate::report::live::{Level, Live};
use pipewright_ir::task::MemoryClass;

/// Where a rank's memory is drawn.
pub(super) struct Panel {
    pub(super) axis: TimeAxis,
    /// Upper end [px].
    pub(super) top: f64,
    /// Lower end [px].
    pub(super) bottom: f64,
    /// Level at the upper end.
    pub(super) most: f64,
    /// When the stacked run ends.
    pub(super) end: f64,
}

impl Panel {
    /// Height of a level [px].
    pub(super) fn y(&self, level: f64) -> f64 {
        let share = if self.most > 0.0 { (level / self.most).clamp(0.0, 1.0) } else { 0.0 };
        self.bottom - share * (self.bottom - self.top)
    }

    /// Draws the classes from the bottom up, the peak, and the counted line.
    pub(super) fn draw(&self, canvas: &mut Canvas, live: &Live, counted: &[Point]) {
        let levels = self.thinned(&live.changes);
        for class in MemoryClass::ALL.into_iter().rev() {
            // Each class is drawn down to the ground and the next one over it: edges then meet without a seam.
            let height = |level: &Level| level.levels.iter().take(class.index() + 1).sum::<f64>();
            if levels.iter().any(|l| l.levels[class.index()] > 0.0) {
                canvas.polygon(self.steps(&levels, height), colour::of_class(class));
            }
        }
        if !counted.is_empty() {
            let line = self.thinned_line(counted);
            canvas.path(line.into_iter().map(|(t, level)| (self.axis.x(t), self.y(level))).collect(), 1.5, INK);
        }
        if live.peak.total() > 0.0 {
            let peak = (self.axis.x(live.peak.time), self.y(live.peak.total()));
            canvas.dot(peak, 4.0, colour::WHITE);
            canvas.dot(peak, 2.8, colour::LATER);
        }
    }

    /// The area under a step function, until the run ends.
    fn steps(&self, levels: &[Level], height: impl Fn(&Level) -> f64) -> Vec<Point> {
        let mut corners: Vec<Point> = Vec::with_capacity(levels.len() * 2 + 2);
        for level in levels {
            let (x, y) = (self.axis.x(level.time), self.y(height(level)));
            let before = corners.last().map_or(self.bottom, |last| last.1);
            if corners.is_empty() || (before - y).abs() > 0.04 {
                corners.extend([(x, before), (x, y)]);
            }
        }
        let last = corners.last().map_or(self.bottom, |last| last.1);
        let right = self.axis.x(self.end);
        corners.extend([(right, last), (right, self.bottom)]);
        corners
    }

    /// At most two changes a pixel: its highest and its last.
    fn thinned(&self, changes: &[Level]) -> Vec<Level> {
        let kept = self.keep(changes, |level| (level.time, level.total()));
        kept.into_iter().map(|i| changes[i]).collect()
    }

    fn thinned_line(&self, corners: &[Point]) -> Vec<Point> {
        self.keep(corners, |corner| *corner).into_iter().map(|i| corners[i]).collect()
    }

    /// Positions to keep so that no pixel column has more than its highest and its last.
    fn keep<T>(&self, items: &[T], of: impl Fn(&T) -> (f64, f64)) -> Vec<usize> {
        if items.len() <= self.axis.width as usize * 2 {
            return (0..items.len()).collect();
        }
        let mut kept: Vec<usize> = Vec::new();
        let mut start = 0;
        while start < items.len() {
            let column = self.axis.x(of(&items[start]).0).floor();
            let mut end = start;
            let mut highest = start;
            while end < items.len() && self.axis.x(of(&items[end]).0).floor() <= column {
                if of(&items[end]).1 > of(&items[highest]).1 {
                    highest = end;
                }
                end += 1;
            }
            kept.push(highest);
            if end - 1 > highest {
                kept.push(end - 1);
            }
            start = end.max(start + 1);
        }
        kept
    }
}
