//! The text that `print` writes for a tensor: brackets and aligned columns as in NumPy, of bounded length. A long axis is cut to its
//! first and last entries with `...` between.

use std::fmt::Write as _;

use crate::values::array::{Array, Element};

/// An axis of at most this many entries is shown whole.
const WHOLE_AXIS: usize = 10;

/// Entries shown at each end of a longer axis; fewer if the text would still be too long.
const EDGE: usize = 4;

/// Most elements shown at all.
const MOST_SHOWN: usize = 1000;

/// The values of a tensor, without a final newline.
#[must_use]
pub fn show(array: &Array) -> String {
    if array.data.is_empty() {
        return "[]".into();
    }
    let edge = (1..=EDGE)
        .rev()
        .find(|edge| {
            let shown = array.shape.iter().map(|size| shown_on(*size, *edge).0.len() + shown_on(*size, *edge).1.len());
            shown.product::<usize>() <= MOST_SHOWN
        })
        .unwrap_or(1);
    let mut shown = Vec::new();
    collect(array, edge, 0, 0, &mut shown);
    let cells = Cells::new(&shown);
    let mut out = String::new();
    let mut next = shown.iter();
    write_axis(&array.shape, edge, 0, &mut next, &cells, &mut out);
    out
}

/// The indices shown of an axis: those before the gap, and those after it (none without a gap).
fn shown_on(size: usize, edge: usize) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
    let whole = if edge == EDGE { WHOLE_AXIS } else { 2 * edge + 1 };
    if size <= whole { (0..size, size..size) } else { (0..edge, size - edge..size) }
}

fn collect(array: &Array, edge: usize, axis: usize, flat: usize, out: &mut Vec<Element>) {
    let Some(&size) = array.shape.get(axis) else {
        out.extend(array.data.get(flat));
        return;
    };
    let (before, after) = shown_on(size, edge);
    for index in before.chain(after) {
        collect(array, edge, axis + 1, flat * size + index, out);
    }
}

fn write_axis<'a>(
    shape: &[usize],
    edge: usize,
    axis: usize,
    next: &mut impl Iterator<Item = &'a Element>,
    cells: &Cells,
    out: &mut String,
) {
    let Some(&size) = shape.get(axis) else {
        // `collect` has visited the same indices, so each cell has its element.
        if let Some(element) = next.next() {
            let _ = write!(out, "{:>width$}", cells.text(*element), width = cells.width);
        }
        return;
    };
    let (before, after) = shown_on(size, edge);
    let last_axis = axis + 1 == shape.len();
    let separator = if last_axis {
        " ".to_owned()
    } else {
        format!("{}{}", "\n".repeat(shape.len() - axis - 1), " ".repeat(axis + 1))
    };
    let gap = !after.is_empty();
    let cut = before.end;
    out.push('[');
    for (count, index) in before.chain(after).enumerate() {
        if count > 0 {
            out.push_str(&separator);
        }
        if gap && index != count && count == cut {
            out.push_str("...");
            out.push_str(&separator);
        }
        write_axis(shape, edge, axis + 1, next, cells, out);
    }
    out.push(']');
}

/// The format that all shown elements share, so that columns align.
struct Cells {
    style: Style,
    width: usize,
}

#[derive(Clone, Copy)]
enum Style {
    Fixed(usize),
    Scientific,
}

/// Digits after the point: enough to distinguish f32 results by eye.
const DECIMALS: usize = 4;

impl Cells {
    fn new(shown: &[Element]) -> Self {
        let floats = || {
            shown.iter().filter_map(|element| match element {
                Element::Float(value) if value.is_finite() => Some(*value),
                _ => None,
            })
        };
        let odd = |value: f64| value != 0.0 && !(1e-4..1e6).contains(&value.abs());
        let style = if floats().any(odd) {
            Style::Scientific
        } else {
            let decimals = floats()
                .map(|value| {
                    let text = format!("{value:.DECIMALS$}");
                    DECIMALS - (text.len() - text.trim_end_matches('0').len())
                })
                .max();
            Style::Fixed(decimals.unwrap_or(1).max(1))
        };
        let mut cells = Self { style, width: 0 };
        cells.width = shown.iter().map(|element| cells.text(*element).len()).max().unwrap_or(0);
        cells
    }

    fn text(&self, element: Element) -> String {
        match (element, self.style) {
            (Element::Float(value), _) if value.is_nan() => "nan".into(),
            (Element::Float(value), Style::Fixed(decimals)) => format!("{value:.decimals$}"),
            (Element::Float(value), Style::Scientific) if value.is_finite() => format!("{value:.DECIMALS$e}"),
            (Element::Float(value), Style::Scientific) => format!("{value}"),
            (Element::Int(value), _) => value.to_string(),
            (Element::Bool(value), _) => value.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::array::Data;

    fn shown(shape: &[usize], data: Data) -> String {
        show(&Array { shape: shape.to_vec(), data })
    }

    #[test]
    fn columns_align() {
        let data = Data::F32(vec![0.5, -10.0, 1.25, 3.0]);
        assert_eq!(shown(&[2, 2], data), "[[  0.50 -10.00]\n [  1.25   3.00]]");
        assert_eq!(shown(&[3], Data::I64(vec![1, -20, 3])), "[  1 -20   3]");
        assert_eq!(shown(&[2], Data::Bool(vec![true, false])), "[ true false]");
    }

    #[test]
    fn scalars_empties_and_cubes() {
        assert_eq!(shown(&[], Data::F64(vec![2.0])), "2.0");
        assert_eq!(shown(&[0, 3], Data::F64(vec![])), "[]");
        assert_eq!(shown(&[2, 1, 2], Data::U8(vec![1, 2, 3, 4])), "[[[1 2]]\n\n [[3 4]]]");
    }

    #[test]
    fn odd_magnitudes_are_scientific() {
        let data = Data::F64(vec![1e-7, f64::NAN, f64::NEG_INFINITY]);
        assert_eq!(shown(&[3], data), "[1.0000e-7       nan      -inf]");
    }

    #[test]
    fn long_axes_are_cut() {
        let data = Data::I32((0..20).collect());
        assert_eq!(shown(&[20], data), "[ 0  1  2  3 ... 16 17 18 19]");
        let rows = shown(&[100, 2], Data::I32(vec![7; 200]));
        assert_eq!(rows.lines().count(), 9);
        assert_eq!(rows.lines().nth(4), Some(" ..."));
    }

    #[test]
    fn what_is_shown_is_bounded() {
        let text = shown(&[4; 8], Data::U8(vec![1; 65536]));
        assert!(text.matches('1').count() <= MOST_SHOWN, "{}", text.matches('1').count());
        let text = shown(&[1000, 1000], Data::U8(vec![1; 1_000_000]));
        assert!(text.len() < 1000);
    }
}
