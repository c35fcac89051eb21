//! Numbers as people read them: few digits, with their unit.

use pipewright_ir::task::MemoryClass;

/// `value` with `digits` significant digits at least before rounding, without trailing zeros.
pub(super) fn number(value: f64, digits: i32) -> String {
    if !value.is_finite() {
        return "unknown".to_owned();
    }
    let mut whole_digits = 1;
    let mut rest = value.abs();
    while rest >= 10.0 {
        rest /= 10.0;
        whole_digits += 1;
    }
    while rest > 0.0 && rest < 1.0 && whole_digits > -6 {
        rest *= 10.0;
        whole_digits -= 1;
    }
    let decimals = usize::try_from(digits - whole_digits).unwrap_or(0);
    trimmed(format!("{value:.decimals$}"))
}

fn trimmed(text: String) -> String {
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    };
    if text == "-0" { "0".to_owned() } else { text.replace('-', MINUS) }
}

/// A minus sign as wide as a plus.
const MINUS: &str = "\u{2212}";

/// A share as `27.3 %`.
pub(super) fn percent(share: f64) -> String {
    format!("{} %", trimmed(format!("{:.1}", share * 100.0)))
}

/// `value` against `base` as `+3.2 %`, from ten times on as `12.5 x`; `None` where there is nothing to compare with.
pub(super) fn difference(value: f64, base: f64) -> Option<String> {
    let share = (base > 0.0).then(|| value / base - 1.0)?;
    if share >= 9.0 {
        return Some(format!("{} x", trimmed(format!("{:.1}", share + 1.0))));
    }
    let text = percent(share);
    Some(match text.as_str() {
        "0 %" => "±0 %".to_owned(),
        _ if share > 0.0 => format!("+{text}"),
        _ => text,
    })
}

/// `count` with its word.
pub(super) fn count(count: usize, one: &str, many: &str) -> String {
    let word = if count == 1 { one } else { many };
    format!("{count} {word}")
}

/// The unit in which sizes up to `largest` bytes read well: its name and its bytes \[B\].
pub(super) fn byte_unit(largest: f64) -> (&'static str, f64) {
    let units = [("GiB", 1024.0 * 1024.0 * 1024.0), ("MiB", 1024.0 * 1024.0), ("KiB", 1024.0)];
    units.into_iter().find(|(_, size)| largest >= *size).unwrap_or(("B", 1.0))
}

/// A size as `3.25 GiB`.
pub(super) fn bytes(size: f64) -> String {
    let (name, unit) = byte_unit(size);
    format!("{} {name}", number(size / unit, 3))
}

/// The legend's word for a class of memory.
pub(super) fn class(class: MemoryClass) -> &'static str {
    match class {
        MemoryClass::Optimizer => "optimizer state",
        MemoryClass::Buffers => "buffers and workspace",
        MemoryClass::Overhead => "framework overhead",
        other => other.name(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let shown: Vec<_> = [33.0, 28.5, 0.001_234_5, 12345.6, 0.0, -1.5].map(|n| number(n, 4)).into();
        assert_eq!(shown, ["33", "28.5", "0.001234", "12346", "0", "\u{2212}1.5"]);
    }

    #[test]
    fn differences_carry_their_sign() {
        assert_eq!(difference(28.5, 33.0).as_deref(), Some("\u{2212}13.6 %"));
        assert_eq!(difference(34.0, 33.0).as_deref(), Some("+3 %"));
        assert_eq!(difference(33.0, 33.0).as_deref(), Some("±0 %"));
        assert_eq!(difference(412.5, 33.0).as_deref(), Some("12.5 x"));
        assert_eq!(difference(33.0, 0.0), None);
    }

    #[test]
    fn sizes_choose_their_unit() {
        assert_eq!([512.0, 1536.0, 3.0 * 1024.0 * 1024.0 * 1024.0].map(bytes), ["512 B", "1.5 KiB", "3 GiB"]);
    }
}
