//! Sharded checkpoints: every rank writes the numbers it holds, and any other split of the model reads them back.
//!
//! ```text
//! directory/
//!   step-0000000200/
//!     rank-00000.safetensors   the numbers of a rank, one tensor an entry
//!     manifest.json            written last: what is in which file, length and checksum of each
//! ```
//!
//! One law: a checkpoint is complete exactly when its manifest is there and says what its own checksum says. Every file
//! is written whole under a temporary name and then renamed, the manifest after all others, and taken away before them.
//!
//! A checkpoint is in `F32` and is read on the machine's kind it was written on or any other: numbers are little endian.

mod find;
mod gaps;
mod manifest;
mod read;
#[cfg(test)]
mod tests;
mod write;

pub use find::{latest, open, prune, steps};
pub use manifest::{EntryRecord, FileRecord, State};
pub use read::Checkpoint;
pub use write::{commit, write_rank};

use crate::atomic_file::FileError;
use crate::shard::{Shard, ShardError};
use crate::tensor_file::TensorFileError;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display, Formatter};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// What the numbers of an entry are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The parameter itself.
    Parameter,
    /// Adam's running mean of its gradient.
    FirstMoment,
    /// Adam's running mean of its squared gradient.
    SecondMoment,
    /// SGD's momentum.
    Momentum,
}

impl Display for Kind {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Parameter => "parameter",
            Kind::FirstMoment => "first_moment",
            Kind::SecondMoment => "second_moment",
            Kind::Momentum => "momentum",
        })
    }
}

/// Numbers that a rank has.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// What they are.
    pub kind: Kind,
    /// Whose they are.
    pub shard: Shard,
    /// Which of the shard's flat row-major numbers: all, or under ZeRO those that this rank keeps.
    pub part: Range<usize>,
    /// As many numbers as `part` is long.
    pub values: Vec<f32>,
}

/// Why a checkpoint cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file system refused.
    #[error(transparent)]
    File(#[from] FileError),
    /// A rank's file is not what it should be, though its checksum is right.
    #[error(transparent)]
    TensorFile(#[from] TensorFileError),
    /// A shard that is none of its tensor.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// An entry to be written contradicts itself.
    #[error("the {kind} of {name} cannot be written: {reason}")]
    Entry {
        /// What its numbers are.
        kind: Kind,
        /// The tensor.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// There is a complete checkpoint of this step, which is not overwritten.
    #[error("step {step} is saved already in {}; remove it first, or save elsewhere", path.display())]
    AlreadyComplete {
        /// The step.
        step: u64,
        /// The checkpoint.
        path: PathBuf,
    },
    /// The records of the ranks' files cannot make a checkpoint.
    #[error("the checkpoint {} cannot be completed: {reason}", path.display())]
    Records {
        /// The checkpoint.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A manifest that is not one, so the checkpoint does not exist.
    #[error("{} is not a whole manifest: {reason}", path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A checkpoint in a form that this version does not know.
    #[error("{} is of format {found}; this version reads format {known}", path.display())]
    Format {
        /// The manifest.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The format known here.
        known: u32,
    },
    /// A file that was cut, or added to.
    #[error("{} is {found} bytes long; it was written with {expected}", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// Length as written \[B\].
        expected: u64,
        /// Length now \[B\].
        found: u64,
    },
    /// A file that was altered.
    #[error("{} is altered: its checksum is {found:016x}; it was written with {expected:016x}", path.display())]
    Checksum {
        /// The file.
        path: PathBuf,
        /// XXH3 as written.
        expected: u64,
        /// XXH3 now.
        found: u64,
    },
    /// A tensor that the manifest says is in a file, and is not, or is of another size.
    #[error("{} does not have the tensor {tensor} of {numbers} numbers that the manifest says it has", path.display())]
    NotInFile {
        /// The file.
        path: PathBuf,
        /// The tensor's name in the file.
        tensor: String,
        /// Numbers it should have.
        numbers: usize,
    },
    /// The model that was saved has another shape.
    #[error("{name} was saved as {found:?} in {}, but the model needs {expected:?}", path.display())]
    Shape {
        /// The tensor.
        name: String,
        /// Shape that the model needs.
        expected: Vec<usize>,
        /// Shape as saved.
        found: Vec<usize>,
        /// The checkpoint.
        path: PathBuf,
    },
    /// Numbers that no file has.
    #[error(
        "{} lacks {missing} of the {needed} numbers asked for of the {kind} of {name} {shape:?}; the first is at {first:?}",
        path.display()
    )]
    Missing {
        /// The checkpoint.
        path: PathBuf,
        /// What the numbers are.
        kind: Kind,
        /// The tensor.
        name: String,
        /// Its shape.
        shape: Vec<usize>,
        /// Numbers that are not there.
        missing: usize,
        /// Numbers asked for.
        needed: usize,
        /// Indices in the whole tensor of the first that is not there.
        first: Vec<usize>,
    },
}

/// Name of the manifest.
const MANIFEST: &str = "manifest.json";

/// Where the checkpoint of a step is.
fn step_directory(directory: &Path, step: u64) -> PathBuf {
    directory.join(format!("step-{step:010}"))
}
