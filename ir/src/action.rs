//! One step of a rank's program and its text form, as in PyTorch: `2F0`, `3I1`, `1SEND_F4`, `0OPTIMIZER_STEP`. A stage
//! of a bidirectional order names its pipe (`3uF0`, `3dF0`), a slice of a microbatch its number (`2F0.1`).
//!
//! One law: [`Action`]'s `Display` and `FromStr` round-trip.

use crate::ids::{Microbatch, Pipe, Stage};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What an action does. Those that stand once for each (stage, microbatch) come first: tables count on their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Op {
    /// `F`: forward of one microbatch.
    #[serde(rename = "F")]
    Forward,
    /// `B`: full backward, input and weight gradients together.
    #[serde(rename = "B")]
    FullBackward,
    /// `I`: the part of backward that gives the gradient of the stage's input.
    #[serde(rename = "I")]
    BackwardInput,
    /// `W`: the part of backward that gives the gradients of the stage's weights.
    #[serde(rename = "W")]
    BackwardWeight,
    /// `SEND_F`: send the stage's output to the next stage.
    #[serde(rename = "SEND_F")]
    SendForward,
    /// `RECV_F`: receive the stage's input from the previous stage.
    #[serde(rename = "RECV_F")]
    RecvForward,
    /// `SEND_B`: send the gradient of the stage's input to the previous stage.
    #[serde(rename = "SEND_B")]
    SendBackward,
    /// `RECV_B`: receive the gradient of the stage's output from the next stage.
    #[serde(rename = "RECV_B")]
    RecvBackward,
    /// `REDUCE_GRAD`: sum the stage's gradients over its copies.
    #[serde(rename = "REDUCE_GRAD")]
    ReduceGrad,
    /// `REDUCE_DATA`: sum the stage's gradients over the data-parallel replicas, or scatter the sum over them.
    #[serde(rename = "REDUCE_DATA")]
    ReduceData,
    /// `REDUCE_TENSOR`: sum over the tensor-parallel ranks the stage's gradients of the weights that they hold copies of and
    /// have seen different parts of.
    #[serde(rename = "REDUCE_TENSOR")]
    ReduceTensor,
    /// `REDUCE_TIED`: sum the gradients of the two copies of a tied embedding.
    #[serde(rename = "REDUCE_TIED")]
    ReduceTied,
    /// `CLIP_GRAD`: sum the squares of all gradients over all ranks, once a rank.
    #[serde(rename = "CLIP_GRAD")]
    ClipGrad,
    /// `OPTIMIZER_STEP`: update the stage's weights and drop its gradients.
    #[serde(rename = "OPTIMIZER_STEP")]
    OptimizerStep,
    /// `GATHER_PARAM`: gather the stage's weights, of which each data-parallel replica has updated a shard.
    #[serde(rename = "GATHER_PARAM")]
    GatherParam,
}

impl Op {
    /// Every operation, longest code first so that a prefix never hides a longer code.
    const ALL: [Op; 15] = [
        Op::OptimizerStep,
        Op::ReduceTensor,
        Op::GatherParam,
        Op::ReduceData,
        Op::ClipGrad,
        Op::ReduceTied,
        Op::ReduceGrad,
        Op::SendForward,
        Op::RecvForward,
        Op::SendBackward,
        Op::RecvBackward,
        Op::Forward,
        Op::FullBackward,
        Op::BackwardInput,
        Op::BackwardWeight,
    ];

    /// The code in the text form.
    pub fn code(self) -> &'static str {
        match self {
            Op::Forward => "F",
            Op::FullBackward => "B",
            Op::BackwardInput => "I",
            Op::BackwardWeight => "W",
            Op::SendForward => "SEND_F",
            Op::RecvForward => "RECV_F",
            Op::SendBackward => "SEND_B",
            Op::RecvBackward => "RECV_B",
            Op::ReduceGrad => "REDUCE_GRAD",
            Op::ReduceData => "REDUCE_DATA",
            Op::ReduceTensor => "REDUCE_TENSOR",
            Op::ReduceTied => "REDUCE_TIED",
            Op::ClipGrad => "CLIP_GRAD",
            Op::OptimizerStep => "OPTIMIZER_STEP",
            Op::GatherParam => "GATHER_PARAM",
        }
    }

    /// Whether this makes the gradient of the stage's input: B or I.
    pub fn makes_input_gradient(self) -> bool {
        matches!(self, Op::FullBackward | Op::BackwardInput)
    }

    /// Whether this makes gradients of the stage's weights: B or W.
    pub fn makes_weight_gradients(self) -> bool {
        matches!(self, Op::FullBackward | Op::BackwardWeight)
    }

    /// Whether this is F, B, I or W: what a schedule author writes.
    pub fn is_compute(self) -> bool {
        matches!(self, Op::Forward | Op::FullBackward | Op::BackwardInput | Op::BackwardWeight)
    }

    /// Whether this sends a tensor to another stage.
    pub fn is_send(self) -> bool {
        matches!(self, Op::SendForward | Op::SendBackward)
    }

    /// Whether this receives a tensor from another stage.
    pub fn is_receive(self) -> bool {
        matches!(self, Op::RecvForward | Op::RecvBackward)
    }

    /// Whether the action belongs to one microbatch (the others act once a step on the whole stage).
    pub fn has_microbatch(self) -> bool {
        use Op::{ClipGrad, GatherParam, OptimizerStep, ReduceData, ReduceGrad, ReduceTensor, ReduceTied};
        !matches!(self, ReduceGrad | ReduceData | ReduceTensor | ReduceTied | ClipGrad | OptimizerStep | GatherParam)
    }

    /// Whether several pipeline ranks take part at the same time. (Of the other axes of the mesh a schedule shows one
    /// representative.)
    pub fn is_collective(self) -> bool {
        matches!(self, Op::ReduceGrad | Op::ReduceTied | Op::ClipGrad)
    }
}

