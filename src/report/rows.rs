//! The rows of a run: what every rank does, over time.
//!
//! One law: the space is bounded whatever the schedule. Boxes too thin to see become stripes in the right proportion.

mod bars;
mod messages;
mod pieces;

use super::axis::{TimeAxis, plain};
use super::canvas::Canvas;
use super::colour::{self, AXIS, IDLE, QUIET};
use super::font;
use super::legend::Entry;
use super::run::{Facts, Run};
use pipewright_ir::action::Op;
use pipewright_ir::breakdown::Part;
use pipewright_ir::ids::Rank;
use pipewright_ir::mesh::Axis;
use pipewright_ir::task::Lane;
use plotters::style::text_anchor::HPos;

pub(super) use pieces::{Fill, Piece};

/// Where the rows of a run stand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub(super) axis: TimeAxis,
    /// Upper end of the first row [px].
    pub(super) top: f64,
    /// From one row to the next [px].
    pub(super) pitch: f64,
    /// Width of the stripes that stand for boxes too thin to see [px].
    pub(super) stripe: f64,
}

/// The upper and lower ends of a band [px].
type Band = (f64, f64);

impl Frame {
    /// The band of a rank's compute lane, and of its messages where they take time.
    fn bands(&self, rank: usize, messages: bool) -> (Band, Band) {
        let gap = (self.pitch * 0.14).clamp(0.6, 5.0);
        let (top, bottom) =
            (self.top + rank as f64 * self.pitch + gap / 2.0, self.top + (rank + 1) as f64 * self.pitch);
        let bottom = bottom - gap / 2.0;
        let strip = if messages && self.pitch >= STRIP_ROOM { ((bottom - top) * 0.26).clamp(4.0, 8.0) } else { 0.0 };
        ((top, bottom - strip), (bottom - strip, bottom))
    }

    /// Lower end of the last row [px].
    pub(super) fn bottom(&self, ranks: usize) -> f64 {
        self.top + ranks as f64 * self.pitch
    }
}

/// Width of stripes so that `rows` rows of `width` pixels stay within a few megabytes of SVG [px].
pub(super) fn stripe(rows: usize, width: f64) -> f64 {
    (rows as f64 * width / MOST_STRIPES).max(1.0)
}

/// Most stripes of a picture; each takes about 40 bytes.
const MOST_STRIPES: f64 = 60_000.0;

/// Draws all rows of a run, with the names of its ranks on the left.
pub(super) fn draw(canvas: &mut Canvas, run: &Run<'_>, facts: &Facts, frame: &Frame) {
    let ranks = run.schedule.ranks();
    let rows: Vec<_> = (0..ranks).map(|r| pieces::of_rank(run, facts.zero, Rank::at(r))).collect();
    let with_messages = messages_take_time(run);
    let end = frame.axis.x(facts.metrics.makespan);
    for rank in 0..ranks {
        let ((top, _), (_, bottom)) = frame.bands(rank, with_messages);
        canvas.rect((frame.axis.left, top), (end, bottom), IDLE);
    }
    frame.axis.grid(canvas, frame.top, frame.bottom(ranks));
    draw_steps(canvas, run, facts, frame);
    if !with_messages {
        messages::draw_arrows(canvas, run, facts.zero, frame);
    }
    let numbers = Numbers::of(&rows, frame, with_messages);
    for (rank, row) in rows.iter().enumerate() {
        let (compute, strip) = frame.bands(rank, with_messages);
        bars::draw(canvas, row, frame, compute, &numbers);
        if strip.1 > strip.0 {
            messages::draw_strip(canvas, run, facts.zero, Rank::at(rank), frame, strip);
        }
    }
    draw_names(canvas, ranks, frame);
}

