//! One step of a rank's program and its text form, as in PyTorch: `2F0`, `3I1`, `1SEND_F4`, `0OPTIMIZER_STEP`.
//!
//! One law: [`Action`]'s `Display` and `FromStr` round-trip.

use crate::ids::{Microbatch, Stage};
use std::fmt;
use std::str::FromStr;

/// What an action does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    /// `F`: forward of one microbatch.
    Forward,
    /// `B`: full backward, input and weight gradients together.
    FullBackward,
    /// `I`: the part of backward that gives the gradient of the stage's input.
    BackwardInput,
    /// `W`: the part of backward that gives the gradients of the stage's weights.
    BackwardWeight,
    /// `SEND_F`: send the stage's output to the next stage.
    SendForward,
    /// `RECV_F`: receive the stage's input from the previous stage.
    RecvForward,
    /// `SEND_B`: send the gradient of the stage's input to the previous stage.
    SendBackward,
    /// `RECV_B`: receive the gradient of the stage's output from the next stage.
    RecvBackward,
    /// `REDUCE_TIED`: sum the gradients of the two copies of a tied embedding.
    ReduceTied,
    /// `OPTIMIZER_STEP`: update the stage's weights and drop its gradients.
    OptimizerStep,
}

impl Op {
    /// Every operation, longest code first so that a prefix never hides a longer code.
    const ALL: [Op; 10] = [
        Op::OptimizerStep,
        Op::ReduceTied,
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
            Op::ReduceTied => "REDUCE_TIED",
            Op::OptimizerStep => "OPTIMIZER_STEP",
        }
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
        !matches!(self, Op::ReduceTied | Op::OptimizerStep)
    }
}

/// One step of a rank's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Action {
    /// Global virtual stage it acts on.
    pub stage: Stage,
    /// What it does.
    pub op: Op,
    /// Its microbatch; `None` for the actions that happen once a step.
    pub microbatch: Option<Microbatch>,
}

impl Action {
    /// An action on one microbatch.
    pub fn new(stage: Stage, op: Op, microbatch: Microbatch) -> Self {
        Self { stage, op, microbatch: Some(microbatch) }
    }

    /// An action on a whole stage, once a step.
    pub fn whole_stage(stage: Stage, op: Op) -> Self {
        Self { stage, op, microbatch: None }
    }
}

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
        "`{0}` names no operation; known are F, B, I, W, SEND_F, RECV_F, SEND_B, RECV_B, REDUCE_TIED and OPTIMIZER_STEP"
    )]
    Op(String),
    /// The microbatch number is missing, not a number, or there where none belongs.
    #[error("`{0}` must end in a microbatch number below 2^32, as in 2F0")]
    Microbatch(String),
    /// A number follows an operation that acts on the whole stage.
    #[error("`{0}` acts once a step on the whole stage and takes no microbatch number")]
    NoMicrobatch(String),
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
        let stage = number.parse().map(Stage).map_err(|_| ActionError::Stage(text.to_owned()))?;
        let end = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (code, number) = rest.split_at(end);
        let op = Op::ALL.into_iter().find(|op| op.code() == code).ok_or_else(|| ActionError::Op(text.to_owned()))?;
        if !op.has_microbatch() {
            return match number {
                "" => Ok(Action::whole_stage(stage, op)),
                _ => Err(ActionError::NoMicrobatch(text.to_owned())),
            };
        }
        let microbatch = number.parse().map(Microbatch).map_err(|_| ActionError::Microbatch(text.to_owned()))?;
        Ok(Action::new(stage, op, microbatch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_action() -> impl Strategy<Value = Action> {
        (any::<u32>(), 0..Op::ALL.len(), any::<u32>()).prop_map(|(s, op, m)| {
            let op = Op::ALL[op];
            Action { stage: Stage(s), op, microbatch: op.has_microbatch().then_some(Microbatch(m)) }
        })
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
    fn faults_are_told_apart() {
        assert!(matches!("F0".parse::<Action>(), Err(ActionError::Stage(_))));
        assert!(matches!("1X0".parse::<Action>(), Err(ActionError::Op(_))));
        assert!(matches!("1F".parse::<Action>(), Err(ActionError::Microbatch(_))));
        assert!(matches!("1F99999999999".parse::<Action>(), Err(ActionError::Microbatch(_))));
        assert!(matches!("1OPTIMIZER_STEP2".parse::<Action>(), Err(ActionError::NoMicrobatch(_))));
    }
}
