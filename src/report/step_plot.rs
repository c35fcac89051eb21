//! Where the time of a step goes: a bar a schedule, its parts side by side.

use super::axis::{TimeAxis, plain};
use super::canvas::{Canvas, Type};
use super::colour::{self, INK, QUIET, SOONER};
use super::gantt::{MARGIN, WIDTH};
use super::legend::{self, Entry};
use super::picture::Picture;
use super::run::TimeUnit;
use super::step::{Answer, PartRow, StepReport, words};
use super::{font, text};
use pipewright_ir::breakdown::Part;
use plotters::style::text_anchor::HPos;

/// Space for the names of schedules [px].
const NAMES: f64 = 170.0;
/// Space for the numbers behind a bar [px].
const ENDS: f64 = 150.0;
/// Height of a bar, and from one to the next [px].
const BAR: f64 = 44.0;
const PITCH: f64 = 66.0;
/// Least share of a step that the legend names.
const SMALLEST: f64 = 1e-3;

/// Draws a bar for each schedule: the mean over its ranks.
pub fn draw(answer: &Answer) -> Picture {
    let longest = answer.runs.iter().map(|run| run.makespan).fold(0.0, f64::max);
    let unit = if answer.time_unit == "s" { TimeUnit::Seconds } else { TimeUnit::Abstract };
    let scale = unit.scale(longest);
    let axis = TimeAxis { left: MARGIN + NAMES, width: WIDTH - 2.0 * MARGIN - NAMES - ENDS, longest, scale };
    let mut canvas = Canvas::new();
    let head = legend::head(&mut canvas, &answer.scenario, "where the time of a step goes, mean over the ranks", &[]);
    let top = 26.0 + legend::draw(&mut canvas, MARGIN, head + 14.0, &entries(answer));
    let bottom = top + PITCH * answer.runs.len() as f64;
    axis.grid(&mut canvas, top, bottom);
    for (i, run) in answer.runs.iter().enumerate() {
        bar(&mut canvas, run, &axis, top + PITCH * i as f64 + (PITCH - BAR) / 2.0);
    }
    axis.draw(&mut canvas, bottom);
    axis.caption(&mut canvas, bottom + 36.0);
    canvas.finish(WIDTH, bottom + 52.0)
}

/// The parts that any of the schedules has.
fn entries(answer: &Answer) -> Vec<Entry> {
    let shown = |part: &&Part| {
        let row = |run: &StepReport| run.breakdown.iter().any(|row| row.part == part.name() && row.share > SMALLEST);
        answer.runs.iter().any(row)
    };
    Part::ALL.iter().filter(shown).map(|part| Entry::area(colour::of_part(*part), words(part.name()))).collect()
}

fn bar(canvas: &mut Canvas, run: &StepReport, axis: &TimeAxis, top: f64) {
    let middle = top + BAR / 2.0;
    let name = font::fitted(&run.name, 14.0, true, NAMES - 12.0);
    canvas.text_middle((MARGIN, middle), name, Type { size: 14.0, bold: true, colour: INK, anchor: HPos::Left });
    let mut from = 0.0;
    for (part, row) in Part::ALL.iter().zip(&run.breakdown) {
        let (left, right) = (axis.x(from), axis.x(from + row.time.max(0.0)));
        from += row.time.max(0.0);
        if right - left < 0.05 {
            continue;
        }
        let fill = colour::of_part(*part);
        canvas.rect((left, top), (right, top + BAR), fill);
        share(canvas, row, (left, right), middle, fill);
    }
    let x = axis.x(run.makespan) + 8.0;
    let set = Type { size: 14.0, bold: true, colour: INK, anchor: HPos::Left };
    let Some(speed) = &run.speed else {
        canvas.text_middle((x, middle), axis.scale.show(run.makespan), set);
        return;
    };
    canvas.text((x, middle - 4.0), axis.scale.show(run.makespan), set);
    let words = format!("MFU {}", text::percent(speed.mfu));
    canvas.text((x, middle + 13.0), words, Type { colour: SOONER, size: 12.0, ..set });
    let rate = format!("{} tokens/s", text::number(speed.tokens_per_second, 4));
    canvas.text((x, middle + 28.0), rate, plain(11.0, QUIET, HPos::Left));
}

/// The share of a part, where it has room.
fn share(canvas: &mut Canvas, row: &PartRow, (left, right): (f64, f64), middle: f64, fill: plotters::style::RGBColor) {
    let label = text::percent(row.share);
    if font::width(&label, 11.0, false) + 6.0 <= right - left {
        let at = (f64::midpoint(left, right), middle);
        canvas.text_middle(at, label, plain(11.0, colour::ink_on(fill), HPos::Center));
    }
}