fn draw_names(canvas: &mut Canvas, ranks: usize, frame: &Frame) {
    let size = (frame.pitch * 0.9).clamp(7.0, 12.0);
    let every = ((size / frame.pitch).ceil() as usize).max(1).next_power_of_two();
    for rank in (0..ranks).step_by(every) {
        let middle = frame.top + (rank as f64 + 0.5) * frame.pitch;
        let set = plain(size, colour::INK, HPos::Right);
        canvas.text_middle((frame.axis.left - 8.0, middle), format!("rank {rank}"), set);
    }
}

/// Where each step begins, when there are several.
fn draw_steps(canvas: &mut Canvas, run: &Run<'_>, facts: &Facts, frame: &Frame) {
    let steps = run.timeline.steps();
    if !(2..=40).contains(&steps) {
        return;
    }
    let mut free = f64::NEG_INFINITY;
    for step in 0..steps {
        let spans = run.timeline.spans.iter().skip(step * run.timeline.tasks).take(run.timeline.tasks);
        let start = spans.map(|s| s.start).fold(f64::INFINITY, f64::min) - facts.zero;
        let x = frame.axis.x(start);
        canvas.path(vec![(x, frame.top - 4.0), (x, frame.bottom(run.schedule.ranks()))], 1.0, AXIS);
        let word = format!("step {step}");
        if x + 3.0 >= free && frame.pitch >= 8.0 {
            canvas.text((x + 3.0, frame.top - 2.0), word.as_str(), plain(10.0, QUIET, HPos::Left));
            free = x + 3.0 + font::width(&word, 10.0, false) + 6.0;
        }
    }
}

/// Which boxes carry their microbatch, and how large it is written.
struct Numbers {
    ops: Vec<Op>,
    /// Font size [px].
    size: f64,
}

impl Numbers {
    /// An operation is numbered throughout or not at all: only where the longest number fits into its usual box. All
    /// numbers have one size.
    fn of(rows: &[Vec<Piece>], frame: &Frame, with_messages: bool) -> Self {
        let ((top, bottom), _) = frame.bands(0, with_messages);
        let longest = rows.iter().flatten().filter_map(|piece| piece.label).max().unwrap_or(0);
        let wide = font::width(&longest.to_string(), 1.0, false);
        let mut numbers = Self { ops: Vec::new(), size: ((bottom - top) * 0.72).min(12.0) };
        for op in [Op::Forward, Op::FullBackward, Op::BackwardInput, Op::BackwardWeight] {
            let boxes = rows.iter().flatten().filter(|piece| piece.fill.op == op);
            let mut room: Vec<_> = boxes.map(|p| frame.axis.x(p.end) - frame.axis.x(p.start) - LABEL_ROOM).collect();
            room.sort_by(f64::total_cmp);
            // The narrowest may be outliers of a measurement.
            let size = room.get(room.len() / 20).map_or(0.0, |room| (room / wide * 2.0).floor() / 2.0);
            if size >= SMALLEST_LABEL {
                numbers.ops.push(op);
                numbers.size = numbers.size.min(size);
            }
        }
        if numbers.size < SMALLEST_LABEL {
            numbers.ops.clear();
        }
        numbers
    }
}

/// Least size of a microbatch number [px].
const SMALLEST_LABEL: f64 = 7.5;

/// What stays free beside a microbatch number [px].
const LABEL_ROOM: f64 = 2.5;

/// Whether any message takes long enough to be seen.
fn messages_take_time(run: &Run<'_>) -> bool {
    let steps = AXES.iter().any(|(axis, _)| on_axis(run, *axis));
    steps
        || [
            Op::SendForward,
            Op::RecvForward,
            Op::ReduceGrad,
            Op::ReduceData,
            Op::ReduceTensor,
            Op::ReduceTied,
            Op::GatherParam,
        ]
        .into_iter()
        .any(|op| occurs(run, op))
}

/// Least height of a row with a strip for its messages [px].
const STRIP_ROOM: f64 = 14.0;

