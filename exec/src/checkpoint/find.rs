//! Finding the checkpoints of a directory, and taking old ones away.
//!
//! One law: a checkpoint loses its manifest before anything else, and the newest complete one is never taken away.

use super::manifest::Manifest;
use super::{Checkpoint, CheckpointError, FileRecord, MANIFEST, step_directory};
use crate::atomic_file::{FileError, crash, sync_directory};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// The newest complete checkpoint under `directory`. Incomplete ones are passed over; a damaged manifest, which only
/// something else than this program can have left, is passed over with a warning. `None` where there is none, or no such
/// directory.
///
/// # Errors
/// What the file system says, or [`CheckpointError::Format`] where the newest is of another version: it is not for this
/// version to decide that an older one will do.
pub fn latest(directory: &Path) -> Result<Option<Checkpoint>, CheckpointError> {
    for step in steps(directory)?.into_iter().rev() {
        if let Some(checkpoint) = complete(directory, step)? {
            return Ok(Some(checkpoint));
        }
    }
    Ok(None)
}

/// The checkpoint of `step` under `directory`.
///
/// # Errors
/// [`CheckpointError::File`] where it is not there or incomplete, [`CheckpointError::Manifest`],
/// [`CheckpointError::Format`].
pub fn open(directory: &Path, step: u64) -> Result<Checkpoint, CheckpointError> {
    let path = step_directory(directory, step);
    let manifest = manifest(&path)?;
    if manifest.step != step {
        let reason = format!("it is of step {}", manifest.step);
        return Err(CheckpointError::Manifest { path: path.join(MANIFEST), reason });
    }
    Ok(Checkpoint::new(path, manifest))
}

/// Steps of which there is a checkpoint under `directory`, complete or not, rising.
///
/// # Errors
/// What the file system says; a directory that is not there has none.
pub fn steps(directory: &Path) -> Result<Vec<u64>, CheckpointError> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(FileError::of("list", directory))?,
    };
    let mut steps = Vec::new();
    for entry in entries {
        let name = entry.map_err(FileError::of("list", directory))?.file_name();
        let step = name.to_str().and_then(|name| name.strip_prefix("step-")).and_then(|step| step.parse().ok());
        // Another spelling of the same number is not ours.
        steps.extend(step.filter(|step| step_directory(directory, *step).file_name() == Some(&name)));
    }
    steps.sort_unstable();
    Ok(steps)
}

/// Takes away all but the newest `keep` complete checkpoints under `directory` (at least one stays), and incomplete ones
/// older than the newest complete one. Returns the steps that are gone, rising.
///
/// A checkpoint counts only where all its files are as long as its manifest says.
///
/// # Errors
/// What the file system says; what is left then is complete or passed over.
pub fn prune(directory: &Path, keep: usize) -> Result<Vec<u64>, CheckpointError> {
    let mut kept = 0;
    let mut gone = Vec::new();
    for step in steps(directory)?.into_iter().rev() {
        let whole = complete(directory, step)?.is_some_and(|checkpoint| {
            checkpoint.files().iter().all(|file| check_length(checkpoint.path(), file).is_ok())
        });
        if whole && kept < keep.max(1) {
            kept += 1;
        } else if kept > 0 {
            remove(directory, step)?;
            gone.push(step);
        }
    }
    gone.reverse();
    Ok(gone)
}

fn remove(directory: &Path, step: u64) -> Result<(), CheckpointError> {
    let path = step_directory(directory, step);
    let manifest = path.join(MANIFEST);
    crash::point("remove manifest").map_err(FileError::of("remove", &manifest))?;
    match fs::remove_file(&manifest) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(FileError::of("remove", &manifest)(error).into());
        }
        _ => sync_directory(&path)?,
    }
    crash::point("remove directory").map_err(FileError::of("remove", &path))?;
    fs::remove_dir_all(&path).map_err(FileError::of("remove", &path))?;
    Ok(sync_directory(directory)?)
}

/// The checkpoint of `step` if it is complete.
fn complete(directory: &Path, step: u64) -> Result<Option<Checkpoint>, CheckpointError> {
    match open(directory, step) {
        Ok(checkpoint) => Ok(Some(checkpoint)),
        Err(CheckpointError::File(error)) if error.reason.kind() == ErrorKind::NotFound => Ok(None),
        Err(error @ CheckpointError::Manifest { .. }) => {
            tracing::warn!("the checkpoint of step {step} is passed over: {error}");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The manifest of the checkpoint at `path`.
pub(super) fn manifest(path: &Path) -> Result<Manifest, CheckpointError> {
    let path = path.join(MANIFEST);
    let bytes = fs::read(&path).map_err(FileError::of("read", &path))?;
    Manifest::parse(&bytes, &path)
}

/// Whether a file of the checkpoint at `path` is there and as long as it was written.
pub(super) fn check_length(path: &Path, file: &FileRecord) -> Result<(), CheckpointError> {
    let path = path.join(&file.name);
    let found = fs::metadata(&path).map_err(FileError::of("read the length of", &path))?.len();
    let expected = file.bytes;
    if found == expected { Ok(()) } else { Err(CheckpointError::Length { path, expected, found }) }
}
