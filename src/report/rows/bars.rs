//! Boxes of one row, as few shapes as possible: all boxes of one colour are one polygon, a comb that runs back along
//! its lower edge.

use super::{Band, Fill, Frame, LABEL_ROOM, Numbers, Piece};
use crate::report::axis::plain;
use crate::report::canvas::Canvas;
use crate::report::{colour, font};
use plotters::style::text_anchor::HPos;
use std::collections::BTreeMap;

/// Left and right ends of boxes [px], by how they are filled.
type Bars = BTreeMap<Fill, Vec<(f64, f64)>>;

/// Draws the pieces of a row into a band; `numbers` says which boxes are numbered.
pub(super) fn draw(canvas: &mut Canvas, row: &[Piece], frame: &Frame, band: Band, numbers: &Numbers) {
    let busy: f64 = row.iter().map(|p| frame.axis.x(p.end) - frame.axis.x(p.start)).sum();
    let dense = busy / (row.len().max(1) as f64) < frame.stripe * THIN;
    let bars = if dense { stripes(row, frame) } else { boxes(row, frame) };
    for (fill, bars) in &bars {
        let mut comb = Vec::with_capacity(bars.len() * 4);
        for (left, right) in bars {
            comb.extend([(*left, band.1), (*left, band.0), (*right, band.0), (*right, band.1)]);
        }
        canvas.polygon(comb, fill.colour());
    }
    if !dense {
        draw_numbers(canvas, row, frame, band, numbers);
    }
}

/// Mean width of boxes, in stripes, under which a row becomes stripes.
const THIN: f64 = 1.5;

/// Every piece as a box. Neighbours of one kind merge where no gap between them could be seen.
fn boxes(row: &[Piece], frame: &Frame) -> Bars {
    let mut bars = Bars::new();
    for piece in row {
        let (left, right) = (frame.axis.x(piece.start), frame.axis.x(piece.end));
        let width = right - left;
        let gap = if width >= 6.0 { 1.0 } else { (width - 3.0).clamp(0.0, 1.0) * 0.5 };
        let bars = bars.entry(piece.fill).or_default();
        match bars.last_mut() {
            Some(last) if width < 3.0 && left - last.1 < 0.2 => last.1 = right,
            _ => bars.push((left, right - gap)),
        }
    }
    bars
}

/// A row of boxes too thin to see, as stripes of one width. Each stripe shows the kind that was owed most so far, so
/// that over a few stripes every kind, idle time too, has its share of the row.
fn stripes(row: &[Piece], frame: &Frame) -> Bars {
    let mut bars = Bars::new();
    // Idle is the entry without a fill.
    let mut owed: BTreeMap<Option<Fill>, f64> = BTreeMap::new();
    let count = (frame.axis.width / frame.stripe).ceil() as usize;
    let mut next = 0;
    for i in 0..count {
        let (left, right) =
            (frame.axis.left + i as f64 * frame.stripe, frame.axis.left + (i + 1) as f64 * frame.stripe);
        let shares = shares(row, frame, (left, right), &mut next);
        let Some(fill) = most_owed(&shares, &mut owed) else { continue };
        let bars = bars.entry(fill).or_default();
        match bars.last_mut() {
            Some(last) if left - last.1 < 0.01 => last.1 = right,
            _ => bars.push((left, right)),
        }
    }
    bars
}

/// A share of a stripe that is too small to be seen, or a rounding error.
const LEAST: f64 = 0.01;

/// The kind to show, by its shares of this stripe and what earlier stripes owe.
fn most_owed(shares: &BTreeMap<Option<Fill>, f64>, owed: &mut BTreeMap<Option<Fill>, f64>) -> Option<Fill> {
    // A stripe of one kind pays no old debts: that would put a speck of another kind into it.
    if let Some((fill, _)) = shares.iter().find(|(_, share)| **share > 1.0 - LEAST) {
        return *fill;
    }
    let mut pick: Option<(Option<Fill>, f64)> = None;
    for (fill, share) in shares {
        let credit = owed.entry(*fill).or_default();
        *credit += share;
        if *share > LEAST && pick.is_none_or(|(_, most)| *credit > most) {
            pick = Some((*fill, *credit));
        }
    }
    let fill = pick?.0;
    *owed.entry(fill).or_default() -= 1.0;
    fill
}

/// Which kinds fill the column, each with its share; `next` is the first piece that may reach into it.
fn shares(row: &[Piece], frame: &Frame, (left, right): Band, next: &mut usize) -> BTreeMap<Option<Fill>, f64> {
    let mut shares = BTreeMap::new();
    let mut idle = 1.0;
    while let Some(piece) = row.get(*next) {
        let (from, to) = (frame.axis.x(piece.start), frame.axis.x(piece.end));
        if from >= right {
            break;
        }
        let share = (to.min(right) - from.max(left)).max(0.0) / (right - left);
        *shares.entry(Some(piece.fill)).or_insert(0.0) += share;
        idle -= share;
        if to > right {
            break;
        }
        *next += 1;
    }
    shares.insert(None, f64::max(idle, 0.0));
    shares
}

fn draw_numbers(canvas: &mut Canvas, row: &[Piece], frame: &Frame, band: Band, numbers: &Numbers) {
    for piece in row.iter().filter(|piece| numbers.ops.contains(&piece.fill.op)) {
        let Some(label) = piece.label else { continue };
        let (left, right) = (frame.axis.x(piece.start), frame.axis.x(piece.end));
        let text = label.to_string();
        if font::width(&text, numbers.size, false) + LABEL_ROOM > right - left {
            continue;
        }
        let set = plain(numbers.size, colour::ink_on(piece.fill.colour()), HPos::Center);
        canvas.text_middle(((left + right - 1.0) / 2.0, f64::midpoint(band.0, band.1)), text, set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::axis::TimeAxis;
    use crate::report::run::TimeUnit;
    use pipewright_ir::action::Op;

    #[test]
    fn stripes_keep_the_share_of_every_kind() {
        let scale = TimeUnit::Abstract.scale(1.0);
        let axis = TimeAxis { left: 0.0, width: 900.0, longest: 4000.0, scale };
        let frame = Frame { axis, top: 0.0, pitch: 10.0, stripe: 1.0 };
        let [forward, backward] = [Op::Forward, Op::FullBackward].map(|op| Fill { op, chunk: 0, chunks: 1 });
        // F takes 1, B takes 2 and every fourth unit is idle.
        let piece = |start: f64, length: f64, fill| Piece { start, end: start + length, fill, label: None };
        let row: Vec<_> = (0..1000)
            .map(|i| f64::from(i) * 4.0)
            .flat_map(|t| [piece(t, 1.0, forward), piece(t + 1.0, 2.0, backward)])
            .collect();
        let bars = stripes(&row, &frame);
        let width = |fill| bars[&fill].iter().map(|(l, r)| r - l).sum::<f64>() / 900.0;
        assert!((width(forward) - 0.25).abs() < 0.01 && (width(backward) - 0.5).abs() < 0.01);
    }
}
