//! Axes with round numbers.

use super::canvas::{Canvas, Point, Type};
use super::colour::{AXIS, GRID, INK, QUIET};
use super::run::TimeScale;
use super::text;
use plotters::style::RGBColor;
use plotters::style::text_anchor::HPos;

/// Round positions from 0 to `largest`, about `wanted` of them, at steps of 1, 2 or 5 times a power of ten.
pub(super) fn ticks(largest: f64, wanted: usize) -> Vec<f64> {
    ticks_between(0.0, largest, wanted)
}

/// Likewise from `low` to `high`.
pub(super) fn ticks_between(low: f64, high: f64, wanted: usize) -> Vec<f64> {
    let rough = (high - low) / wanted.max(1) as f64;
    // Also keeps the loops below from running out of powers of ten.
    if !(rough > 1e-300 && rough < 1e300) {
        return vec![low];
    }
    let mut power = 1.0;
    while power > rough {
        power /= 10.0;
    }
    while power * 10.0 <= rough {
        power *= 10.0;
    }
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|f| f * power).find(|s| *s >= rough * 0.999).unwrap_or(power);
    let first = (low / step * (1.0 - 1e-9)).ceil();
    let count = (high / step * (1.0 + 1e-9)).floor() - first;
    (0..=count.max(0.0) as usize).map(|i| (first + i as f64) * step).collect()
}

/// A text style; most labels need no more.
pub(super) fn plain(size: f64, colour: RGBColor, anchor: HPos) -> Type {
    Type { size, bold: false, colour, anchor }
}

/// A stretch of time across the sheet.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeAxis {
    /// Left end [px].
    pub(super) left: f64,
    /// Length [px].
    pub(super) width: f64,
    /// Time at the right end, counted from 0 at the left.
    pub(super) longest: f64,
    /// How times are written.
    pub(super) scale: TimeScale,
}

impl TimeAxis {
    /// Where a time lies [px].
    pub(super) fn x(&self, time: f64) -> f64 {
        let share = if self.longest > 0.0 { (time / self.longest).clamp(0.0, 1.0) } else { 0.0 };
        self.left + share * self.width
    }

    fn ticks(&self, wanted: usize) -> Vec<f64> {
        ticks(self.longest / self.scale.length, wanted)
    }

    fn wanted(&self) -> usize {
        (self.width / 90.0).clamp(2.0, 14.0) as usize
    }

    /// Vertical lines from `top` to `bottom` [px].
    pub(super) fn grid(&self, canvas: &mut Canvas, top: f64, bottom: f64) {
        for tick in self.ticks(self.wanted()) {
            let x = self.x(tick * self.scale.length);
            canvas.path(vec![(x, top), (x, bottom)], 0.8, GRID);
        }
    }

    /// The axis line with its numbers under the height `y` [px]; 20 px high.
    pub(super) fn draw(&self, canvas: &mut Canvas, y: f64) {
        canvas.path(vec![(self.left, y), (self.left + self.width, y)], 1.0, AXIS);
        for tick in self.ticks(self.wanted()) {
            let x = self.x(tick * self.scale.length);
            canvas.path(vec![(x, y), (x, y + 4.0)], 1.0, AXIS);
            canvas.text((x, y + 16.0), text::number(tick, 6), plain(11.0, INK, HPos::Center));
        }
    }

    /// What the axis shows, centred on the height `y` [px].
    pub(super) fn caption(&self, canvas: &mut Canvas, y: f64) {
        let caption = format!("time [{}]", self.scale.name);
        canvas.text((self.left + self.width / 2.0, y), caption, plain(12.0, QUIET, HPos::Center));
    }
}

/// A dashed line between two points of one height or one column.
pub(super) fn dashed(canvas: &mut Canvas, from: Point, to: Point, width: f64, colour: RGBColor) {
    let length = (to.0 - from.0).abs() + (to.1 - from.1).abs();
    let dashes = (length / DASH).ceil() as usize;
    let at = |share: f64| (from.0 + (to.0 - from.0) * share, from.1 + (to.1 - from.1) * share);
    for i in 0..dashes {
        let start = i as f64 * DASH / length;
        let end = (start + DASH * 0.6 / length).min(1.0);
        canvas.path(vec![at(start), at(end)], width, colour);
    }
}

/// Length of a dash with its gap [px].
const DASH: f64 = 6.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_reach_the_end() {
        assert_eq!(ticks(33.0, 10), [0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0]);
        assert_eq!(ticks(1.0, 5).len(), 6);
        assert_eq!(ticks(0.0, 5), [0.0]);
        assert_eq!(ticks(f64::NAN, 5), [0.0]);
        assert_eq!(ticks_between(27.3, 34.0, 4), [28.0, 30.0, 32.0, 34.0]);
    }
}
