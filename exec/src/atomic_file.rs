//! Writing a file so that its name shows either all of it or what was there before.
//!
//! One law: the bytes go to a temporary name in the same directory, reach the disk (fsync), and only then take the final
//! name (rename), which reaches the disk too (fsync of the directory). Whatever stops the process or the machine between
//! two of these steps leaves at most a file with the temporary name, which the next write of the same file replaces.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3Default;

/// What a temporary name ends with.
pub(crate) const TEMPORARY: &str = ".tmp";

/// What the file system refused.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {reason}", path.display())]
pub struct FileError {
    /// What was tried, as a verb.
    pub action: &'static str,
    /// The file or directory.
    pub path: PathBuf,
    /// What the system said.
    pub reason: io::Error,
}

impl FileError {
    /// For `map_err`: the error of trying to `action` the file or directory at `path`.
    pub(crate) fn of(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |reason| Self { action, path, reason }
    }
}

/// Length and checksum of what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    /// Length \[B\].
    pub(crate) bytes: u64,
    /// XXH3 of all of it.
    pub(crate) checksum: u64,
}

/// Writes the file at `path` with what `fill` puts into its writer.
///
/// # Errors
/// With the step that failed; the temporary file is removed then, and what was at `path` stays as it was unless the last
/// step, the fsync of the directory, is what failed.
pub(crate) fn write(path: &Path, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<Written, FileError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(TEMPORARY);
    let temporary = path.with_file_name(name);
    let written = fill_temporary(&temporary, fill).and_then(|written| {
        crash::point("rename").map_err(FileError::of("rename", &temporary))?;
        fs::rename(&temporary, path).map_err(FileError::of("give its name to", path))?;
        Ok(written)
    });
    if written.is_err() && !crash::happened() {
        // The reason to report is the first one; a file that cannot be removed either is replaced by the next write.
        let _ = fs::remove_file(&temporary);
    }
    let written = written?;
    sync_directory(path.parent().unwrap_or(Path::new(".")))?;
    Ok(written)
}

fn fill_temporary(temporary: &Path, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<Written, FileError> {
    crash::point("create").map_err(FileError::of("create", temporary))?;
    let file = File::create(temporary).map_err(FileError::of("create", temporary))?;
    let counted = Counted { file, bytes: 0, hash: Xxh3Default::new() };
    let mut writer = BufWriter::with_capacity(1 << 20, counted);
    fill(&mut writer).map_err(FileError::of("write", temporary))?;
    let counted = writer.into_inner().map_err(|e| FileError::of("write", temporary)(e.into_error()))?;
    crash::point("sync").map_err(FileError::of("sync", temporary))?;
    counted.file.sync_all().map_err(FileError::of("sync", temporary))?;
    Ok(Written { bytes: counted.bytes, checksum: counted.hash.digest() })
}

/// Makes the names in a directory reach the disk.
///
/// # Errors
/// What the system says. Where directories cannot be opened as files (Windows) there is nothing to do.
pub(crate) fn sync_directory(directory: &Path) -> Result<(), FileError> {
    crash::point("sync directory").map_err(FileError::of("sync", directory))?;
    if cfg!(unix) {
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        File::open(directory).and_then(|d| d.sync_all()).map_err(FileError::of("sync", directory))?;
    }
    Ok(())
}

/// A file that knows what went into it.
struct Counted {
    file: File,
    bytes: u64,
    hash: Xxh3Default,
}

impl Write for Counted {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if let Err(crash) = crash::point("write") {
            // A write that is cut off has done a part of its work.
            self.file.write_all(data.get(..data.len() / 2).unwrap_or(data))?;
            return Err(crash);
        }
        let count = self.file.write(data)?;
        self.hash.update(data.get(..count).unwrap_or(data));
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The end of the process at a chosen step, for tests; in the library a step never ends it.
#[cfg(not(test))]
pub(crate) mod crash {
    /// A step begins.
    pub(crate) fn point(_step: &'static str) -> std::io::Result<()> {
        Ok(())
    }

    /// Whether the process is to be thought of as ended.
    pub(crate) fn happened() -> bool {
        false
    }
}

/// The end of the process at a chosen step, for tests.
#[cfg(test)]
pub(crate) mod crash {
    use std::cell::Cell;

    thread_local! {
        /// Steps still allowed on this thread; `None` for any number.
        static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
        /// Whether a step was not allowed.
        static ENDED: Cell<bool> = const { Cell::new(false) };
    }

    /// A step begins: an error when it is the one that is not reached any more, or any later one.
    pub(crate) fn point(step: &'static str) -> std::io::Result<()> {
        match LEFT.get() {
            None => Ok(()),
            Some(0) => {
                ENDED.set(true);
                Err(std::io::Error::other(format!("ended before {step}")))
            }
            Some(left) => {
                LEFT.set(Some(left - 1));
                Ok(())
            }
        }
    }

    /// Whether the process is to be thought of as ended.
    pub(crate) fn happened() -> bool {
        ENDED.get()
    }

    /// Runs `protocol` with an end before its step `steps`, counted from 0; also whether it got that far.
    pub(crate) fn before_step<T>(steps: usize, protocol: impl FnOnce() -> T) -> (T, bool) {
        LEFT.set(Some(steps));
        ENDED.set(false);
        let result = protocol();
        LEFT.set(None);
        (result, ENDED.replace(false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_written_file_is_what_was_given_with_its_length_and_checksum() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.bin");
        let data: Vec<u8> = (0..3_000_000u32).map(|i| i as u8).collect();
        let written = write(&path, |out| out.write_all(&data)).unwrap();
        assert_eq!(fs::read(&path).unwrap(), data);
        assert_eq!(written, Written { bytes: 3_000_000, checksum: xxhash_rust::xxh3::xxh3_64(&data) });
        assert_eq!(names(directory.path()), ["a.bin"]);
    }

    #[test]
    fn whatever_step_it_ends_before_the_name_shows_the_old_or_the_new_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.bin");
        let mut steps = 0;
        loop {
            write(&path, |out| out.write_all(b"the old text")).unwrap();
            let (result, ended) = crash::before_step(steps, || write(&path, |out| out.write_all(b"new")));
            let shown = fs::read(&path).unwrap();
            if !ended {
                assert_eq!((result.is_ok(), shown.as_slice()), (true, &b"new"[..]));
                break;
            }
            assert!(result.is_err());
            // Only the last step, the fsync of the directory, is behind the rename.
            assert_eq!(shown, if steps == 4 { b"new".to_vec() } else { b"the old text".to_vec() }, "step {steps}");
            steps += 1;
        }
        assert_eq!(steps, 5, "create, write, sync, rename, sync directory");
    }

    #[test]
    fn a_write_that_fails_leaves_no_temporary_file_and_says_what_it_tried() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.bin");
        let error = write(&path, |_| Err(io::ErrorKind::StorageFull.into())).unwrap_err().to_string();
        assert!(error.starts_with("cannot write ") && error.contains("a.bin.tmp: no storage space"), "{error}");
        assert!(names(directory.path()).is_empty());
        let error = write(&directory.path().join("no/a.bin"), |_| Ok(())).unwrap_err().to_string();
        assert!(error.starts_with("cannot create ") && error.contains("No such file"), "{error}");
    }
}
