//! Formulas: numbers and layouts that follow from bounded sizes.

use std::fmt;

use smallvec::{SmallVec, smallvec};
use streamvm_ep::{Layout, MAX_RANK, Shape};

use crate::ir::dims::{BoundedDim, MOST_DIMS};

/// The most terms of a formula. A recording makes no more: there are so many products of four sizes with powers up to 2.
const MOST_TERMS: usize = 81;

/// The highest power of a size in a formula of a recording or text. Numbers of elements, which are compared, may have higher ones.
const MOST_POWER: u8 = 2;

/// `(size + plus) / by`, rounded down, of a size.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Quotient {
    pub(crate) plus: u32,
    pub(crate) by: u32,
}

impl Quotient {
    /// The size itself.
    pub(crate) const SIZE: Quotient = Quotient { plus: 0, by: 1 };

    pub(crate) fn of(self, size: usize) -> usize {
        size.saturating_add(self.plus as usize) / self.by as usize
    }
}

/// A number that follows from the bounded sizes: a sum of products of sizes with whole factors. In the place of a size, all products may have one quotient of it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Formula {
    /// Sorted by powers, which differ; no factor is 0.
    terms: SmallVec<[Term; 2]>,
    /// What the powers of each size are powers of; of a size without powers, the size itself.
    quotients: [Quotient; MOST_DIMS],
}

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
struct Term {
    /// The power of each size.
    powers: [u8; MOST_DIMS],
    factor: i64,
}

impl Formula {
    /// The sum of these products: of a factor, and of each size, or quotient of it, with a power. `None` if a factor is too large.
    pub(crate) fn new(
        terms: impl IntoIterator<Item = (i64, [u8; MOST_DIMS])>,
        mut quotients: [Quotient; MOST_DIMS],
    ) -> Option<Formula> {
        let mut sorted: Vec<Term> = terms.into_iter().map(|(factor, powers)| Term { powers, factor }).collect();
        sorted.sort_unstable();
        let mut terms: SmallVec<[Term; 2]> = SmallVec::new();
        for term in sorted {
            match terms.last_mut() {
                Some(last) if last.powers == term.powers => last.factor = last.factor.checked_add(term.factor)?,
                _ => terms.push(term),
            }
        }
        terms.retain(|term| term.factor != 0);
        for (dim, quotient) in quotients.iter_mut().enumerate() {
            if terms.iter().all(|term| term.powers[dim] == 0) {
                *quotient = Quotient::SIZE;
            }
        }
        Some(Formula { terms, quotients })
    }

    /// Whether it has sizes beyond the first `dims`.
    fn is_beyond(&self, dims: usize) -> bool {
        (dims..MOST_DIMS).any(|dim| self.uses(dim))
    }

    /// The size with this number in [`Program::dims`], if the formula is just that.
    pub(crate) fn as_dim(&self) -> Option<usize> {
        let [Term { powers, factor: 1 }] = &self.terms[..] else { return None };
        let dim = powers.iter().position(|power| *power == 1)?;
        (powers.iter().map(|power| u32::from(*power)).sum::<u32>() == 1 && self.quotients[dim] == Quotient::SIZE)
            .then_some(dim)
    }

    /// Whether it is 0 for all sizes.
    fn is_zero(&self) -> bool {
        self.terms.is_empty()
    }

    fn zero() -> Formula {
        Formula { terms: SmallVec::new(), quotients: [Quotient::SIZE; MOST_DIMS] }
    }

    fn one() -> Formula {
        let terms = smallvec![Term { powers: [0; MOST_DIMS], factor: 1 }];
        Formula { terms, quotients: [Quotient::SIZE; MOST_DIMS] }
    }

    fn uses(&self, dim: usize) -> bool {
        self.terms.iter().any(|term| term.powers[dim] > 0)
    }

    /// The product; `None` if it is no formula, because the two have different quotients of one size, or because a number is too large.
    fn times(&self, other: &Formula) -> Option<Formula> {
        let mut quotients = self.quotients;
        for dim in (0..MOST_DIMS).filter(|dim| other.uses(*dim)) {
            if self.uses(dim) && quotients[dim] != other.quotients[dim] {
                return None;
            }
            quotients[dim] = other.quotients[dim];
        }
        if self.terms.len() * other.terms.len() > MOST_TERMS {
            return None;
        }
        let mut products = Vec::with_capacity(self.terms.len() * other.terms.len());
        for (one, other) in self.terms.iter().flat_map(|one| other.terms.iter().map(move |other| (one, other))) {
            let mut powers = one.powers;
            for (power, more) in powers.iter_mut().zip(other.powers) {
                *power = power.checked_add(more)?;
            }
            products.push((one.factor.checked_mul(other.factor)?, powers));
        }
        Formula::new(products, quotients)
    }

