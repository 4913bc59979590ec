//! The comparisons of `expect` and `print accuracy`.
//!
//! * `~=` with tolerance `t` accepts a found `a` for an expected `b` if `|a - b| <= t + t * |b|`, which is absolute near zero and
//!   relative elsewhere. It accepts a NaN for a NaN.
//! * `==` accepts what is equal by IEEE 754, so it never accepts a NaN.
//! * Both accept an infinity for the same infinity.

use std::fmt;

use streamvm_files::{Array, Element};

/// How two arrays of one shape and dtype differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Mismatch {
    /// Index of the first element that differs.
    pub index: Box<[usize]>,
    /// The found element there.
    pub found: Element,
    /// The expected element there.
    pub expected: Element,
    /// The number of elements that differ.
    pub count: usize,
    /// The number of elements.
    pub total: usize,
    /// The largest difference between two numbers that differ.
    pub largest: Option<f64>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "element {:?} is {}, expected {}; {} of {} elements differ",
            self.index, self.found, self.expected, self.count, self.total
        )?;
        if let Some(largest) = self.largest {
            write!(f, ", the largest difference is {}", Element::Float(largest))?;
        }
        if let (Element::Float(a), Element::Float(b)) = (self.found, self.expected)
            && a.is_nan()
            && b.is_nan()
        {
            write!(f, "; by `==` no NaN equals another, by `~=` all do")?;
        }
        Ok(())
    }
}

/// Compares two arrays of one shape and dtype, exactly or with a tolerance.
///
/// # Errors
/// The [`Mismatch`], if an element differs.
pub fn compare(found: &Array, expected: &Array, tolerance: Option<f64>) -> Result<(), Mismatch> {
    let total = expected.data.len();
    let mut mismatch: Option<Mismatch> = None;
    for flat in 0..total.max(found.data.len()) {
        let (Some(a), Some(b)) = (found.data.get(flat), expected.data.get(flat)) else {
            break; // the checker has made sure that the shapes are the same
        };
        if accepts(a, b, tolerance) {
            continue;
        }
        let entry = mismatch.get_or_insert_with(|| Mismatch {
            index: unravel(flat, &expected.shape).into_boxed_slice(),
            found: a,
            expected: b,
            count: 0,
            total,
            largest: None,
        });
        entry.count += 1;
        if let Some(difference) = difference(a, b).filter(|difference| !difference.is_nan()) {
            entry.largest = Some(entry.largest.map_or(difference, |largest| largest.max(difference)));
        }
    }
    mismatch.map_or(Ok(()), Err)
}

fn accepts(found: Element, expected: Element, tolerance: Option<f64>) -> bool {
    match (found, expected) {
        (Element::Float(a), Element::Float(b)) => {
            if a == b || (tolerance.is_some() && a.is_nan() && b.is_nan()) {
                return true;
            }
            let both_finite = a.is_finite() && b.is_finite();
            tolerance.is_some_and(|tolerance| both_finite && (a - b).abs() <= tolerance + tolerance * b.abs())
        }
        (Element::Int(a), Element::Int(b)) if a != b => {
            tolerance.is_some_and(|tolerance| a.abs_diff(b) as f64 <= tolerance + tolerance * (b as f64).abs())
        }
        (a, b) => a == b,
    }
}

fn difference(a: Element, b: Element) -> Option<f64> {
    match (a, b) {
        (Element::Float(a), Element::Float(b)) => Some((a - b).abs()),
        (Element::Int(a), Element::Int(b)) => Some(a.abs_diff(b) as f64),
        _ => None,
    }
}

/// The number of rows whose largest score is at the index given by the label, and the number of rows. Of equal scores the first
/// counts; a NaN counts as the largest, as in `argmax`.
#[must_use]
pub fn accuracy(scores: &Array, labels: &Array) -> (usize, usize) {
    let classes = scores.shape.last().copied().unwrap_or(0);
    let rows = labels.data.len();
    let right = (0..rows)
        .filter(|row| {
            let best = (0..classes).reduce(|best, class| {
                let of = |class: usize| scores.data.get(row * classes + class);
                if beats(of(class), of(best)) { class } else { best }
            });
            match (best, labels.data.get(*row)) {
                (Some(best), Some(Element::Int(label))) => i128::try_from(best) == Ok(label),
                _ => false,
            }
        })
        .count();
    (right, rows)
}

fn beats(challenger: Option<Element>, best: Option<Element>) -> bool {
    match (challenger, best) {
        (Some(Element::Float(a)), Some(Element::Float(b))) => a > b || (a.is_nan() && !b.is_nan()),
        (Some(Element::Int(a)), Some(Element::Int(b))) => a > b,
        (Some(Element::Bool(a)), Some(Element::Bool(b))) => a & !b,
        _ => false,
    }
}

/// The index per axis of a row-major index.
fn unravel(mut flat: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (axis, size) in shape.iter().enumerate().rev() {
        if *size > 0 {
            index[axis] = flat % size;
            flat /= size;
        }
    }
    index
}

#[cfg(test)]
mod tests {
    use streamvm_files::Data;

    use super::*;

    fn floats(values: &[f64]) -> Array {
        Array { shape: vec![values.len()], data: Data::F64(values.to_vec()) }
    }

    #[test]
    fn indices_unravel_row_major() {
        assert_eq!(unravel(5, &[2, 3]), [1, 2]);
        assert_eq!(unravel(0, &[]), [0; 0]);
    }

    #[test]
    fn the_first_difference_and_the_count_are_told() {
        let found = Array { shape: vec![2, 2], data: Data::F32(vec![1.0, 2.0, 3.5, 9.0]) };
        let expected = Array { shape: vec![2, 2], data: Data::F32(vec![1.0, 2.0, 3.0, 4.0]) };
        assert_eq!(
            compare(&found, &expected, Some(1e-4)).unwrap_err().to_string(),
            "element [1, 0] is 3.5, expected 3; 2 of 4 elements differ, the largest difference is 5"
        );
        assert_eq!(compare(&found, &expected, Some(2.0)), Ok(()));
    }

    #[test]
    fn nan_and_infinity_stand_for_themselves() {
        let odd = floats(&[f64::NAN, f64::INFINITY]);
        assert_eq!(compare(&odd, &odd, Some(1.0)), Ok(()));
        assert_eq!(
            compare(&odd, &odd, None).unwrap_err().to_string(),
            "element [0] is nan, expected nan; 1 of 2 elements differ; by `==` no NaN equals another, by `~=` all do"
        );
        assert_eq!(compare(&floats(&[f64::NAN]), &floats(&[1.0]), Some(1e9)).unwrap_err().count, 1);
        assert_eq!(compare(&floats(&[1.0]), &floats(&[f64::INFINITY]), Some(1e9)).unwrap_err().count, 1);
    }

    #[test]
    fn integers_compare_without_loss() {
        let ints = |value: i64| Array { shape: vec![1], data: Data::I64(vec![value]) };
        assert!(compare(&ints(i64::MAX), &ints(i64::MAX - 1), None).is_err());
        assert!(compare(&ints(i64::MIN), &ints(i64::MAX), None).is_err());
        assert!(compare(&ints(5), &ints(4), Some(1.0)).is_ok());
    }

    #[test]
    fn accuracy_counts_rows() {
        let scores = Array { shape: vec![3, 2], data: Data::F32(vec![0.1, 0.9, 0.5, 0.5, 0.2, 0.1]) };
        let labels = Array { shape: vec![3], data: Data::I64(vec![1, 0, 1]) };
        assert_eq!(accuracy(&scores, &labels), (2, 3));
    }
}
