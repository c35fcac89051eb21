//! Reading a scenario: file, JSON, types, plans; every fault at its place.

use super::failure::{Failure, Fault, Place};
use super::locate;
use miette::NamedSource;
use pipewright::ir::fault::Fault as PlanFault;
use pipewright::ir::plan::{self, Plan};
use pipewright::ir::scenario::{Scenario, ScheduleEntry, Variant};
use pipewright::ir::schedules;
use std::path::{Path, PathBuf};

/// A scenario that was read and resolved.
pub(crate) struct Loaded {
    pub(crate) scenario: Scenario,
    pub(crate) plans: Vec<Plan>,
    /// Plan -> the scenario that it comes from, with its schedule alone.
    origins: Vec<Scenario>,
    /// Where the scenario lies: paths in it are relative to this.
    pub(crate) folder: PathBuf,
    text: String,
    name: String,
}

impl Loaded {
    /// The scenario that a plan comes from, with its schedule alone.
    pub(crate) fn origin(&self, plan: usize) -> Scenario {
        self.origins.get(plan).unwrap_or(&self.scenario).clone()
    }

    /// A path that the scenario names.
    pub(crate) fn path(&self, named: &str) -> PathBuf {
        self.folder.join(named)
    }

    /// The text of a file that the scenario names, or why it cannot be read.
    pub(crate) fn read_beside(&self, named: &str) -> Result<String, String> {
        std::fs::read_to_string(self.path(named)).map_err(|e| e.to_string())
    }

    /// A fault at a JSON path of this scenario.
    pub(crate) fn fault(&self, path: &str, code: &str, message: String, help: impl Into<String>) -> Failure {
        let fault = PlanFault::new(path, "", message, help);
        Failure::Faults(vec![Fault { code: code.to_owned(), ..place(&self.text, &self.name, fault) }])
    }

    /// Says on stderr what is legal but worth a word.
    pub(crate) fn warn(&self) {
        let mut said: Vec<&str> = Vec::new();
        for warning in self.plans.iter().flat_map(|p| &p.warnings) {
            if !said.contains(&warning.as_str()) {
                super::output::note(&format!("warning: {warning}"));
                said.push(warning);
            }
        }
    }
}

/// Reads `file` (`-` is stdin) and resolves its schedules, or only those named.
pub(crate) fn load(file: &str, only: &[String]) -> Result<Loaded, Failure> {
    let (text, folder) = read(file)?;
    load_text(text, folder, file, only)
}

/// Resolves the schedules of the scenario `text`, which was read from `file` in `folder`; those of each variant, if it has
/// any.
pub(crate) fn load_text(text: String, folder: PathBuf, file: &str, only: &[String]) -> Result<Loaded, Failure> {
    let value = parse_json(&text, file)?;
    let mut scenario = parse(value.clone(), &text, file)?;
    let variants = std::mem::take(&mut scenario.variants);
    let (mut plans, mut origins, mut faults) = (Vec::new(), Vec::new(), Vec::new());
    let mut add = |scenario: &mut Scenario, variant: Option<(usize, &Variant)>| {
        let all = std::mem::take(&mut scenario.schedules);
        let chosen = choose(&all, only);
        scenario.schedules = chosen.iter().map(|(_, entry)| entry.clone()).collect();
        let read_beside = |named: &str| std::fs::read_to_string(folder.join(named)).map_err(|e| e.to_string());
        match plan::resolve(scenario, &read_beside) {
            Ok(resolved) => {
                let alone = |entry: &ScheduleEntry| Scenario { schedules: vec![entry.clone()], ..scenario.clone() };
                origins.extend(scenario.schedules.iter().map(alone));
                let several = resolved.len() > 1;
                plans.extend(resolved.into_iter().map(|plan| match variant {
                    Some((_, variant)) if several => Plan { name: format!("{}: {}", variant.name, plan.name), ..plan },
                    Some((_, variant)) => Plan { name: variant.name.clone(), ..plan },
                    None => plan,
                }));
            }
            Err(found) => faults.extend(found.into_iter().map(|fault: PlanFault| {
                let beside = place_beside(&folder, &fault);
                let mut fault = rename(fault, &chosen);
                if let Some((i, variant)) = variant {
                    let own = variant.set.keys().any(|path| fault.path.starts_with(path.as_str()));
                    fault.message = format!("variant {}: {}", variant.name, fault.message);
                    fault.path = if own { format!("variants[{i}].set") } else { fault.path };
                }
                let fault = place(&text, file, fault);
                Fault { place: beside.or(fault.place), ..fault }
            })),
        }
    };
    for (i, variant) in variants.iter().enumerate() {
        let mut own = parse(variant.of(&value), &text, file)?;
        add(&mut own, Some((i, variant)));
    }
    let all = scenario.schedules.clone();
    if variants.is_empty() {
        add(&mut scenario, None);
    } else {
        scenario.schedules = all;
    }
    if faults.is_empty() {
        Ok(Loaded { scenario, plans, origins, folder, text, name: file.to_owned() })
    } else {
        Err(Failure::Faults(faults))
    }
}