    /// Its value; `None` if that is no size.
    pub(crate) fn at(&self, sizes: &[usize]) -> Option<usize> {
        let mut sum: i128 = 0;
        for Term { powers, factor } in &self.terms {
            let mut product = i128::from(*factor);
            for ((&size, quotient), &power) in sizes.iter().zip(self.quotients).zip(powers) {
                for _ in 0..power {
                    product = product.checked_mul(quotient.of(size) as i128)?;
                }
            }
            sum = sum.checked_add(product)?;
        }
        usize::try_from(sum).ok()
    }

    /// The formula with the names of the sizes, such as `batch*length*4+((length+1)/2)-1`.
    pub(crate) fn named<'f>(&'f self, dims: &'f [BoundedDim]) -> impl fmt::Display + 'f {
        let name = |(dim, quotient): (&BoundedDim, &Quotient)| match *quotient {
            Quotient::SIZE => dim.name.clone(),
            Quotient { plus: 0, by } => format!("({}/{by})", dim.name),
            Quotient { plus, by } => format!("(({}+{plus})/{by})", dim.name),
        };
        let names: Vec<String> = dims.iter().zip(&self.quotients).map(name).collect();
        fmt::from_fn(move |f| {
            // The highest powers first, as one writes it.
            for (place, Term { powers, factor }) in self.terms.iter().rev().enumerate() {
                let mut factors: Vec<String> =
                    names.iter().zip(powers).flat_map(|(name, power)| (0..*power).map(|_| name.clone())).collect();
                if factor.unsigned_abs() != 1 || factors.is_empty() {
                    factors.push(factor.unsigned_abs().to_string());
                }
                let sign = match (*factor < 0, place) {
                    (true, 0) => "-",
                    (true, _) => "-",
                    (false, 0) => "",
                    (false, _) => "+",
                };
                write!(f, "{sign}{}", factors.join("*"))?;
            }
            if self.is_zero() { f.write_str("0") } else { Ok(()) }
        })
    }
}

impl Formula {
    /// Parses what [`named`](Formula::named) has written.
    fn parse(text: &str, dims: &[BoundedDim]) -> Option<Formula> {
        let dim_of = |name: &str| dims.iter().position(|dim| dim.name == name);
        let mut quotients: [Option<Quotient>; MOST_DIMS] = [None; MOST_DIMS];
        let mut terms = Vec::new();
        // Signs and factors outside of parentheses.
        let mut depth = 0;
        let mut outside = |sign: char, is: fn(char) -> bool| {
            depth += i32::from(sign == '(') - i32::from(sign == ')');
            depth == 0 && is(sign)
        };
        let signs: Vec<usize> =
            text.match_indices(|c| outside(c, |c| matches!(c, '+' | '-'))).map(|(at, _)| at).collect();
        let begins = std::iter::once(0).chain(signs.iter().copied().filter(|at| *at > 0));
        let ends = signs.iter().copied().filter(|at| *at > 0).chain([text.len()]);
        for term in begins.zip(ends).map(|(begin, end)| &text[begin..end]) {
            let (mut factor, mut powers) = (if term.starts_with('-') { -1i64 } else { 1 }, [0u8; MOST_DIMS]);
            for part in term.trim_start_matches(['+', '-']).split('*') {
                if let Ok(number) = part.parse::<u64>() {
                    factor = factor.checked_mul(number.try_into().ok()?)?;
                    continue;
                }
                let (name, quotient) = match part.strip_prefix('(').and_then(|part| part.strip_suffix(')')) {
                    None => (part, Quotient::SIZE),
                    Some(part) => {
                        let (of, by) = part.rsplit_once('/')?;
                        let sum = of.strip_prefix('(').and_then(|of| of.strip_suffix(')'));
                        let (name, plus) = sum.map_or(Some((of, "0")), |sum| sum.split_once('+'))?;
                        (name, Quotient { plus: plus.parse().ok()?, by: by.parse().ok().filter(|by| *by > 0)? })
                    }
                };
                let dim = dim_of(name)?;
                powers[dim] = powers[dim].checked_add(1)?;
                if *quotients[dim].get_or_insert(quotient) != quotient {
                    return None;
                }
            }
            if terms.len() == MOST_TERMS || powers.iter().any(|power| *power > MOST_POWER) {
                return None;
            }
            terms.push((factor, powers));
        }
        Formula::new(terms, quotients.map(|quotient| quotient.unwrap_or(Quotient::SIZE)))
    }
}

/// A layout whose numbers follow from the bounded sizes; of a value, the one without gaps.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct VaryingLayout {
    offset: Formula,
    /// Size and stride of each axis.
    axes: SmallVec<[(Formula, Formula); 4]>,
}

impl VaryingLayout {
    pub(crate) fn new(offset: Formula, axes: impl IntoIterator<Item = (Formula, Formula)>) -> VaryingLayout {
        VaryingLayout { offset, axes: axes.into_iter().collect() }
    }

