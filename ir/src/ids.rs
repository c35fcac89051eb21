//! Small typed numbers that name the parts of a plan.

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
    /// A global virtual stage, `0 .. p v`.
    Stage
);
id!(
    /// A microbatch of the step, from 0.
    Microbatch
);
id!(
    /// A task of a [`Schedule`](crate::schedule::Schedule).
    TaskId
);
id!(
    /// A named buffer of a [`Schedule`](crate::schedule::Schedule).
    BufferId
);

/// A run of transformer layers, `start .. end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerRange {
    /// First layer.
    pub start: u32,
    /// One past the last layer.
    pub end: u32,
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
