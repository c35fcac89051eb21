//! Saving whole tensors as Hugging Face does.
//!
//! One law: same tensors, same bytes; a file is written whole or not at all, and the list of files after the files.

use super::{INDEX_FILE, SINGLE_FILE, WeightsError, config};
use crate::atomic_file::{self, FileError, sync_directory};
use crate::shard::Shard;
use crate::tensor_file::{self, Tensor};
use pipewright_ir::model::ModelShape;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// Most numbers of a file, as the transformers library cuts them by default \[B\].
pub const MAX_FILE_BYTES: u64 = 5_000_000_000;

/// Saves whole tensors in `directory`, in files of [`MAX_FILE_BYTES`] at most; see [`save_in_files_of`].
///
/// # Errors
/// As [`save_in_files_of`].
pub fn save(
    directory: &Path,
    tensors: &[(Shard, Vec<f32>)],
    metadata: &BTreeMap<String, String>,
) -> Result<(), WeightsError> {
    save_in_files_of(MAX_FILE_BYTES, directory, tensors, metadata)
}

/// Saves whole tensors in F32 in `directory`, which is made if it is not there: one file, or several of `bytes` at most
/// (a larger tensor has a file of its own) and their list. `metadata` goes into the headers, with the `format` that the
/// transformers library asks for.
///
/// # Errors
/// [`WeightsError::NotWhole`] for a part of a tensor, a wrong number of numbers, or a name given twice; otherwise what the
/// file system says.
pub fn save_in_files_of(
    bytes: u64,
    directory: &Path,
    tensors: &[(Shard, Vec<f32>)],
    metadata: &BTreeMap<String, String>,
) -> Result<(), WeightsError> {
    check(tensors)?;
    let mut metadata = metadata.clone();
    metadata.entry("format".to_owned()).or_insert_with(|| "pt".to_owned());
    fs::create_dir_all(directory).map_err(FileError::of("create", directory))?;
    let files = cut(bytes, tensors);
    if let [only] = files.as_slice() {
        write(&directory.join(SINGLE_FILE), only, &metadata)?;
        return remove(directory, INDEX_FILE);
    }
    let (mut places, mut total) = (BTreeMap::new(), 0);
    for (i, tensors) in files.iter().enumerate() {
        let name = format!("model-{:05}-of-{:05}.safetensors", i + 1, files.len());
        write(&directory.join(&name), tensors, &metadata)?;
        for tensor in tensors {
            total += size_of_val(tensor.values);
            places.insert(tensor.name, name.clone());
        }
    }
    let index = json!({ "metadata": { "total_size": total }, "weight_map": places });
    write_json(&directory.join(INDEX_FILE), &index)?;
    // It would be read in the place of the list.
    remove(directory, SINGLE_FILE)
}

/// Writes the `config.json` of `model` into `directory`, which is made if it is not there.
///
/// # Errors
/// [`WeightsError::Config`] for a model that no model type of Hugging Face has; otherwise what the file system says.
pub fn save_config(directory: &Path, model: &ModelShape) -> Result<(), WeightsError> {
    let config = config(model)?;
    fs::create_dir_all(directory).map_err(FileError::of("create", directory))?;
    write_json(&directory.join("config.json"), &config)
}

fn check(tensors: &[(Shard, Vec<f32>)]) -> Result<(), WeightsError> {
    let mut names = BTreeSet::new();
    for (shard, values) in tensors {
        let name = &shard.name;
        let refuse = |reason: String| Err(WeightsError::NotWhole { name: name.clone(), reason });
        shard.check()?;
        if *shard != Shard::whole(name.clone(), shard.shape.clone()) {
            return refuse(format!("it is {:?} of dimension {} of {:?}", shard.ranges, shard.dim, shard.shape));
        }
        if values.len() != shard.whole_len() {
            return refuse(format!("it is {:?}, but {} numbers were given", shard.shape, values.len()));
        }
        if !names.insert(name) {
            return refuse("it was given twice".to_owned());
        }
    }
    Ok(())
}

/// The tensors of each file, in the order given.
fn cut(bytes: u64, tensors: &[(Shard, Vec<f32>)]) -> Vec<Vec<Tensor<'_>>> {
    let (mut files, mut size) = (vec![Vec::new()], 0);
    for (shard, values) in tensors {
        let own = size_of_val(values.as_slice()) as u64;
        if size > 0 && size + own > bytes {
            files.push(Vec::new());
            size = 0;
        }
        size += own;
        if let Some(file) = files.last_mut() {
            file.push(Tensor { name: &shard.name, shape: &shard.shape, values });
        }
    }
    files
}

fn write(path: &Path, tensors: &[Tensor<'_>], metadata: &BTreeMap<String, String>) -> Result<(), WeightsError> {
    atomic_file::write(path, |out| tensor_file::write(out, tensors, metadata))?;
    Ok(())
}

fn write_json(path: &Path, value: &serde_json::Value) -> Result<(), WeightsError> {
    atomic_file::write(path, |out| writeln!(out, "{value:#}"))?;
    Ok(())
}

/// Removes a file of an earlier save, if it is there.
fn remove(directory: &Path, name: &str) -> Result<(), WeightsError> {
    let path = directory.join(name);
    match fs::remove_file(&path) {
        Ok(()) => Ok(sync_directory(directory)?),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(FileError::of("remove", &path)(error).into()),
    }
}