/// The text of `file` (`-` is stdin), and the folder that paths in it are relative to.
pub(crate) fn read(file: &str) -> Result<(String, PathBuf), Failure> {
    let text = if file == "-" { std::io::read_to_string(std::io::stdin()) } else { std::fs::read_to_string(file) };
    let text = text.map(|text| text.trim_start_matches('\u{feff}').to_owned()).map_err(|reason| Failure::Usage {
        message: format!("cannot read the scenario {file}: {reason}"),
        help: "scenarios/ has examples; `pipewright schema` describes the format".to_owned(),
    })?;
    let folder = Path::new(file).parent().map_or_else(PathBuf::new, Path::to_owned);
    Ok((text, folder))
}

/// A fault of the text itself, at a span of it.
fn text_fault(
    (text, file): (&str, &str),
    path: &str,
    message: String,
    help: String,
    code: &str,
    span: Option<(usize, usize)>,
) -> Failure {
    let place = span.map(|span| Place { source: NamedSource::new(file, text.to_owned()), span });
    Failure::Faults(vec![Fault { message, help, code: code.to_owned(), path: path.to_owned(), place }])
}

fn parse_json(text: &str, file: &str) -> Result<serde_json::Value, Failure> {
    let fault = |message, help: &str, code, span| text_fault((text, file), "", message, help.to_owned(), code, span);
    let value = locate::parse(text).map_err(|(message, span)| {
        let help = "a scenario is JSON; comments and trailing commas are allowed";
        fault(format!("this is not valid JSON: {message}"), help, "scenario::syntax", Some(span))
    })?;
    if value.is_null() {
        let help = "scenarios/ has examples; `pipewright schema` describes the format";
        return Err(fault("the scenario is empty".to_owned(), help, "scenario::empty", None));
    }
    Ok(value)
}

fn parse(value: serde_json::Value, text: &str, file: &str) -> Result<Scenario, Failure> {
    let fault = |path: &str, message, help, code: &str, span| text_fault((text, file), path, message, help, code, span);
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let message = plain_words(&error.inner().to_string());
        let (unknown, nearest) = unknown_field(&message);
        let span = match &unknown {
            Some(key) => locate::key_span(text, parent(&path, key), key),
            None => locate::span(text, &path),
        };
        let at = if path == "." { String::new() } else { format!("{path}: ") };
        match unknown {
            Some(_) => fault(&path, format!("{at}{message}"), nearest, "scenario::unknown-field", span),
            None => fault(&path, format!("{at}{message}"), String::new(), "scenario::type", span),
        }
    })
}

/// The path of the object around an unknown key, whether or not the key ends the path.
fn parent<'a>(path: &'a str, key: &str) -> &'a str {
    path.strip_suffix(key).map_or(path, |rest| rest.trim_end_matches('.'))
}

/// serde speaks of Rust's types; users think in JSON's.
fn plain_words(message: &str) -> String {
    let mut message = message.to_owned();
    for (rust, plain) in [
        ("expected u32", "expected a whole number from 0 to 4294967295"),
        ("expected u64", "expected a whole number of at least 0"),
        ("expected f64", "expected a number"),
        ("expected an array", "expected a list"),
        ("expected a sequence", "expected a list"),
        ("invalid type: sequence", "invalid type: list"),
        ("invalid type: map", "invalid type: object"),
    ] {
        message = message.replace(rust, plain);
    }
    match message.find("expected struct ") {
        Some(at) => format!("{}expected an object", &message[..at]),
        None => message,
    }
}

