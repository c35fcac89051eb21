//! The weights of a model in Hugging Face's form: a directory of safetensors files.
//!
//! One law: a rank looks at the bytes of its own shards only, and a tensor that is not exactly what was asked for is
//! refused with its name, its shape, its dtype and its file.

mod config;
mod names;
mod save;

pub use config::{ConfigError, config};
pub use save::{MAX_FILE_BYTES, save, save_config, save_in_files_of};

use crate::atomic_file::FileError;
use crate::shard::{Shard, ShardError};
use crate::tensor_file::{TensorFile, TensorFileError};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Name of the only file of a model.
pub const SINGLE_FILE: &str = "model.safetensors";

/// Name of the list of the files of a model that has several.
pub const INDEX_FILE: &str = "model.safetensors.index.json";

/// Why weights cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// The file system refused.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file cannot be used.
    #[error(transparent)]
    TensorFile(#[from] TensorFileError),
    /// A shard that is none of its tensor.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// There are no weights.
    #[error("there is no {SINGLE_FILE} and no {INDEX_FILE} in {}", path.display())]
    Nothing {
        /// The directory.
        path: PathBuf,
    },
    /// The list of files is not one.
    #[error("{} is not a list of weight files: {reason}", path.display())]
    Index {
        /// The list.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// No such tensor.
    #[error("there is no tensor {} among the {tensors} of {}", names.join(" or "), path.display())]
    NoTensor {
        /// The names under which it was looked for.
        names: Vec<String>,
        /// Tensors that are there.
        tensors: usize,
        /// The file, or the list of files.
        path: PathBuf,
    },
    /// A file without a tensor that the list says it has.
    #[error("{} says that {name} is in {}, but it is not", index.display(), path.display())]
    NotInFile {
        /// The tensor.
        name: String,
        /// The list.
        index: PathBuf,
        /// The file.
        path: PathBuf,
    },
    /// A tensor of another shape.
    #[error("{name} in {} is {found:?} of dtype {dtype}, but the model needs {expected:?}", path.display())]
    Shape {
        /// The tensor, as the file names it.
        name: String,
        /// Shape that the model needs.
        expected: Vec<usize>,
        /// Shape in the file.
        found: Vec<usize>,
        /// Dtype in the file.
        dtype: String,
        /// The file.
        path: PathBuf,
    },
    /// A model that has no config.json.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A tensor to be saved that is a part of one, or has another number of numbers.
    #[error("{name} cannot be saved: {reason}")]
    NotWhole {
        /// The tensor.
        name: String,
        /// What is wrong.
        reason: String,
    },
}

/// The weights of a model on disk. Ranks on threads can share one.
#[derive(Debug)]
pub struct Weights {
    /// The file, or the list of files.
    source: PathBuf,
    files: Vec<TensorFile>,
    /// Of every tensor the index of its file.
    tensors: BTreeMap<String, usize>,
}

/// What is read of `model.safetensors.index.json`.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Weights {
    /// Opens the weights at `path`: a safetensors file, a list of them, or a directory that has one or the other (the file
    /// first, as the transformers library looks).
    ///
    /// # Errors
    /// [`WeightsError::Nothing`], [`WeightsError::Index`], [`WeightsError::NotInFile`], or what is wrong with a file.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        if !path.is_dir() {
            let is_index = path.extension().is_some_and(|extension| extension == "json");
            return if is_index { Self::open_index(path) } else { Self::open_file(path) };
        }
        let (single, index) = (path.join(SINGLE_FILE), path.join(INDEX_FILE));
        if single.exists() {
            Self::open_file(&single)
        } else if index.exists() {
            Self::open_index(&index)
        } else {
            Err(WeightsError::Nothing { path: path.to_owned() })
        }
    }

    fn open_file(path: &Path) -> Result<Self, WeightsError> {
        let file = TensorFile::open(path)?;
        let tensors = file.names().into_iter().map(|name| (name, 0)).collect();
        Ok(Self { source: path.to_owned(), files: vec![file], tensors })
    }

    fn open_index(path: &Path) -> Result<Self, WeightsError> {
        let refuse = |reason: String| WeightsError::Index { path: path.to_owned(), reason };
        let text = fs::read_to_string(path).map_err(FileError::of("read", path))?;
        let index: Index = serde_json::from_str(&text).map_err(|error| refuse(error.to_string()))?;
        let (mut places, mut files, mut tensors) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        for (name, file_name) in index.weight_map {
            let place = match places.get(&file_name) {
                Some(place) => *place,
                None => {
                    let mut components = Path::new(&file_name).components();
                    if !matches!((components.next(), components.next()), (Some(Component::Normal(_)), None)) {
                        return Err(refuse(format!(
                            "{name} is in `{file_name}`, which is not the name of a file beside it"
                        )));
                    }
                    let place = files.len();
                    files.push(TensorFile::open(&path.with_file_name(&file_name))?);
                    places.insert(file_name, place);
                    place
                }
            };
            tensors.insert(name, place);
        }
        Ok(Self { source: path.to_owned(), files, tensors })
    }

    /// Names of its tensors as the files have them, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Whether the output head has a matrix of its own. Where it has none it is the token embedding.
    pub fn has_output_head(&self) -> bool {
        names::variants(names::OUTPUT_HEAD).iter().any(|name| self.tensors.contains_key(name))
    }

    /// The numbers of `shard`, flat row major. Its tensor may have any of the names that checkpoints of its model are
    /// known to give it, and an output head that is not there is the token embedding.
    ///
    /// # Errors
    /// [`WeightsError::NoTensor`], [`WeightsError::Shape`], [`WeightsError::NotInFile`], [`WeightsError::Shard`],
    /// `TensorFileError::Dtype`.
    pub fn read(&self, shard: &Shard) -> Result<Vec<f32>, WeightsError> {
        shard.check()?;
        let mut names = names::variants(&shard.name);
        if shard.name == names::OUTPUT_HEAD {
            names.extend(names::token_embeddings());
        }
        let Some((name, place)) = names.iter().find_map(|name| self.tensors.get_key_value(name)) else {
            return Err(WeightsError::NoTensor { names, tensors: self.tensors.len(), path: self.source.clone() });
        };
        let missing = |path: &Path| {
            let (name, path) = (name.clone(), path.to_owned());
            WeightsError::NotInFile { name, index: self.source.clone(), path }
        };
        let file = self.files.get(*place).ok_or_else(|| missing(&self.source))?;
        let numbers = file.tensor(name)?.ok_or_else(|| missing(file.path()))?;
        if numbers.shape != shard.shape {
            return Err(WeightsError::Shape {
                name: name.clone(),
                expected: shard.shape.clone(),
                found: numbers.shape.to_vec(),
                dtype: numbers.dtype(),
                path: file.path().to_owned(),
            });
        }
        let mut own = vec![0.0; shard.len()];
        for (start, range) in shard.runs() {
            if let Some(to) = own.get_mut(start..start + range.len()) {
                numbers.copy(range, to)?;
            }
        }
        Ok(own)
    }
}

#[cfg(test)]
mod tests;
