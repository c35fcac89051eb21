//! One safetensors file: read in place, written in a stream.
//!
//! One law: of a file that is read only the header and the numbers asked for are looked at. What is written depends on
//! what is given alone; the `safetensors` crate reads and checks headers, but writes their metadata in the order of a
//! hash map, so headers are written here.

use crate::atomic_file::FileError;
use crate::mapped_file::MappedFile;
use half::{bf16, f16};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, Metadata, SafeTensorError};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Numbers that are turned into bytes at a time.
const CHUNK: usize = 1 << 14;

/// Why a file is not one of tensors that can be read.
#[derive(Debug, thiserror::Error)]
pub enum TensorFileError {
    /// The file system refused.
    #[error(transparent)]
    File(#[from] FileError),
    /// It is not a safetensors file, or a damaged one.
    #[error("{} is not a whole safetensors file: {reason}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: SafeTensorError,
    },
    /// Numbers of a kind that is not read here.
    #[error("{name} in {} is of dtype {found}; known are F32, F16 and BF16", path.display())]
    Dtype {
        /// The tensor.
        name: String,
        /// Its dtype.
        found: String,
        /// The file.
        path: PathBuf,
    },
    /// Fewer numbers than asked for.
    #[error("{name} in {} has {found} numbers, but numbers {} to {} were asked for", path.display(), asked.start, asked.end)]
    Range {
        /// The tensor.
        name: String,
        /// Numbers that it has.
        found: usize,
        /// Numbers asked for.
        asked: Range<usize>,
        /// The file.
        path: PathBuf,
    },
}

/// An open file.
#[derive(Debug)]
pub(crate) struct TensorFile {
    path: PathBuf,
    map: MappedFile,
    header: Metadata,
    /// Where the numbers begin \[B\].
    data: usize,
}

/// Numbers of one tensor of an open file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers<'a> {
    name: &'a str,
    path: &'a Path,
    dtype: Dtype,
    bytes: &'a [u8],
    /// Its shape.
    pub(crate) shape: &'a [usize],
}

impl TensorFile {
    /// Opens the file at `path` and reads its header.
    ///
    /// # Errors
    /// [`TensorFileError::File`], [`TensorFileError::Format`].
    pub(crate) fn open(path: &Path) -> Result<Self, TensorFileError> {
        Self::of(path, MappedFile::open(path)?)
    }

    /// Reads the header of the file at `path`, mapped already.
    ///
    /// # Errors
    /// [`TensorFileError::Format`].
    pub(crate) fn of(path: &Path, map: MappedFile) -> Result<Self, TensorFileError> {
        let header = SafeTensors::read_metadata(&map);
        let (length, header) = header.map_err(|reason| TensorFileError::Format { path: path.to_owned(), reason })?;
        Ok(Self { path: path.to_owned(), map, header, data: size_of::<u64>() + length })
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Names of its tensors, in the order of their numbers.
    pub(crate) fn names(&self) -> Vec<String> {
        self.header.offset_keys()
    }

    /// The tensor `name`, if it is here.
    ///
    /// # Errors
    /// [`TensorFileError::Dtype`].
    pub(crate) fn tensor<'a>(&'a self, name: &'a str) -> Result<Option<Numbers<'a>>, TensorFileError> {
        let Some(info) = self.header.info(name) else { return Ok(None) };
        if !matches!(info.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16) {
            let (name, found) = (name.to_owned(), info.dtype.to_string());
            return Err(TensorFileError::Dtype { name, found, path: self.path.clone() });
        }
        let (start, end) = info.data_offsets;
        // The header was checked against the length of the file.
        let bytes = self.map.get(self.data + start..self.data + end).unwrap_or_default();
        Ok(Some(Numbers { name, path: &self.path, dtype: info.dtype, bytes, shape: &info.shape }))
    }
}

impl Numbers<'_> {
    /// Its dtype, by name.
    pub(crate) fn dtype(&self) -> String {
        self.dtype.to_string()
    }

    /// The flat row-major numbers `range` into `to`, which is as long.
    ///
    /// # Errors
    /// [`TensorFileError::Range`] where the tensor has no such numbers.
    pub(crate) fn copy(&self, range: Range<usize>, to: &mut [f32]) -> Result<(), TensorFileError> {
        let width = self.dtype.bitsize() / 8;
        let bytes = range.start.checked_mul(width).zip(range.end.checked_mul(width));
        let Some(bytes) = bytes.and_then(|(start, end)| self.bytes.get(start..end)) else {
            let (name, found) = (self.name.to_owned(), self.bytes.len() / width);
            return Err(TensorFileError::Range { name, found, asked: range, path: self.path.to_owned() });
        };
        match self.dtype {
            Dtype::F16 => convert(bytes, to, |raw| f16::from_le_bytes(raw).to_f32()),
            Dtype::BF16 => convert(bytes, to, |raw| bf16::from_le_bytes(raw).to_f32()),
            _ => convert(bytes, to, f32::from_le_bytes),
        }
        Ok(())
    }
}

fn convert<const N: usize>(bytes: &[u8], to: &mut [f32], number: impl Fn([u8; N]) -> f32) {
    for (to, raw) in to.iter_mut().zip(bytes.as_chunks::<N>().0) {
        *to = number(*raw);
    }
}

/// A tensor to write, in F32.
pub(crate) struct Tensor<'a> {
    pub(crate) name: &'a str,
    pub(crate) shape: &'a [usize],
    /// Flat row major; the caller has checked that there are as many as the shape says.
    pub(crate) values: &'a [f32],
}

/// Writes a file of `tensors`, in their order, with `metadata` in its header.
///
/// # Errors
/// What `out` says.
pub(crate) fn write(
    out: &mut dyn Write,
    tensors: &[Tensor<'_>],
    metadata: &BTreeMap<String, String>,
) -> io::Result<()> {
    let mut header = Map::new();
    if !metadata.is_empty() {
        header.insert("__metadata__".to_owned(), json!(metadata));
    }
    let mut start = 0;
    for tensor in tensors {
        let end = start + size_of_val(tensor.values);
        let info: Value = json!({ "dtype": "F32", "shape": tensor.shape, "data_offsets": [start, end] });
        header.insert(tensor.name.to_owned(), info);
        start = end;
    }
    let mut header = serde_json::to_vec(&header)?;
    // Numbers begin at a multiple of 8 bytes, as the format asks.
    header.resize(header.len().next_multiple_of(size_of::<u64>()), b' ');
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    let mut bytes = Vec::with_capacity(CHUNK * size_of::<f32>());
    for chunk in tensors.iter().flat_map(|tensor| tensor.values.chunks(CHUNK)) {
        bytes.clear();
        bytes.extend(chunk.iter().flat_map(|value| value.to_le_bytes()));
        out.write_all(&bytes)?;
    }
    Ok(())
}
