//! The manifest of a checkpoint: what it is of, and what is in which file.
//!
//! One law: it is valid exactly when all of its bytes behind the checksum, up to the last one, are those the checksum was
//! made of.

use super::{CheckpointError, Kind};
use crate::shard::Shard;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::ops::Range;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

/// Format that is written and read here.
const FORMAT: u32 = 1;

/// What stands before and behind the checksum's digits. The rest of the JSON object follows.
const BEFORE: &str = "{\"checksum\":\"";
const BEHIND: &str = "\",\n";

/// What is to be known of a run beside its numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The model, in words.
    pub model: String,
    /// How it was split and scheduled, in words.
    pub plan: String,
    /// Loss of the step, if it is known.
    pub loss: Option<f64>,
    /// Whatever else is needed to go on, small.
    pub other: Value,
}

/// An entry of a rank's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryRecord {
    /// What its numbers are.
    pub kind: Kind,
    /// Whose they are.
    pub shard: Shard,
    /// Which of the shard's flat numbers.
    pub part: Range<usize>,
    /// Name of the tensor in the file.
    pub tensor: String,
}

/// A file of a checkpoint, as the rank that wrote it reports it to the one that writes the manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// Name in the checkpoint's directory.
    pub name: String,
    /// Length \[B\].
    pub bytes: u64,
    /// XXH3 of all of it.
    pub checksum: u64,
    /// What is in it.
    pub entries: Vec<EntryRecord>,
}

/// What the manifest says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Manifest {
    format: u32,
    pub(super) step: u64,
    pub(super) state: State,
    pub(super) files: Vec<FileRecord>,
}

/// What every format begins with.
#[derive(Deserialize)]
struct AnyFormat {
    format: u32,
}

impl Manifest {
    pub(super) fn new(step: u64, state: State, files: Vec<FileRecord>) -> Self {
        Self { format: FORMAT, step, state, files }
    }

    /// Its bytes: a JSON object whose first field is the checksum of everything behind that field's line.
    pub(super) fn to_bytes(&self) -> serde_json::Result<Vec<u8>> {
        let json = serde_json::to_string(self)?;
        let rest = format!("{}\n", json.strip_prefix('{').unwrap_or(&json));
        Ok(format!("{BEFORE}{:016x}{BEHIND}{rest}", xxh3_64(rest.as_bytes())).into_bytes())
    }

    /// The manifest of these bytes; `path` names it in messages.
    ///
    /// # Errors
    /// [`CheckpointError::Manifest`], [`CheckpointError::Format`].
    pub(super) fn parse(bytes: &[u8], path: &Path) -> Result<Self, CheckpointError> {
        let refuse = |reason: String| CheckpointError::Manifest { path: path.to_owned(), reason };
        let digits = bytes.strip_prefix(BEFORE.as_bytes()).and_then(|bytes| bytes.split_at_checked(16));
        let parts = digits.and_then(|(digits, rest)| Some((digits, rest.strip_prefix(BEHIND.as_bytes())?)));
        let (digits, rest) = parts.ok_or_else(|| refuse("it does not begin with a checksum".to_owned()))?;
        let found = format!("{:016x}", xxh3_64(rest));
        if digits != found.as_bytes() {
            let written = String::from_utf8_lossy(digits);
            return Err(refuse(format!("its checksum is {found}; it was written with {written}")));
        }
        let AnyFormat { format } = serde_json::from_slice(bytes).map_err(|error| refuse(error.to_string()))?;
        if format != FORMAT {
            return Err(CheckpointError::Format { path: path.to_owned(), found: format, known: FORMAT });
        }
        serde_json::from_slice(bytes).map_err(|error| refuse(error.to_string()))
    }
}
