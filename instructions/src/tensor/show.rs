//! The elements of a tensor as text: brackets and aligned columns as in NumPy, of bounded length. A long axis is cut to its first and
//! last entries with `...` between.

use std::fmt::Write as _;

use streamvm_ep::{DType, Scalar, bf16, f16};

/// An axis of at most this many entries is shown whole.
const WHOLE_AXIS: usize = 10;

/// Entries shown at each end of a longer axis; fewer if the text would still be too long.
const EDGE: usize = 4;

/// Most elements shown at all.
const MOST_SHOWN: usize = 1000;

/// The elements of a tensor of this dtype and these sizes as text, without a final newline. `element` gives the element at an index in row-major order;
/// at most 1,000 are asked for.
///
/// Floats have `decimals` digits after the point; without it four, or fewer if all elements that are shown are then exact in their dtype: `2.0` is exactly 2,
/// and `2.0000` may be 1.9999998. If one is smaller than 0.0001 or at least a million, all have an exponent.
pub fn show(dtype: DType, shape: &[usize], decimals: Option<usize>, element: impl Fn(usize) -> Scalar) -> String {
    if shape.contains(&0) {
        return "[]".into();
    }
    let edge = (1..=EDGE)
        .rev()
        .find(|edge| {
            let shown = shape.iter().map(|size| shown_on(*size, *edge).0.len() + shown_on(*size, *edge).1.len());
            shown.product::<usize>() <= MOST_SHOWN
        })
        .unwrap_or(1);
    let mut shown = Vec::new();
    collect(shape, &element, edge, 0, 0, &mut shown);
    let cells = Cells::new(&shown, dtype, decimals);
    let mut out = String::new();
    let mut next = shown.iter();
    write_axis(shape, edge, 0, &mut next, &cells, &mut out);
    out
}

/// The indices shown of an axis: those before the gap, and those after it (none without a gap).
fn shown_on(size: usize, edge: usize) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
    let whole = if edge == EDGE { WHOLE_AXIS } else { 2 * edge };
    if size <= whole { (0..size, size..size) } else { (0..edge, size - edge..size) }
}

fn collect(
    shape: &[usize],
    element: &impl Fn(usize) -> Scalar,
    edge: usize,
    axis: usize,
    flat: usize,
    out: &mut Vec<Scalar>,
) {
    let Some(&size) = shape.get(axis) else {
        return out.push(element(flat));
    };
    let (before, after) = shown_on(size, edge);
    for index in before.chain(after) {
        collect(shape, element, edge, axis + 1, flat * size + index, out);
    }
}

fn write_axis<'a>(
    shape: &[usize],
    edge: usize,
    axis: usize,
    next: &mut impl Iterator<Item = &'a Scalar>,
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
    Scientific(usize),
}

/// Digits after the point: enough to distinguish f32 results by eye.
const DECIMALS: usize = 4;

/// Half of the distance of two neighbours of a dtype, as part of their size: a number that is nearer to a decimal is that decimal in the dtype.
fn half_step(dtype: DType) -> f64 {
    let digits = match dtype {
        DType::F16 => f16::MANTISSA_DIGITS,
        DType::BF16 => bf16::MANTISSA_DIGITS,
        DType::F32 => f32::MANTISSA_DIGITS,
        _ => f64::MANTISSA_DIGITS,
    };
    0.5f64.powi(digits as i32)
}

impl Cells {
    fn new(shown: &[Scalar], dtype: DType, decimals: Option<usize>) -> Self {
        let floats = || {
            shown.iter().filter_map(|element| match element {
                Scalar::F64(value) if value.is_finite() => Some(*value),
                _ => None,
            })
        };
        let odd = |value: f64| value != 0.0 && !(1e-4..1e6).contains(&value.abs());
        let needed = |value: f64| {
            let text = format!("{value:.DECIMALS$}");
            let rounded: f64 = text.parse().unwrap_or(value);
            let exact = (rounded - value).abs() <= value.abs() * half_step(dtype);
            if exact { DECIMALS - (text.len() - text.trim_end_matches('0').len()) } else { DECIMALS }
        };
        let style = match decimals {
            _ if floats().any(odd) => Style::Scientific(decimals.unwrap_or(DECIMALS)),
            Some(decimals) => Style::Fixed(decimals),
            None => Style::Fixed(floats().map(needed).max().unwrap_or(1).max(1)),
        };
        let mut cells = Self { style, width: 0 };
        cells.width = shown.iter().map(|element| cells.text(*element).len()).max().unwrap_or(0);
        cells
    }