/// One step of a rank's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Action {
    /// Global virtual stage it acts on.
    pub stage: Stage,
    /// What it does.
    pub op: Op,
    /// Its microbatch, or slice of one; `None` for the actions that happen once a step.
    pub microbatch: Option<Microbatch>,
    /// Whether it runs as one with the action before it: both are parts of a compound action, as PyTorch's
    /// `(2F3;5B1)OVERLAP_F_B`.
    pub joins_previous: bool,
}

impl Action {
    /// An action on one microbatch.
    pub fn new(stage: Stage, op: Op, microbatch: Microbatch) -> Self {
        Self { stage, op, microbatch: Some(microbatch), joins_previous: false }
    }

    /// An action on a whole stage, once a step.
    pub fn whole_stage(stage: Stage, op: Op) -> Self {
        Self { stage, op, microbatch: None, joins_previous: false }
    }

    /// The same action as a further part of the compound action before it.
    #[must_use]
    pub fn joined(self) -> Self {
        Self { joins_previous: true, ..self }
    }
}

/// The text form of the action alone, whether or not it is part of a compound one.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.stage, self.op.code())?;
        self.microbatch.map_or(Ok(()), |m| write!(f, "{m}"))
    }
}

/// Why a cell is not an action.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ActionError {
    /// The cell does not begin with a stage number.
    #[error("`{0}` does not begin with a stage number; an action reads like 2F0 (stage 2, forward, microbatch 0)")]
    Stage(String),
    /// The letters name no operation.
    #[error(
        "`{0}` names no operation; known are F, B, I, W, SEND_F, RECV_F, SEND_B, RECV_B, REDUCE_GRAD, REDUCE_DATA, \
         REDUCE_TENSOR, REDUCE_TIED, CLIP_GRAD, OPTIMIZER_STEP and GATHER_PARAM"
    )]
    Op(String),
    /// The microbatch number is missing or not a number.
    #[error(
        "`{0}` must end in a microbatch number below 2^32, as in 2F0, with a slice below 2^16 behind it, as in 2F0.1"
    )]
    Microbatch(String),
    /// A number follows an operation that acts on the whole stage.
    #[error("`{0}` acts once a step on the whole stage and takes no microbatch number")]
    NoMicrobatch(String),
    /// Parentheses that do not make a compound action.
    #[error("`{0}` is no compound action; one reads like (2F3;5B1)OVERLAP_F_B or (2F3;5I1;5W1)FUSED")]
    Compound(String),
}

/// No action is written longer than this: a stage, `OPTIMIZER_STEP`, a microbatch.
const MAX_TEXT: usize = 40;

impl FromStr for Action {
    type Err = ActionError;

    fn from_str(text: &str) -> Result<Self, ActionError> {
        if text.len() > MAX_TEXT {
            let start: String = text.chars().take(MAX_TEXT).collect();
            return Err(ActionError::Op(format!("{start}...")));
        }
        let letters = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, rest) = text.split_at(letters);
        let stage = number.parse().map(Stage::new).map_err(|_| ActionError::Stage(text.to_owned()))?;
        let (stage, rest) = match rest.split_at_checked(1) {
            Some(("d", rest)) => (stage.on(Pipe::Down), rest),
            Some(("u", rest)) => (stage.on(Pipe::Up), rest),
            _ => (stage, rest),
        };
        let end = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (code, number) = rest.split_at(end);
        let op = Op::ALL.into_iter().find(|op| op.code() == code).ok_or_else(|| ActionError::Op(text.to_owned()))?;
        if !op.has_microbatch() {
            return match number {
                "" => Ok(Action::whole_stage(stage, op)),
                _ => Err(ActionError::NoMicrobatch(text.to_owned())),
            };
        }
        let (number, slice) = number.split_once('.').map_or((number, None), |(number, slice)| (number, Some(slice)));
        let wrong = || ActionError::Microbatch(text.to_owned());
        let microbatch = Microbatch::new(digits(number).ok_or_else(wrong)?);
        Ok(match slice {
            None => Action::new(stage, op, microbatch),
            Some(slice) => Action::new(stage, op, microbatch.sliced(digits(slice).ok_or_else(wrong)?)),
        })
    }
}

