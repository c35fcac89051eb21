//! Where labels stand beside points: none over another, nor over a point, nor across the line of another.

use crate::report::axis::plain;
use crate::report::canvas::{Canvas, Point, Type};
use crate::report::colour::{INK, QUIET};
use crate::report::font;
use plotters::style::text_anchor::HPos;

/// Font size [px].
pub(super) const SIZE: f64 = 12.0;
/// Height of a line [px].
const LINE: f64 = 16.0;
/// Free space around a label [px].
const AIR: f64 = 4.0;

/// The labels of one point.
pub(super) struct Block {
    pub(super) point: Point,
    pub(super) names: Vec<String>,
    pub(super) on_front: bool,
}

/// Left, top, right and bottom [px].
type Area = (f64, f64, f64, f64);

/// Where a block stands.
pub(super) struct Place {
    area: Area,
    /// A line from the point, where the labels stand apart from it.
    pub(super) leader: Option<Vec<Point>>,
}

impl Place {
    /// Draws the labels.
    pub(super) fn draw(&self, canvas: &mut Canvas, block: &Block) {
        let colour = if block.on_front { INK } else { QUIET };
        let set = Type { bold: block.on_front, ..plain(SIZE, colour, HPos::Left) };
        for (i, name) in block.names.iter().enumerate() {
            canvas.text_middle((self.area.0, self.area.1 + (i as f64 + 0.5) * LINE), name.as_str(), set);
        }
    }
}

/// Where the lines from points to their labels may pass.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Leaders {
    /// Past other points and labels.
    Clear,
    /// Also over other points.
    OverPoints,
    /// Also behind labels.
    Anywhere,
}

/// What stands on the page so far.
pub(super) struct Labels {
    page: Area,
    points: Vec<Point>,
    radius: f64,
    /// The line of the front, which labels avoid where they can.
    line: Vec<Point>,
    taken: Vec<Area>,
    leaders: Vec<Vec<Point>>,
}

/// Directions from the point, best first, in eighths of a turn from the right, clockwise.
const DIRECTIONS: [f64; 8] = [0.0, 7.0, 1.0, 4.0, 5.0, 3.0, 6.0, 2.0];
/// Directions that are tried between two of these.
const BETWEEN: [f64; 6] = [0.0, 0.5, 0.25, 0.75, 0.125, 0.625];
/// Distances from the point [px].
const DISTANCES: [f64; 13] = [5.0, 9.0, 16.0, 26.0, 40.0, 58.0, 80.0, 108.0, 142.0, 184.0, 236.0, 300.0, 380.0];
/// From this distance on a line leads to the label [px].
const APART: f64 = 12.0;

impl Labels {
    pub(super) fn new(page: Area, points: Vec<Point>, radius: f64, line: Vec<Point>) -> Self {
        Self { page, points, radius, line, taken: Vec::new(), leaders: Vec::new() }
    }

    /// The nearest free place for a block, off the line of the front where one is about as near; it is then taken.
    pub(super) fn place(&mut self, block: &Block) -> Option<Place> {
        // Where points lie over one another, the line to a label must pass over some of them, or behind a label.
        let place = [Leaders::Clear, Leaders::OverPoints, Leaders::Anywhere]
            .into_iter()
            .find_map(|leaders| self.nearest(block, leaders))?;
        self.taken.push(place.area);
        self.leaders.extend(place.leader.clone());
        Some(place)
    }

