//! Writing a checkpoint: the file of each rank, then the manifest.
//!
//! One law: a complete checkpoint is not touched, and an incomplete one becomes complete by one rename.

use super::gaps::{self, Gaps};
use super::manifest::Manifest;
use super::{CheckpointError, Entry, EntryRecord, FileRecord, Kind, MANIFEST, State, find, step_directory};
use crate::atomic_file::{self, FileError, crash, sync_directory};
use crate::shard::Shard;
use crate::tensor_file::{self, Tensor};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// Writes what `rank` has into its file of the checkpoint of `step` under `directory`, which is made if it is not there.
/// Ranks may write at the same time. The record goes to whoever calls [`commit`].
///
/// # Errors
/// [`CheckpointError::Entry`] and [`CheckpointError::Shard`] for entries that contradict themselves,
/// [`CheckpointError::AlreadyComplete`], or what the file system says; then there is no file of this name, or that of an
/// earlier attempt.
pub fn write_rank(directory: &Path, step: u64, rank: u32, entries: &[Entry]) -> Result<FileRecord, CheckpointError> {
    let records = records(entries)?;
    let path = step_directory(directory, step);
    refuse_complete(&path, step)?;
    crash::point("create directory").map_err(FileError::of("create", &path))?;
    let is_new = !directory.exists();
    fs::create_dir_all(&path).map_err(FileError::of("create", &path))?;
    sync_directory(directory)?;
    if let Some(parent) = directory.parent().filter(|_| is_new) {
        sync_directory(parent)?;
    }
    // A row of numbers each: a part of a shard has no shape.
    let dims: Vec<[usize; 1]> = entries.iter().map(|entry| [entry.part.len()]).collect();
    let described = entries.iter().zip(&records).zip(&dims);
    let tensors: Vec<_> = described
        .map(|((entry, record), dims)| Tensor { name: &record.tensor, shape: dims, values: &entry.values })
        .collect();
    let name = format!("rank-{rank:05}.safetensors");
    let written = atomic_file::write(&path.join(&name), |out| tensor_file::write(out, &tensors, &BTreeMap::new()))?;
    Ok(FileRecord { name, bytes: written.bytes, checksum: written.checksum, entries: records })
}

/// Completes the checkpoint of `step` under `directory` by writing its manifest. Every rank's file must be there, and what
/// is in them of a tensor must be all of it, so that any split can be read from it: a rank that was forgotten is found now,
/// and not when the numbers are needed.
///
/// # Errors
/// [`CheckpointError::Records`] where a file is named twice or none is, [`CheckpointError::Length`] where one is not as
/// long as its record says, [`CheckpointError::Missing`] and [`CheckpointError::Shape`] where a tensor is not whole in them,
/// [`CheckpointError::AlreadyComplete`], or what the file system says.
pub fn commit(directory: &Path, step: u64, files: Vec<FileRecord>, state: State) -> Result<(), CheckpointError> {
    let path = step_directory(directory, step);
    refuse_complete(&path, step)?;
    let refuse = |reason: String| CheckpointError::Records { path: path.clone(), reason };
    if files.is_empty() {
        return Err(refuse("no rank has written a file".to_owned()));
    }
    let mut names = BTreeSet::new();
    for file in &files {
        if !names.insert(&file.name) {
            return Err(refuse(format!("{} was written twice", file.name)));
        }
        find::check_length(&path, file)?;
    }
    check_whole(&path, &files)?;
    let manifest = Manifest::new(step, state, files);
    let bytes = manifest.to_bytes().map_err(|error| refuse(error.to_string()))?;
    atomic_file::write(&path.join(MANIFEST), |out| out.write_all(&bytes))?;
    Ok(())
}

fn check_whole(path: &Path, files: &[FileRecord]) -> Result<(), CheckpointError> {
    let mut tensors: BTreeMap<(Kind, &str), (Shard, Gaps)> = BTreeMap::new();
    for record in files.iter().flat_map(|file| &file.entries) {
        let Shard { name, shape, .. } = &record.shard;
        let (whole, gaps) = tensors.entry((record.kind, name)).or_insert_with(|| {
            let whole = Shard::whole(name.as_str(), shape.as_slice());
            let gaps = Gaps::new(&whole);
            (whole, gaps)
        });
        gaps::check_shape(whole, record, path)?;
        gaps.fill(record);
    }
    tensors.into_iter().try_for_each(|((kind, _), (whole, gaps))| gaps.check_closed(kind, &whole, path))
}

fn refuse_complete(path: &Path, step: u64) -> Result<(), CheckpointError> {
    match find::manifest(path) {
        Ok(_) => Err(CheckpointError::AlreadyComplete { step, path: path.to_owned() }),
        // Without a valid manifest it does not exist.
        Err(CheckpointError::Manifest { .. }) => Ok(()),
        Err(CheckpointError::File(error)) if error.reason.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// What the manifest says of the entries; each has a name of its own.
fn records(entries: &[Entry]) -> Result<Vec<EntryRecord>, CheckpointError> {
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    let record = |entry: &Entry| {
        let Entry { kind, shard, part, values } = entry;
        shard.check()?;
        if part.start > part.end || part.end > shard.len() || part.len() != values.len() {
            let (own, given) = (shard.len(), values.len());
            let reason = format!("{given} numbers were given for {part:?} of the shard's {own}");
            return Err(CheckpointError::Entry { kind: *kind, name: shard.name.clone(), reason });
        }
        let mut tensor = format!("{kind}/{}", shard.name);
        let before = names.entry(tensor.clone()).or_default();
        if *before > 0 {
            tensor.push_str(&format!("#{before}"));
        }
        *before += 1;
        Ok(EntryRecord { kind: *kind, shard: shard.clone(), part: part.clone(), tensor })
    };
    entries.iter().map(record).collect()
}