    /// The formulas of the sizes of its axes.
    pub(crate) fn shape(&self) -> impl Iterator<Item = &Formula> {
        self.axes.iter().map(|(size, _)| size)
    }

    /// Whether a number follows from sizes beyond the first `dims`.
    pub(crate) fn is_beyond(&self, dims: usize) -> bool {
        let numbers = self.axes.iter().flat_map(|(size, stride)| [size, stride]).chain([&self.offset]);
        numbers.into_iter().any(|number| number.is_beyond(dims))
    }

    /// Whether both have the same sizes for all sizes of feeds.
    pub(crate) fn has_shape_of(&self, other: &VaryingLayout) -> bool {
        self.shape().eq(other.shape())
    }

    /// Whether its elements are in row-major order without gaps, whatever the sizes.
    pub(crate) fn is_contiguous(&self) -> bool {
        let mut expected = Some(Formula::one());
        self.axes.iter().rev().all(|(size, stride)| {
            let fits = expected.as_ref() == Some(stride);
            expected = expected.take().and_then(|expected| expected.times(size));
            fits
        })
    }

    fn elements(&self) -> Option<Formula> {
        self.shape().try_fold(Formula::one(), |elements, size| elements.times(size))
    }

    /// The layout without gaps of the same shape; `None` if there are no formulas for its strides.
    pub(crate) fn contiguous(&self) -> Option<VaryingLayout> {
        let mut stride = Formula::one();
        let mut axes: SmallVec<[(Formula, Formula); 4]> = SmallVec::new();
        for (place, (size, _)) in self.axes.iter().enumerate().rev() {
            axes.push((size.clone(), stride.clone()));
            if place > 0 {
                stride = stride.times(size)?;
            }
        }
        axes.reverse();
        Some(VaryingLayout { offset: Formula::zero(), axes })
    }

    /// Whether it is all elements of a value of this layout, whatever the sizes.
    pub(crate) fn is_whole(&self, value: &VaryingLayout) -> bool {
        let as_many = || self.elements().is_some_and(|elements| Some(elements) == value.elements());
        self == value || self.offset.is_zero() && self.is_contiguous() && as_many()
    }

    /// The layout with the names of the sizes, such as `[rows,2*cols] strides cols,1 offset 3*cols`; without strides and offset where it begins its storage and has
    /// no gaps.
    pub(crate) fn named(&self, dims: &[BoundedDim]) -> String {
        let list = |numbers: &mut dyn Iterator<Item = &Formula>| {
            let numbers: Vec<String> = numbers.map(|number| number.named(dims).to_string()).collect();
            numbers.join(",")
        };
        let mut text = format!("[{}]", list(&mut self.shape()));
        if !(self.offset.is_zero() && self.is_contiguous()) {
            let strides = list(&mut self.axes.iter().map(|(_, stride)| stride));
            text = format!("{text} strides {strides} offset {}", self.offset.named(dims));
        }
        text
    }

    /// Parses what [`named`](VaryingLayout::named) has written.
    pub(crate) fn parse(text: &str, dims: &[BoundedDim]) -> Option<VaryingLayout> {
        let list = |text: &str| -> Option<SmallVec<[Formula; 4]>> {
            let numbers = text.split(',').filter(|_| !text.is_empty());
            numbers.take(MAX_RANK + 1).map(|number| Formula::parse(number, dims)).collect()
        };
        let mut words = text.split_whitespace();
        let sizes = list(words.next()?.strip_prefix('[')?.strip_suffix(']')?)?;
        match [words.next(), words.next(), words.next(), words.next(), words.next()] {
            [None, ..] => {
                let axes = sizes.into_iter().map(|size| (size, Formula::zero()));
                VaryingLayout::new(Formula::zero(), axes).contiguous()
            }
            [Some("strides"), Some(strides), Some("offset"), Some(offset), None] => {
                let strides = list(strides)?;
                let axes = (sizes.len() == strides.len()).then(|| sizes.into_iter().zip(strides))?;
                Some(VaryingLayout::new(Formula::parse(offset, dims)?, axes))
            }
            _ => None,
        }
    }

    /// The layout for these sizes; `None` if there is none.
    pub(crate) fn at(&self, sizes: &[usize]) -> Option<Layout> {
        let (mut dims, mut strides) = ([0; MAX_RANK], [0; MAX_RANK]);
        for (axis, (size, stride)) in self.axes.iter().enumerate() {
            (*dims.get_mut(axis)?, strides[axis]) = (size.at(sizes)?, stride.at(sizes)?);
        }
        let rank = self.axes.len();
        Layout::with_strides(Shape::new(&dims[..rank]).ok()?, &strides[..rank], self.offset.at(sizes)?).ok()
    }
}