/// The unknown field that a message of serde's speaks of, and which known one comes nearest. serde puts names in
/// backticks: the unknown one first, the known ones after it.
fn unknown_field(message: &str) -> (Option<String>, String) {
    if !message.starts_with("unknown field") {
        return (None, String::new());
    }
    let mut names = message.split('`').skip(1).step_by(2);
    let Some(unknown) = names.next() else { return (None, String::new()) };
    let likeness = |name: &str| strsim::jaro_winkler(unknown, name);
    let nearest = names.max_by(|a, b| likeness(a).total_cmp(&likeness(b))).filter(|name| likeness(name) > 0.7);
    (Some(unknown.to_owned()), nearest.map_or_else(String::new, |name| format!("did you mean `{name}`?")))
}

/// The entries of the scenario that are meant by `only`, with their place in the file; a family that the scenario
/// does not list is added.
fn choose(all: &[ScheduleEntry], only: &[String]) -> Vec<(Option<usize>, ScheduleEntry)> {
    let numbered = || all.iter().cloned().enumerate().map(|(i, entry)| (Some(i), entry));
    if only.is_empty() {
        return numbered().collect();
    }
    let family = |name: &str| schedules::find(name).map_or(name.to_ascii_lowercase(), |f| f.name.to_owned());
    let mut chosen = Vec::new();
    for name in only {
        let before = chosen.len();
        chosen.extend(numbered().filter(|(_, entry)| family(&entry.name) == family(name)));
        if chosen.len() == before {
            chosen.push((None, ScheduleEntry::named(name)));
        }
    }
    chosen
}

/// Faults count the chosen schedules; the file counts all.
fn rename(mut fault: PlanFault, chosen: &[(Option<usize>, ScheduleEntry)]) -> PlanFault {
    for (i, (original, _)) in chosen.iter().enumerate() {
        if let Some(rest) = fault.path.strip_prefix(&format!("schedules[{i}]")) {
            fault.path = original.map_or_else(|| "schedules".to_owned(), |n| format!("schedules[{n}]{rest}"));
            break;
        }
    }
    fault
}

/// A fault with its place in the text.
pub(crate) fn place(text: &str, file: &str, fault: PlanFault) -> Fault {
    let place =
        locate::span(text, &fault.path).map(|span| Place { source: NamedSource::new(file, text.to_owned()), span });
    Fault { message: fault.message, help: fault.help, code: fault.code.to_owned(), path: fault.path, place }
}

/// The place of a fault in a file that the scenario names, which has just been read.
fn place_beside(folder: &Path, fault: &PlanFault) -> Option<Place> {
    let beside = fault.file.as_ref()?;
    let text = std::fs::read_to_string(folder.join(&beside.file)).ok()?;
    let (text, span) = around(text, beside.span);
    Some(Place { source: NamedSource::new(&beside.file, text), span })
}

/// Bytes of a long line that are drawn on each side of a place.
const BESIDE: usize = 40;

/// A text with the line of a place cut to what fits on a screen: a line of a CSV can have thousands of cells.
fn around(text: String, (start, length): (usize, usize)) -> (String, (usize, usize)) {
    let Some((before, after)) = text.split_at_checked(start) else { return (text, (start, length)) };
    let line = before.rfind('\n').map_or(0, |at| at + 1);
    let end = start + after.find('\n').unwrap_or(after.len());
    if end - line <= length + 2 * BESIDE {
        return (text, (start, length));
    }
    let from = text.floor_char_boundary(start.saturating_sub(BESIDE).max(line));
    let to = text.ceil_char_boundary((start + length + BESIDE).min(end));
    let mut cut = "\n".repeat(text[..line].matches('\n').count());
    cut.push_str(if from > line { "..." } else { "" });
    let at = cut.len() + (start - from);
    cut.push_str(&text[from..to]);
    cut.push_str(if to < end { "..." } else { "" });
    (cut, (at, length))
}

#[cfg(test)]
mod tests {
    use super::around;

    #[test]
    fn long_lines_are_cut_around_the_place() {
        let long = format!("first\n{}here{}\nlast", "é,".repeat(500), ",0F0".repeat(500));
        let start = long.find("here").unwrap();
        let (text, (at, length)) = around(long, (start, 4));
        assert_eq!(&text[at..at + length], "here");
        assert!(text.starts_with("\n...") && text.ends_with("...") && text.len() < 100, "{text}");
        let short = "0F0,x,0B0\n".to_owned();
        assert_eq!(around(short.clone(), (4, 1)), (short, (4, 1)));
    }
}