/// A number of digits alone (`parse` would take a sign).
fn digits<T: FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// What may stand behind the parentheses of a compound action.
const COMPOUNDS: [&str; 2] = ["OVERLAP_F_B", "FUSED"];

/// Reads one cell of a program: an action, or a compound one as several, each but the first joined to the one before.
///
/// # Errors
/// The first part that cannot be read.
pub fn parse_cell(text: &str) -> Result<Vec<Action>, ActionError> {
    let Some(inner) = text.strip_prefix('(') else { return text.parse().map(|action| vec![action]) };
    let wrong = || ActionError::Compound(text.chars().take(2 * MAX_TEXT).collect());
    let (parts, name) = inner.split_once(')').ok_or_else(wrong)?;
    let mut actions = Vec::new();
    for part in parts.split(';') {
        let action: Action = part.trim().parse()?;
        actions.push(if actions.is_empty() { action } else { action.joined() });
    }
    let fit = actions.len() > 1 && actions.iter().all(|a| a.op.is_compute());
    if fit && COMPOUNDS.contains(&name.trim()) { Ok(actions) } else { Err(wrong()) }
}

/// Writes one cell of a program: an action, or all parts of a compound one.
pub fn write_cell(parts: &[Action]) -> String {
    match parts {
        [action] => action.to_string(),
        _ => {
            let texts: Vec<String> = parts.iter().map(Action::to_string).collect();
            let pair = matches!(parts, [f, b] if f.op == Op::Forward && b.op == Op::FullBackward);
            format!("({}){}", texts.join(";"), COMPOUNDS[usize::from(!pair)])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_action() -> impl Strategy<Value = Action> {
        let pipe = prop::sample::select(vec![Pipe::Only, Pipe::Down, Pipe::Up]);
        (any::<u32>(), pipe, 0..Op::ALL.len(), any::<u32>(), any::<Option<u16>>()).prop_map(
            |(s, pipe, op, m, slice)| {
                let (stage, op, m) = (Stage::new(s).on(pipe), Op::ALL[op], Microbatch::new(m));
                match (op.has_microbatch(), slice) {
                    (false, _) => Action::whole_stage(stage, op),
                    (true, None) => Action::new(stage, op, m),
                    (true, Some(slice)) => Action::new(stage, op, m.sliced(slice)),
                }
            },
        )
    }

    proptest! {
        #[test]
        fn text_form_round_trips(action in any_action()) {
            prop_assert_eq!(action.to_string().parse::<Action>(), Ok(action));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC*") {
            if let Ok(action) = text.parse::<Action>() {
                prop_assert_eq!(action.to_string().parse::<Action>(), Ok(action));
            }
        }
    }

    #[test]
    fn compound_cells_round_trip() {
        for cell in ["2F0", "(2uF3;5dB1)OVERLAP_F_B", "(2F3;5I1;5W1)FUSED", "(5I1;5W1)FUSED"] {
            let actions = parse_cell(cell).unwrap();
            assert_eq!(write_cell(&actions), cell);
            assert!(actions.iter().enumerate().all(|(i, a)| a.joins_previous == (i > 0)));
        }
        for cell in ["(2F0)FUSED", "(2F0;3B0)", "(2F0;3B0", "(2F0;3SEND_F0)FUSED", "()FUSED", "(2F0;3B0)FUSE"] {
            assert!(parse_cell(cell).is_err(), "{cell}");
        }
    }

    #[test]
    fn json_names_operations_by_their_codes() {
        for op in Op::ALL {
            assert_eq!(serde_json::to_value(op).unwrap(), op.code());
        }
    }

    #[test]
    fn faults_are_told_apart() {
        assert!(matches!("F0".parse::<Action>(), Err(ActionError::Stage(_))));
        assert!(matches!("1X0".parse::<Action>(), Err(ActionError::Op(_))));
        assert!(matches!("1F".parse::<Action>(), Err(ActionError::Microbatch(_))));
        assert!(matches!("1F+1".parse::<Action>(), Err(ActionError::Op(_))));
        assert!(matches!("1F1.".parse::<Action>(), Err(ActionError::Microbatch(_))));
        assert!(matches!("1F1.1.1".parse::<Action>(), Err(ActionError::Microbatch(_))));
        assert!(matches!("1F99999999999".parse::<Action>(), Err(ActionError::Microbatch(_))));
        assert!(matches!("1OPTIMIZER_STEP2".parse::<Action>(), Err(ActionError::NoMicrobatch(_))));
    }
}