    fn nearest(&self, block: &Block, leaders: Leaders) -> Option<Place> {
        let width = block.names.iter().map(|n| font::width(n, SIZE, block.on_front)).fold(0.0, f64::max);
        let size = (width, LINE * block.names.len() as f64);
        let mut best: Option<(f64, Place)> = None;
        for (far, distance) in DISTANCES.into_iter().enumerate() {
            let directions = BETWEEN.iter().flat_map(|more| DIRECTIONS.map(|direction| direction + more));
            for (turn, direction) in directions.enumerate() {
                let place = self.candidate(block.point, size, distance, direction);
                if !self.is_free(block.point, &place, leaders) {
                    continue;
                }
                let on_line = self.crosses(&self.line, grown(place.area, 1.0));
                let cost = far as f64 * 4.0 + turn.min(16) as f64 * 0.25 + if on_line { 30.0 } else { 0.0 };
                if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                    best = Some((cost, place));
                }
            }
        }
        best.map(|(_, place)| place)
    }

    fn candidate(&self, (x, y): Point, (width, height): (f64, f64), distance: f64, direction: f64) -> Place {
        let (sin, cos) = (direction * std::f64::consts::FRAC_PI_4).sin_cos();
        let reach = self.radius + distance;
        // The middle of the side or the corner that faces the point lies on the ray.
        let towards = |part: f64| {
            if part > 0.3 {
                0.0
            } else if part < -0.3 {
                1.0
            } else {
                0.5
            }
        };
        let (left, top) = (x + cos * reach - towards(cos) * width, y + sin * reach - towards(sin) * height);
        let area = (left, top, left + width, top + height);
        let end = (x.clamp(area.0 - 2.0, area.2 + 2.0), y.clamp(area.1 + 3.0, area.3 - 3.0));
        let leader = (distance >= APART).then(|| vec![(x, y), end]);
        Place { area, leader }
    }

    fn is_free(&self, own: Point, place: &Place, leaders: Leaders) -> bool {
        let (left, top, right, bottom) = place.area;
        let inside = left >= self.page.0 && top >= self.page.1 && right <= self.page.2 && bottom <= self.page.3;
        let area = grown(place.area, AIR);
        let apart = |other: &Area| area.0 >= other.2 || area.2 <= other.0 || area.1 >= other.3 || area.3 <= other.1;
        let off = |point: &Point| {
            let (dx, dy) = (point.0 - point.0.clamp(area.0, area.2), point.1 - point.1.clamp(area.1, area.3));
            dx.hypot(dy) > self.radius
        };
        let leader = place.leader.as_deref().unwrap_or_default();
        // A leader passes no other point either.
        let clear = |point: &Point| {
            let near = (point.0 - self.radius, point.1 - self.radius, point.0 + self.radius, point.1 + self.radius);
            leaders >= Leaders::OverPoints || *point == own || !self.crosses(leader, near)
        };
        inside
            && self.taken.iter().all(apart)
            && self.points.iter().all(|point| off(point) && clear(point))
            && (leaders == Leaders::Anywhere
                || !(self.leaders.iter().any(|other| self.crosses(other, area))
                    || self.taken.iter().any(|other| self.crosses(leader, grown(*other, 1.0)))))
    }

    /// Whether a line of straight pieces passes through an area.
    fn crosses(&self, line: &[Point], area: Area) -> bool {
        line.windows(2).any(|ends| passes(ends[0], ends[1], area))
    }
}

fn grown((left, top, right, bottom): Area, by: f64) -> Area {
    (left - by, top - by, right + by, bottom + by)
}

/// Whether the line between two points meets an area (Liang and Barsky 1984).
fn passes(from: Point, to: Point, (left, top, right, bottom): Area) -> bool {
    let (mut first, mut last) = (0.0_f64, 1.0_f64);
    for (start, step, low, high) in [(from.0, to.0 - from.0, left, right), (from.1, to.1 - from.1, top, bottom)] {
        if step == 0.0 {
            if start < low || start > high {
                return false;
            }
            continue;
        }
        let (a, b) = ((low - start) / step, (high - start) / step);
        first = first.max(a.min(b));
        last = last.min(a.max(b));
    }
    first <= last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_meet_areas() {
        let area = (10.0, 10.0, 20.0, 20.0);
        assert!(passes((0.0, 0.0), (30.0, 30.0), area) && passes((15.0, 0.0), (15.0, 30.0), area));
        assert!(passes((12.0, 12.0), (13.0, 13.0), area), "inside");
        assert!(!passes((0.0, 15.0), (9.0, 15.0), area) && !passes((0.0, 25.0), (30.0, 22.0), area));
    }

    #[test]
    fn labels_of_crowded_points_stand_apart() {
        let points: Vec<Point> =
            (0..16).map(|i| (500.0 + f64::from(i % 4) * 12.0, 300.0 + f64::from(i / 4) * 12.0)).collect();
        let mut labels = Labels::new((0.0, 0.0, 1170.0, 520.0), points.clone(), 5.0, Vec::new());
        for point in points {
            let block = Block { point, names: vec!["interleaved-1f1b v=2".to_owned()], on_front: true };
            assert!(labels.place(&block).is_some());
        }
        for (i, a) in labels.taken.iter().enumerate() {
            for b in &labels.taken[i + 1..] {
                assert!(a.0 >= b.2 || a.2 <= b.0 || a.1 >= b.3 || a.3 <= b.1, "{a:?} over {b:?}");
            }
        }
    }
}
