//! The two streams: results to stdout, all else to stderr.

use super::failure::Failure;
use serde::Serialize;
use std::io::Write;
use std::path::Path;

/// Prints a result.
pub(crate) fn result(text: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(Failure::Output)
}

/// Prints a result as JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|e| Failure::Output(e.into()))?;
    result(&format!("{text}\n"))
}

/// Tells the user something beside the result.
pub(crate) fn note(text: &str) {
    // There is nobody to tell that stderr is gone.
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Writes a file whole, making its folder.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let fail = |reason| Failure::Write { path: path.to_owned(), reason };
    if let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(fail)?;
    }
    std::fs::write(path, bytes).map_err(fail)
}

/// A file name for each of several names: [`slug`], with a number where two would be the same.
pub(crate) fn slugs<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut slugs: Vec<String> = Vec::new();
    for name in names {
        let plain = slug(name);
        let numbered = (2..).map(|n| format!("{plain}-{n}"));
        let free = std::iter::once(plain.clone()).chain(numbered).find(|s| !slugs.contains(s));
        slugs.push(free.unwrap_or(plain));
    }
    slugs
}

/// A name as a file name: `interleaved-1f1b v=2` becomes `interleaved-1f1b-v2`.
pub(crate) fn slug(name: &str) -> String {
    let mut slug = String::new();
    for c in name.chars().filter(|c| *c != '=') {
        let c = if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '-' };
        if c != '-' || !slug.ends_with('-') {
            slug.push(c);
        }
    }
    let slug = slug.trim_matches('-').to_owned();
    if slug.is_empty() { "unnamed".to_owned() } else { slug }
}