/// The legend of one or more runs with rows of `pitch` pixels: what can be seen in them.
pub(super) fn legend(runs: &[&Run<'_>], pitch: f64) -> Vec<Entry> {
    let strips = pitch >= STRIP_ROOM;
    let chunks = runs.iter().map(|run| shades(run)).max().unwrap_or(1);
    let words = [
        (Op::Forward, "F forward"),
        (Op::FullBackward, "B backward"),
        (Op::BackwardInput, "I input gradient"),
        (Op::BackwardWeight, "W weight gradient"),
        (Op::OptimizerStep, "optimizer"),
        (Op::SendForward, "send"),
        (Op::RecvForward, "receive"),
        (Op::ReduceGrad, "gradient reduction"),
        (Op::ReduceData, "gradients over replicas"),
        (Op::ReduceTensor, "gradients over tensor-parallel ranks"),
        (Op::ReduceTied, "tied embedding reduction"),
        (Op::GatherParam, "weights gathered"),
    ];
    let mut entries = Vec::new();
    let visible = |op: Op| (strips || Lane::of(op) == Lane::Compute) && runs.iter().any(|run| occurs(run, op));
    for (op, word) in words.into_iter().filter(|(op, _)| visible(*op)) {
        let shades = if op.is_compute() { chunks } else { 1 };
        let colours = (0..shades).map(|c| colour::shade(colour::of_op(op), c, shades)).collect();
        add(&mut entries, Entry { colours, word: word.to_owned(), line: false });
    }
    for (axis, word) in AXES.into_iter().filter(|(axis, _)| strips && runs.iter().any(|run| on_axis(run, *axis))) {
        add(&mut entries, Entry::area(colour::of_part(Part::Exposed(axis)), word));
    }
    entries.push(Entry::area(IDLE, "idle"));
    let mut words = Vec::new();
    if let Some(last) = runs.iter().filter(|run| pipes(run) == 1).map(|run| shades(run) - 1).max().filter(|n| *n > 0) {
        words.push(format!("dark to light: chunk 0 to {last}"));
    }
    if runs.iter().any(|run| pipes(run) > 1) {
        words.push("light: upward pipe".to_owned());
    }
    entries.extend(words.into_iter().map(|word| Entry { colours: Vec::new(), word, line: false }));
    entries
}

/// Adds an entry; what has the colour of another shares its patch.
fn add(entries: &mut Vec<Entry>, entry: Entry) {
    match entries.iter_mut().find(|known| known.colours == entry.colours) {
        Some(known) => known.word = format!("{}, {}", known.word, entry.word),
        None => entries.push(entry),
    }
}

/// Axes whose messages are steps of a stage's work.
const AXES: [(Axis, &str); 4] = [
    (Axis::Tensor, "tensor-parallel message"),
    (Axis::Context, "context-parallel message"),
    (Axis::Expert, "expert-parallel message"),
    (Axis::Data, "weights and gradients of ZeRO"),
];

/// Whether a run shows messages of an axis.
fn on_axis(run: &Run<'_>, axis: Axis) -> bool {
    run.schedule.tasks().any(|(_, task)| messages::axis_of(task) == Some(axis))
}

/// Pipelines that go through the ranks.
fn pipes(run: &Run<'_>) -> usize {
    run.schedule.placement().pipes().len()
}

/// Shades of a colour: one for each stage that a rank holds.
fn shades(run: &Run<'_>) -> usize {
    (run.chunks as usize).max(1) * pipes(run)
}

/// Whether an operation can be seen in a run; backward messages count as forward ones.
fn occurs(run: &Run<'_>, op: Op) -> bool {
    let same = |other: Op| match op {
        Op::SendForward => other.is_send(),
        Op::RecvForward => other.is_receive(),
        op => other == op,
    };
    // Messages are small print; those under a pixel would only be dust.
    let least = if Lane::of(op) == Lane::Compute { 0.0 } else { run.timeline.makespan() / 1000.0 };
    let steps = run.timeline.steps();
    run.schedule
        .tasks()
        .filter(|(_, task)| same(task.action.op) && messages::axis_of(task).is_none())
        .any(|(id, _)| (0..steps).any(|step| run.timeline.span(step, id).duration() > least))
}
