//! The line that says what each colour means, and the head of a picture.

use super::axis::plain;
use super::canvas::{Canvas, Type};
use super::colour::{INK, QUIET};
use super::font;
use super::gantt::{MARGIN, WIDTH};
use plotters::style::RGBColor;
use plotters::style::text_anchor::HPos;

/// One entry: its colours, side by side, and its word.
pub(super) struct Entry {
    pub(super) colours: Vec<RGBColor>,
    pub(super) word: String,
    /// Whether it is a line in the picture, not an area.
    pub(super) line: bool,
}

impl Entry {
    /// An area of one colour.
    pub(super) fn area(colour: RGBColor, word: impl Into<String>) -> Self {
        Self { colours: vec![colour], word: word.into(), line: false }
    }
}

const SIZE: f64 = 12.0;

/// Draws the entries in as many lines as they need, the first at the height `middle` [px]; returns the last line's.
pub(super) fn draw(canvas: &mut Canvas, left: f64, middle: f64, entries: &[Entry]) -> f64 {
    let (mut x, mut middle) = (left, middle);
    for entry in entries {
        let shades = entry.colours.len() as f64;
        let swatch = if shades > 1.0 { (46.0 / shades).clamp(3.0, 12.0) } else { 16.0 };
        let width = swatch * shades + 6.0 + font::width(&entry.word, SIZE, false);
        if x > left && x + width > WIDTH - MARGIN {
            (x, middle) = (left, middle + 22.0);
        }
        let next = x + width + 20.0;
        for colour in &entry.colours {
            if entry.line {
                canvas.path(vec![(x, middle), (x + swatch, middle)], 2.0, *colour);
            } else {
                canvas.rect((x, middle - 6.0), (x + swatch, middle + 6.0), *colour);
            }
            x += swatch;
        }
        canvas.text_middle((x + 6.0, middle), entry.word.as_str(), plain(SIZE, INK, HPos::Left));
        x = next;
    }
    middle
}

/// Title and lines under it; long lines are broken. Returns the height [px] where they end.
pub(super) fn head(canvas: &mut Canvas, title: &str, beside: &str, lines: &[String]) -> f64 {
    let (left, room, mut y) = (MARGIN, WIDTH - 2.0 * MARGIN, 38.0);
    let title = font::fitted(title, TITLE, true, room);
    canvas.text((left, y), title.as_str(), Type { size: TITLE, bold: true, colour: INK, anchor: HPos::Left });
    let mut x = left + font::width(&title, TITLE, true) + 14.0;
    if x + font::width(beside, BESIDE, false) > left + room {
        (x, y) = (left, y + 22.0);
    }
    if !beside.is_empty() {
        canvas.text((x, y), beside, plain(BESIDE, QUIET, HPos::Left));
    }
    for line in lines.iter().flat_map(|line| font::wrapped(line, LINE, room)) {
        y += 21.0;
        canvas.text((left, y), line, plain(LINE, INK, HPos::Left));
    }
    y + 10.0
}

/// Font sizes of the title, of what stands beside it, and of the lines below [px].
const TITLE: f64 = 21.0;
const BESIDE: f64 = 14.0;
const LINE: f64 = 13.0;