    fn text(&self, element: Scalar) -> String {
        match (element, self.style) {
            (Scalar::F64(value), _) if value.is_nan() => "nan".into(),
            (Scalar::F64(value), Style::Fixed(decimals)) => format!("{value:.decimals$}"),
            (Scalar::F64(value), Style::Scientific(decimals)) if value.is_finite() => format!("{value:.decimals$e}"),
            (Scalar::F64(value), Style::Scientific(_)) => format!("{value}"),
            (Scalar::I64(value), _) => value.to_string(),
            (Scalar::U64(value), _) => value.to_string(),
            (Scalar::Bool(value), _) => value.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(shape: &[usize], dtype: DType, elements: &[f64]) -> String {
        show(dtype, shape, None, |index| Scalar::F64(elements[index]))
    }

    #[test]
    fn columns_align() {
        assert_eq!(floats(&[2, 2], DType::F32, &[0.5, -10.0, 1.25, 3.0]), "[[  0.50 -10.00]\n [  1.25   3.00]]");
        let whole = [1, -20, 3];
        assert_eq!(show(DType::I64, &[3], None, |index| Scalar::I64(whole[index])), "[  1 -20   3]");
        assert_eq!(show(DType::Bool, &[2], None, |index| Scalar::Bool(index == 0)), "[ true false]");
    }

    #[test]
    fn scalars_empties_and_cubes() {
        assert_eq!(floats(&[], DType::F64, &[2.0]), "2.0");
        assert_eq!(floats(&[0, 3], DType::F64, &[]), "[]");
        let cube = show(DType::U8, &[2, 1, 2], None, |index| Scalar::I64(index as i64 + 1));
        assert_eq!(cube, "[[[1 2]]\n\n [[3 4]]]");
    }

    #[test]
    fn zeros_at_the_end_are_left_out_where_the_number_is_exact() {
        let f32s = |elements: &[f32]| {
            floats(&[elements.len()], DType::F32, &elements.iter().map(|x| f64::from(*x)).collect::<Vec<_>>())
        };
        assert_eq!(f32s(&[2.0]), "[2.0]");
        assert_eq!(f32s(&[1.999_999_8]), "[2.0000]");
        assert_eq!(f32s(&[0.1, 0.25]), "[0.10 0.25]");
        assert_eq!(f32s(&[0.1, 1.0 / 3.0]), "[0.1000 0.3333]");
        assert_eq!(floats(&[1], DType::F64, &[f64::from(0.1f32)]), "[0.1000]");
        assert_eq!(show(DType::F32, &[1], Some(7), |_| Scalar::F64(f64::from(1.999_999_8f32))), "[1.9999998]");
    }

    #[test]
    fn odd_magnitudes_are_scientific() {
        let text = floats(&[3], DType::F64, &[1e-7, f64::NAN, f64::NEG_INFINITY]);
        assert_eq!(text, "[1.0000e-7       nan      -inf]");
    }

    #[test]
    fn long_axes_are_cut() {
        let text = show(DType::I32, &[20], None, |index| Scalar::I64(index as i64));
        assert_eq!(text, "[ 0  1  2  3 ... 16 17 18 19]");
        let rows = show(DType::I32, &[100, 2], None, |_| Scalar::I64(7));
        assert_eq!(rows.lines().count(), 9);
        assert_eq!(rows.lines().nth(4), Some(" ..."));
    }

    #[test]
    fn what_is_shown_is_bounded() {
        let text = show(DType::U8, &[4; 8], None, |_| Scalar::I64(1));
        assert!(text.matches('1').count() <= MOST_SHOWN, "{}", text.matches('1').count());
        let text = show(DType::U8, &[3; 8], None, |_| Scalar::I64(1));
        assert!(text.matches('1').count() <= MOST_SHOWN, "{}", text.matches('1').count());
        let text = show(DType::U8, &[1000, 1000], None, |_| Scalar::I64(1));
        assert!(text.len() < 1000);
    }
}
