//! The font of every picture: DejaVu Sans, carried inside the program.
//!
//! One law: a picture looks the same on a machine without fonts; widths come from this font's own advances.

use resvg::usvg::fontdb;
use std::sync::{Arc, LazyLock};

/// The families an SVG names: the one inside first, then what a browser may have.
pub(super) const FAMILIES: &str = "DejaVu Sans, Verdana, sans-serif";

/// The only fonts PNG pictures are drawn with.
pub(super) static FONTS: LazyLock<Arc<fontdb::Database>> = LazyLock::new(|| {
    let mut fonts = fontdb::Database::new();
    fonts.load_font_data(include_bytes!("fonts/DejaVuSans.ttf").to_vec());
    fonts.load_font_data(include_bytes!("fonts/DejaVuSans-Bold.ttf").to_vec());
    fonts.set_sans_serif_family("DejaVu Sans");
    Arc::new(fonts)
});

/// Width of a text at a font size, both in the same unit.
pub(super) fn width(text: &str, size: f64, bold: bool) -> f64 {
    let table = if bold { &BOLD } else { &REGULAR };
    let advance = |c: char| {
        let index = (c as usize).checked_sub(' ' as usize);
        f64::from(index.and_then(|i| table.get(i)).copied().unwrap_or(OTHER))
    };
    text.chars().map(advance).sum::<f64>() / UNITS_PER_EM * size
}

/// The text, or as much of its beginning as fits into `room` with an ellipsis.
pub(super) fn fitted(text: &str, size: f64, bold: bool, room: f64) -> String {
    if width(text, size, bold) <= room {
        return text.to_owned();
    }
    let mut kept = String::new();
    let mut used = width("\u{2026}", size, bold);
    for c in text.chars() {
        used += width(c.encode_utf8(&mut [0; 4]), size, bold);
        if used > room {
            break;
        }
        kept.push(c);
    }
    format!("{}\u{2026}", kept.trim_end())
}

/// The text in lines of at most `room`, broken at blanks.
pub(super) fn wrapped(text: &str, size: f64, room: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if width(&format!("{line} {word}"), size, false) <= room => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(fitted(word, size, false, room)),
        }
    }
    lines
}

/// Height of capital letters and digits, in font sizes.
pub(super) const CAP_HEIGHT: f64 = 0.729;

const UNITS_PER_EM: f64 = 2048.0;

/// Advance assumed for a character outside ASCII: that of a wide sign, so that a text rather fits too easily.
const OTHER: u16 = 1716;

/// Advances of the characters from the blank to the tilde.
const REGULAR: [u16; 95] = [
    651, 821, 942, 1716, 1303, 1946, 1597, 563, 799, 799, 1024, 1716, 651, 739, 651, 690, 1303, 1303, 1303, 1303, 1303,
    1303, 1303, 1303, 1303, 1303, 690, 690, 1716, 1716, 1716, 1087, 2048, 1401, 1405, 1430, 1577, 1294, 1178, 1587,
    1540, 604, 604, 1343, 1141, 1767, 1532, 1612, 1235, 1612, 1423, 1300, 1251, 1499, 1401, 2025, 1403, 1251, 1403,
    799, 690, 799, 1716, 1024, 1024, 1255, 1300, 1126, 1300, 1260, 721, 1300, 1298, 569, 569, 1186, 569, 1995, 1298,
    1253, 1300, 1300, 842, 1067, 803, 1298, 1212, 1675, 1212, 1212, 1075, 1303, 690, 1303, 1716,
];

/// Likewise of the bold face.
const BOLD: [u16; 95] = [
    713, 934, 1067, 1716, 1425, 2052, 1786, 627, 936, 936, 1071, 1716, 778, 850, 778, 748, 1425, 1425, 1425, 1425,
    1425, 1425, 1425, 1425, 1425, 1425, 819, 819, 1716, 1716, 1716, 1188, 2048, 1585, 1561, 1503, 1700, 1399, 1399,
    1681, 1714, 762, 762, 1587, 1305, 2038, 1714, 1741, 1501, 1741, 1577, 1475, 1397, 1663, 1585, 2259, 1579, 1483,
    1485, 936, 748, 936, 1716, 1024, 1024, 1382, 1466, 1214, 1466, 1389, 891, 1466, 1458, 702, 702, 1362, 702, 2134,
    1458, 1407, 1466, 1466, 1010, 1219, 979, 1458, 1335, 1892, 1321, 1335, 1192, 1458, 748, 1458, 1716,
];

#[cfg(test)]
mod tests {
    use super::*;
    use resvg::usvg;

    #[test]
    fn long_texts_are_cut_or_broken() {
        let text = "four stages of two layers each";
        let room = width("four stages of two", 12.0, false) + 1.0;
        assert_eq!(wrapped(text, 12.0, room), ["four stages of two", "layers each"]);
        assert_eq!(fitted(text, 12.0, false, room), "four stages of t\u{2026}");
        assert_eq!(fitted(text, 12.0, false, 1e3), text);
    }

    #[test]
    fn widths_are_the_rendered_ones() {
        for bold in [false, true] {
            let text = "Makespan 33 units, rank 12: 2F0 (WAVE) ~ {x}";
            let weight = if bold { "bold" } else { "normal" };
            let svg = format!(
                "<svg xmlns='http://www.w3.org/2000/svg' width='900' height='50'><text x='0' y='40' font-size='20' \
                 font-family='{FAMILIES}' font-weight='{weight}'>{text}</text></svg>"
            );
            let options = usvg::Options { fontdb: FONTS.clone(), ..Default::default() };
            let tree = usvg::Tree::from_str(&svg, &options).unwrap();
            let rendered = f64::from(tree.root().abs_bounding_box().width());
            assert!((rendered - width(text, 20.0, bold)).abs() < 3.0, "{rendered}");
        }
    }
}
