//! Reading numbers back under whatever split they are needed.
//!
//! One law: a number is used only after the length and the checksum of its file were found right, and each number that is
//! asked for is put in its place exactly once, or the reading fails. Where several ranks wrote the same numbers, the first
//! file in the manifest's order is the one that counts.

use super::gaps::{Gaps, Move, check_shape};
use super::manifest::Manifest;
use super::{CheckpointError, EntryRecord, FileRecord, Kind, State};
use crate::mapped_file::MappedFile;
use crate::shard::Shard;
use crate::tensor_file::TensorFile;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use xxhash_rust::xxh3::xxh3_64;

/// A complete checkpoint. Ranks on threads can share one: each file is opened and checked once, when a number in it is
/// first needed.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    manifest: Manifest,
    /// Files that were found right.
    checked: Vec<Mutex<Option<Arc<TensorFile>>>>,
    /// Of every kind and tensor the entries, as file and entry in it.
    places: BTreeMap<(Kind, String), Vec<(usize, usize)>>,
}

impl Checkpoint {
    pub(super) fn new(path: PathBuf, manifest: Manifest) -> Self {
        let mut places: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (i, file) in manifest.files.iter().enumerate() {
            for (j, entry) in file.entries.iter().enumerate() {
                places.entry((entry.kind, entry.shard.name.clone())).or_default().push((i, j));
            }
        }
        let checked = manifest.files.iter().map(|_| Mutex::new(None)).collect();
        Self { path, manifest, checked, places }
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its step.
    pub fn step(&self) -> u64 {
        self.manifest.step
    }

    /// What was noted of the run beside its numbers.
    pub fn state(&self) -> &State {
        &self.manifest.state
    }

    /// Its files.
    pub fn files(&self) -> &[FileRecord] {
        &self.manifest.files
    }

    /// What is in it: kinds and names of tensors, sorted.
    pub fn tensors(&self) -> impl Iterator<Item = (Kind, &str)> {
        self.places.keys().map(|(kind, name)| (*kind, name.as_str()))
    }

    /// Checks length and checksum of every file.
    ///
    /// # Errors
    /// [`CheckpointError::Length`], [`CheckpointError::Checksum`], or what the file system says.
    pub fn verify(&self) -> Result<(), CheckpointError> {
        (0..self.checked.len()).try_for_each(|file| self.file(file).map(|_| ()))
    }

    /// The numbers of `kind` of `shard`, flat row major, out of whatever files hold them.
    ///
    /// # Errors
    /// [`CheckpointError::Missing`] where some are in none; [`CheckpointError::Shape`] where the tensor was saved with
    /// another shape; [`CheckpointError::Length`] and [`CheckpointError::Checksum`] where a file was damaged;
    /// [`CheckpointError::Shard`].
    pub fn read(&self, kind: Kind, shard: &Shard) -> Result<Vec<f32>, CheckpointError> {
        shard.check()?;
        let mut gaps = Gaps::new(shard);
        let mut own = vec![0.0; shard.len()];
        let places = self.places.get(&(kind, shard.name.clone())).map(Vec::as_slice).unwrap_or_default();
        for (file, entry) in places {
            let record = self.manifest.files.get(*file).and_then(|record| record.entries.get(*entry));
            let Some(record) = record else { continue };
            check_shape(shard, record, &self.path)?;
            let moves = gaps.fill(record);
            if !moves.is_empty() {
                self.copy(*file, record, &moves, &mut own)?;
            }
        }
        gaps.check_closed(kind, shard, &self.path)?;
        Ok(own)
    }

    fn copy(&self, file: usize, record: &EntryRecord, moves: &[Move], own: &mut [f32]) -> Result<(), CheckpointError> {
        let file = self.file(file)?;
        let numbers = record.part.len();
        let found = file.tensor(&record.tensor)?.filter(|found| found.shape == [numbers]);
        let found = found.ok_or_else(|| CheckpointError::NotInFile {
            path: file.path().to_owned(),
            tensor: record.tensor.clone(),
            numbers,
        })?;
        for (from, to) in moves {
            if let Some(to) = own.get_mut(*to..to + from.len()) {
                found.copy(from.clone(), to)?;
            }
        }
        Ok(())
    }

    /// A file, found right now or before.
    fn file(&self, index: usize) -> Result<Arc<TensorFile>, CheckpointError> {
        let missing =
            || CheckpointError::Records { path: self.path.clone(), reason: format!("it has no file {index}") };
        let (slot, record) = self.checked.get(index).zip(self.manifest.files.get(index)).ok_or_else(missing)?;
        // A panic of another thread leaves the slot empty or full, never in between.
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = slot.as_ref() {
            return Ok(Arc::clone(file));
        }
        let path = self.path.join(&record.name);
        let map = MappedFile::open(&path)?;
        let (expected, found) = (record.bytes, map.len() as u64);
        if expected != found {
            return Err(CheckpointError::Length { path, expected, found });
        }
        let (expected, found) = (record.checksum, xxh3_64(&map));
        if expected != found {
            return Err(CheckpointError::Checksum { path, expected, found });
        }
        let file = Arc::new(TensorFile::of(&path, map)?);
        *slot = Some(Arc::clone(&file));
        Ok(file)
    }
}
