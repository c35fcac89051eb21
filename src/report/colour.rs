//! The colours of every picture.
//!
//! One law: one meaning, one colour, in every picture; neighbours differ in lightness too, for eyes that tell few hues
//! apart.

use pipewright_ir::action::Op;
use pipewright_ir::breakdown::Part;
use pipewright_ir::explain::Cause;
use pipewright_ir::mesh::Axis;
use pipewright_ir::task::MemoryClass;
use plotters::style::RGBColor;

/// Paper.
pub(super) const WHITE: RGBColor = RGBColor(0xff, 0xff, 0xff);
/// Titles and labels.
pub(super) const INK: RGBColor = RGBColor(0x1f, 0x25, 0x2d);
/// Less important text.
pub(super) const QUIET: RGBColor = RGBColor(0x5c, 0x66, 0x73);
/// Grid lines.
pub(super) const GRID: RGBColor = RGBColor(0xd9, 0xde, 0xe4);
/// A rank's row where it does nothing.
pub(super) const IDLE: RGBColor = RGBColor(0xe9, 0xec, 0xf0);
/// Axes.
pub(super) const AXIS: RGBColor = RGBColor(0x8a, 0x93, 0x9e);
/// Messages on their way.
pub(super) const MESSAGE: RGBColor = RGBColor(0x9a, 0x86, 0xa8);
/// A schedule that ends sooner than the first.
pub(super) const SOONER: RGBColor = RGBColor(0x1e, 0x7b, 0x45);
/// Where a schedule would be beaten in time and memory.
pub(super) const DOMINATED: RGBColor = RGBColor(0xf3, 0xf5, 0xf7);
/// A schedule that ends later than the first.
pub(super) const LATER: RGBColor = RGBColor(0xb0, 0x3a, 0x2e);

/// The colour of an operation: F blue, I teal, W green and B orange as in PyTorch's own visualiser.
pub(super) fn of_op(op: Op) -> RGBColor {
    match op {
        Op::Forward => RGBColor(0x3b, 0x76, 0xc4),
        Op::BackwardInput => RGBColor(0x5f, 0xc9, 0xc4),
        Op::BackwardWeight => RGBColor(0x3f, 0x8f, 0x4e),
        Op::FullBackward => RGBColor(0xf0, 0x94, 0x38),
        Op::OptimizerStep => RGBColor(0x80, 0x88, 0x93),
        Op::SendForward | Op::SendBackward => RGBColor(0x8e, 0x5a, 0xa8),
        Op::RecvForward | Op::RecvBackward => RGBColor(0xc9, 0xa6, 0xd8),
        Op::ReduceGrad | Op::ReduceTied | Op::ReduceData | Op::ReduceTensor | Op::ClipGrad | Op::GatherParam => {
            RGBColor(0xb3, 0x3c, 0x6e)
        }
    }
}

/// The colour of a part of the step: compute as its operations, messages in reds and violets, bubbles in greys.
pub(super) fn of_part(part: Part) -> RGBColor {
    match part {
        Part::Forward => of_op(Op::Forward),
        Part::Recompute => RGBColor(0x9b, 0xbd, 0xe8),
        Part::Backward => of_op(Op::FullBackward),
        Part::BackwardInput => of_op(Op::BackwardInput),
        Part::BackwardWeight => of_op(Op::BackwardWeight),
        Part::Optimizer => of_op(Op::OptimizerStep),
        Part::Exposed(Axis::Tensor) => RGBColor(0x7a, 0x2e, 0x8c),
        Part::Exposed(Axis::Context) => RGBColor(0xd7, 0x8f, 0xd0),
        Part::Exposed(Axis::Expert) => RGBColor(0x54, 0x1c, 0x4e),
        Part::Exposed(Axis::Pipeline) => RGBColor(0xe3, 0xa0, 0x9a),
        Part::Exposed(Axis::Data | Axis::DataContext | Axis::ExpertData) => RGBColor(0xb3, 0x3c, 0x6e),
        Part::Bubble(cause) => match cause {
            Cause::Fill => RGBColor(0xdb, 0xdf, 0xe4),
            Cause::Drain => RGBColor(0xc3, 0xc9, 0xd0),
            Cause::Forward | Cause::Hop => RGBColor(0xe8, 0xe2, 0xc8),
            Cause::Backward => RGBColor(0xd8, 0xcd, 0xa4),
            Cause::Imbalance => RGBColor(0xaa, 0xb2, 0xbc),
            Cause::MemoryLimit => RGBColor(0xc9, 0xb8, 0xa8),
            Cause::Barrier => RGBColor(0x97, 0xa0, 0xab),
        },
    }
}

/// The colour of a class of memory.
pub(super) fn of_class(class: MemoryClass) -> RGBColor {
    match class {
        MemoryClass::Parameters => RGBColor(0x3f, 0x5f, 0x8a),
        MemoryClass::Optimizer => RGBColor(0x86, 0xa3, 0xc8),
        MemoryClass::Gradients => RGBColor(0x5a, 0x9e, 0x7c),
        MemoryClass::Activations => RGBColor(0xee, 0xb3, 0x55),
        MemoryClass::Logits => RGBColor(0xc7, 0x5b, 0x4a),
        MemoryClass::Buffers => RGBColor(0xa9, 0x8a, 0xb8),
        MemoryClass::Overhead => RGBColor(0x9a, 0x9a, 0x9a),
    }
}

/// The shade of chunk `chunk` of `chunks`: the first as it is, later ones lighter.
pub(super) fn shade(colour: RGBColor, chunk: usize, chunks: usize) -> RGBColor {
    let last = chunks.saturating_sub(1).max(1);
    lighter(colour, LIGHTEST * chunk.min(last) as f64 / last as f64)
}

/// How far the last chunk's colour is on its way to white.
const LIGHTEST: f64 = 0.55;

fn lighter(RGBColor(r, g, b): RGBColor, share: f64) -> RGBColor {
    let mix = |c: u8| (f64::from(c) + (255.0 - f64::from(c)) * share).round() as u8;
    RGBColor(mix(r), mix(g), mix(b))
}

/// Black or white, whichever is read better on `colour`.
pub(super) fn ink_on(RGBColor(r, g, b): RGBColor) -> RGBColor {
    let luma = 0.299 * f64::from(r) + 0.587 * f64::from(g) + 0.114 * f64::from(b);
    if luma < 140.0 { RGBColor(255, 255, 255) } else { INK }
}
