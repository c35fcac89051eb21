//! A file in memory, read only, of which no byte is loaded before it is looked at.
//!
//! One law: the bytes are looked at only through the slice that is given out here.
//!
//! # Why the map is sound
//!
//! A map of a file is a slice of bytes that is only as constant as the file is: if another process writes into the file
//! the bytes change under the reference, and if it makes the file shorter, looking at what is gone ends this process by a
//! signal (SIGBUS), not by undefined behaviour. Rust cannot rule the first out, so the call is unsafe. Here the file is
//! opened read only, every bit pattern is a valid `u8`, and no reference to mapped bytes is ever turned into anything
//! else: numbers are copied out with `from_le_bytes`, headers are parsed once into values of their own, and no length or
//! offset that was checked is read from the map again. Files that pipewright writes itself are never written in place
//! (`atomic_file` gives a finished file its name), so an open map keeps the file that it was made of. What remains is a
//! foreign program that rewrites a weights file in place during the load; with that the numbers are torn, as they would be
//! with ordinary reads.
#![expect(unsafe_code, reason = "mapping a file is unsafe; the safety argument is above")]

use crate::atomic_file::FileError;
use memmap2::Mmap;
use std::fs::File;
use std::ops::Deref;
use std::path::Path;

/// The bytes of a file.
#[derive(Debug)]
pub(crate) struct MappedFile(Option<Mmap>);

impl MappedFile {
    /// Maps the file at `path`.
    ///
    /// # Errors
    /// What the system says to opening or mapping it.
    pub(crate) fn open(path: &Path) -> Result<Self, FileError> {
        let file = File::open(path).map_err(FileError::of("open", path))?;
        let length = file.metadata().map_err(FileError::of("read the length of", path))?.len();
        if length == 0 {
            // Not every system maps nothing.
            return Ok(Self(None));
        }
        // SAFETY: see the head of this file.
        let map = unsafe { Mmap::map(&file) }.map_err(FileError::of("map", path))?;
        Ok(Self(Some(map)))
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }
}
