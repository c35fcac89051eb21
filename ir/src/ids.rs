//! Small typed numbers that name the parts of a plan.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl $name {
            /// The number as an index.
            pub fn index(self) -> usize {
                self.0 as usize
            }

            /// The id of position `i`. Plans have far fewer than 2^32 parts; a larger index saturates.
            pub fn at(i: usize) -> Self {
                Self(u32::try_from(i).unwrap_or(u32::MAX))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// A device of the mesh; with pipeline parallelism alone, the pipeline rank.
    Rank
);
id!(
    /// A task of a [`Schedule`](crate::schedule::Schedule).
    TaskId
);
id!(
    /// A named buffer of a [`Schedule`](crate::schedule::Schedule).
    BufferId
);

/// Which of the pipelines a stage belongs to. Most orders have one; a bidirectional one (DualPipe, Chimera) sends half
/// the microbatches down and half up through the same ranks, with a copy of every stage in each pipe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Pipe {
    /// The only one.
    #[default]
    Only,
    /// `d`: from the first rank to the last.
    Down,
    /// `u`: from the last rank to the first.
    Up,
}

/// A global virtual stage, `0 .. p v`, of one pipe. Its text form is `3`, and `3d` or `3u` in a bidirectional order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stage {
    number: u32,
    pipe: Pipe,
}

impl Stage {
    /// Stage `number` of an order with one pipe.
    pub const fn new(number: u32) -> Self {
        Self { number, pipe: Pipe::Only }
    }

    /// The same stage of another pipe.
    #[must_use]
    pub const fn on(self, pipe: Pipe) -> Self {
        Self { pipe, ..self }
    }

    /// Its number in the model, from 0: stages of one number hold the same layers in every pipe.
    pub const fn number(self) -> u32 {
        self.number
    }

    /// Its pipe.
    pub const fn pipe(self) -> Pipe {
        self.pipe
    }

    /// The number as an index.
    pub const fn index(self) -> usize {
        self.number as usize
    }

    /// The stage of position `i` of an order with one pipe.
    pub fn at(i: usize) -> Self {
        Self::new(u32::try_from(i).unwrap_or(u32::MAX))
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pipe = match self.pipe {
            Pipe::Only => "",
            Pipe::Down => "d",
            Pipe::Up => "u",
        };
        write!(f, "{}{pipe}", self.number)
    }
}

/// A microbatch of its pipe, from 0, or one sequence slice of it. Its text form is `4`, and `4.1` for slice 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Microbatch {
    number: u32,
    slice: Option<u16>,
}

impl Microbatch {
    /// A whole microbatch.
    pub const fn new(number: u32) -> Self {
        Self { number, slice: None }
    }

    /// Slice `slice` of the microbatch: a run of its tokens, the first ones in slice 0.
    #[must_use]
    pub const fn sliced(self, slice: u16) -> Self {
        Self { slice: Some(slice), ..self }
    }

    /// Its number among the microbatches of its pipe, from 0.
    pub const fn number(self) -> u32 {
        self.number
    }

    /// Which slice, where microbatches are sliced.
    pub const fn slice(self) -> Option<u16> {
        self.slice
    }

    /// The same slice of the microbatch `by` later.
    #[must_use]
    pub const fn later(self, by: u32) -> Self {
        Self { number: self.number.saturating_add(by), ..self }
    }
}

impl fmt::Display for Microbatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number.fmt(f)?;
        self.slice.map_or(Ok(()), |slice| write!(f, ".{slice}"))
    }
}

/// A run of transformer layers, `start .. end`; in JSON `[start, end]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "[u32; 2]", into = "[u32; 2]")]
pub struct LayerRange {
    /// First layer.
    pub start: u32,
    /// One past the last layer.
    pub end: u32,
}

impl From<[u32; 2]> for LayerRange {
    fn from([start, end]: [u32; 2]) -> Self {
        Self { start, end }
    }
}

impl From<LayerRange> for [u32; 2] {
    fn from(range: LayerRange) -> Self {
        [range.start, range.end]
    }
}

impl LayerRange {
    /// Layers in the range.
    pub fn len(self) -> u32 {
        self.end.saturating_sub(self.start)
    }

    /// Whether the range holds no layer.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}
