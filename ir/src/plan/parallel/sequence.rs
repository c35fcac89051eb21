//! How the tokens of a sequence are shared out, and which kinds of sequence parallelism go with which sizes.
//!
//! One law: every rank has as many tokens as the next; nothing is padded silently.

use super::{CONTEXT, Facts, SEQUENCE_PARALLEL, TENSOR};
use crate::fault::Fault;
use crate::scenario::SequenceParallel;

const SEQ_LENGTH: &str = "training.seq_length";

pub(super) fn faults(facts: &Facts<'_>, faults: &mut Vec<Fault>) {
    let (mesh, setup) = (facts.mesh, facts.setup);
    let kinds = facts.scenario.parallel.sequence_parallel.as_ref().map_or(&[][..], |kinds| kinds.as_slice());
    let over_context: Vec<&str> = kinds.iter().filter(|kind| kind.is_over_context()).map(|kind| kind.name()).collect();
    let mut fault =
        |path: &str, code, message: String, help: String| faults.push(Fault::new(path, code, message, help));
    if kinds.contains(&SequenceParallel::None) && kinds.len() > 1 || over_context.len() > 1 {
        let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
        let message = format!("the kinds {} of sequence parallelism do not go together", names.join(", "));
        let help = "use one kind, or megatron with one of ring, ring-contiguous and ulysses".to_owned();
        fault(SEQUENCE_PARALLEL, "parallel::kinds", message, help);
    }
    if kinds.contains(&SequenceParallel::Megatron) && mesh.tensor == 1 {
        let message = "Megatron's sequence parallelism works on the tensor-parallel ranks, of which there is one";
        let help = format!("set {TENSOR} to 2 or more, or leave it out");
        fault(SEQUENCE_PARALLEL, "parallel::megatron", message.to_owned(), help);
    }
    if let Some(kind) = over_context.first().filter(|_| mesh.context == 1) {
        let message = format!("{kind} works on the context-parallel ranks, of which there is one");
        fault(SEQUENCE_PARALLEL, "parallel::context", message, format!("set {CONTEXT} to 2 or more, or leave it out"));
    }
    let Some(seq) = facts.scenario.training.seq_length.filter(|seq| *seq > 0) else { return };
    let (seq, context, tensor) = (u64::from(seq), u64::from(mesh.context), u64::from(mesh.tensor));
    let zigzag = setup.sequence_parallel == SequenceParallel::Ring && context > 1;
    let megatron = setup.megatron_sequence_parallel && tensor > 1;
    let runs = if zigzag { context.saturating_mul(2) } else { context };
    let parts = if megatron { runs.max(context.saturating_mul(tensor)) } else { runs };
    // The share of a context-parallel rank is sharded again over the tensor-parallel ones.
    let all = if megatron { lcm(runs, context.saturating_mul(tensor)) } else { parts };
    if seq.is_multiple_of(all) {
        return;
    }
    let why = match (zigzag, megatron) {
        (true, false) => {
            format!("a zigzag ring over {context} ranks cuts a sequence into 2 * {context} = {runs} equal runs")
        }
        (true, true) => format!(
            "a zigzag ring over {context} ranks and Megatron's sequence parallelism over {tensor} need a multiple of {all}"
        ),
        (false, true) if context > 1 => {
            format!(
                "{context} context-parallel and {tensor} tensor-parallel ranks cut a sequence into {all} equal parts"
            )
        }
        (false, true) => format!("Megatron's sequence parallelism cuts a sequence into {tensor} equal parts"),
        (false, false) => format!("{context} context-parallel ranks cut a sequence into {context} equal runs"),
    };
    let message = format!("{why}: {seq} % {all} = {}", seq % all);
    let (below, above) = (seq / all * all, seq.next_multiple_of(all));
    let shorter = if below == 0 { String::new() } else { format!("use {below} tokens, or ") };
    fault(
        SEQ_LENGTH,
        "parallel::sequence",
        message,
        format!("the length must be a multiple of {all}: {shorter}pad to {above}"),
    );
}

/// The least number that both divide.
fn lcm(a: u64, b: u64) -> u64 {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    (a / x.max(1)).saturating_mul(b)
}
