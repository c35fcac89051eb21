//! Megatron-core's notation of a layout: `Ettt|(tttt|)*2tttL`.
//!
//! One law: `E` opens the first stage and `L` closes the last one, for that is where they are.

use crate::fault::Fault;

/// Longest layout that is written out.
const MAX_UNITS: usize = 1 << 20;

/// Layers of each stage.
///
/// `|` ends a stage, `,` means nothing, `x*n` and `(...)*n` repeat (Megatron-core, `pipeline_parallel_layer_layout.py`).
pub(super) fn read(text: &str, path: &str) -> Result<Vec<u32>, Vec<Fault>> {
    let fault = |message: String| {
        let help =
            "write E for the embedding, t for a layer, L for the head with its loss, | between stages: Ettt|tttL";
        vec![Fault::new(path, "layout::notation", message, help)]
    };
    let compact: Vec<char> = text.chars().filter(|c| !c.is_whitespace() && *c != ',').collect();
    let mut rest = compact.as_slice();
    let units = group(&mut rest).map_err(fault)?;
    if let Some(c) = rest.first() {
        return Err(fault(format!("`{c}` closes nothing in the layout {text}")));
    }
    let stages: Vec<&[char]> = units.split(|c| *c == '|').collect();
    let mut layers = Vec::with_capacity(stages.len());
    for (s, stage) in stages.iter().enumerate() {
        let (first, last) = (s == 0, s + 1 == stages.len());
        let mut inner = *stage;
        if first {
            inner =
                inner.strip_prefix(&['E']).ok_or_else(|| fault("the first stage does not begin with E".to_owned()))?;
        }
        if last {
            inner = inner.strip_suffix(&['L']).ok_or_else(|| fault("the last stage does not end with L".to_owned()))?;
        }
        // Multi-token prediction stands before the loss.
        if last {
            while let Some(before) = inner.strip_suffix(&['m']) {
                inner = before;
            }
        }
        if let Some(c) = inner.iter().find(|c| **c != 't') {
            let place = match c {
                'E' => "E belongs at the start of the first stage",
                'L' => "L belongs at the end of the last stage",
                'm' => "m belongs before the L of the last stage",
                _ => "it is no part of a model",
            };
            return Err(fault(format!("`{c}` in stage {s} of the layout: {place}")));
        }
        layers.push(u32::try_from(inner.len()).unwrap_or(u32::MAX));
    }
    Ok(layers)
}

/// The units up to the end or a closing bracket, repetitions written out.
fn group(rest: &mut &[char]) -> Result<Vec<char>, String> {
    let mut units = Vec::new();
    while let Some((c, after)) = rest.split_first() {
        let item = match c {
            ')' => break,
            '(' => {
                *rest = after;
                let inner = group(rest)?;
                *rest = rest.strip_prefix(&[')']).ok_or("a bracket of the layout is not closed")?;
                inner
            }
            '*' => return Err("`*` repeats nothing in the layout".to_owned()),
            c => {
                *rest = after;
                vec![*c]
            }
        };
        let times = repetitions(rest)?;
        if item.len().saturating_mul(times).saturating_add(units.len()) > MAX_UNITS {
            return Err(format!("the layout has more than {MAX_UNITS} units"));
        }
        for _ in 0..times {
            units.extend_from_slice(&item);
        }
    }
    Ok(units)
}

/// The number of `*n`, else 1.
fn repetitions(rest: &mut &[char]) -> Result<usize, String> {
    let Some(after) = rest.strip_prefix(&['*']) else { return Ok(1) };
    let digits: String = after.iter().take_while(|c| c.is_ascii_digit()).collect();
    *rest = &after[digits.len()..];
    digits.parse().map_err(|_| format!("`*{digits}` is no repetition"))
}

#[cfg(test)]
mod tests {
    use super::read;

    #[test]
    fn megatrons_notation_is_read() {
        assert_eq!(read("Ettttt|(tttttt|)*10tttttL", "").unwrap(), [5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5]);
        assert_eq!(
            read("Et*3|(tt|)*29,m|L", "").unwrap_err()[0].message,
            "`m` in stage 30 of the layout: m belongs before the L of the last stage"
        );
        assert_eq!(read("Et*3|(tt|)*2mL", "").unwrap(), [3, 2, 2, 0]);
        assert_eq!(read("EttL", "").unwrap(), [2]);
    }

    #[test]
    fn what_cannot_be_is_said() {
        for (text, part) in [
            ("tt|tL", "begin with E"),
            ("Et|tt", "end with L"),
            ("Et|(tL", "not closed"),
            ("Et)|tL", "closes nothing"),
            ("E*|L", "no repetition"),
            ("*3", "repeats nothing"),
            ("Et|Et|L", "start of the first"),
            ("Ex|L", "no part of a model"),
            ("((((Et*999)*999)*999)*999)L", "more than"),
        ] {
            let fault = read(text, "parallel.layout").unwrap_err().remove(0);
            assert!(fault.message.contains(part), "{text}: {}", fault.message);
        }
    }
}
