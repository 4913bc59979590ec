//! Sizes that each run gets from its feeds: axes with a bound, and layouts whose numbers follow from them.
//!
//! A program with such sizes is written down for the bounds. [`Program::varying`] has the layouts that are others for smaller sizes, each number as a
//! [`Formula`], and values, operands and ports name theirs. [`Program::at`] is the program for other sizes.

use std::fmt;
use std::ops::RangeInclusive;

use smallvec::SmallVec;
use streamvm_ep::{Layout, MAX_RANK, Shape};
use streamvm_instructions::{Error, ProgramError, Tensor};

use crate::ir::given::in_order;
use crate::ir::program::{Operand, Program, Value};

/// The most bounded sizes of a program.
pub const MOST_DIMS: usize = 4;

/// An axis of a feed: of one size in all runs, or of a size that each run gives.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Dim {
    /// Always this size.
    Fixed(usize),
    /// Any size within bounds.
    Bounded(BoundedDim),
}

impl Dim {
    /// A size from 1 to `most`, which each run gives by its feeds. All axes of this name have one size in a run.
    pub fn up_to(name: impl Into<String>, most: usize) -> Dim {
        Dim::within(name, 1..=most)
    }

    /// A size within `bounds`, as [`up_to`](Dim::up_to) says: for a program that cannot have fewer, because it slices a first row off, say.
    pub fn within(name: impl Into<String>, bounds: RangeInclusive<usize>) -> Dim {
        Dim::Bounded(BoundedDim { name: name.into(), least: *bounds.start(), most: *bounds.end() })
    }
}

impl From<usize> for Dim {
    fn from(size: usize) -> Dim {
        Dim::Fixed(size)
    }
}

/// A size that each run gives by its feeds.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct BoundedDim {
    /// Its name, in errors and reports.
    pub name: String,
    /// The smallest size, which is not 0.
    pub least: usize,
    /// The largest size.
    pub most: usize,
}

/// Values of the bounded sizes, in the order of [`Program::dims`].
pub type Sizes = SmallVec<[usize; MOST_DIMS]>;

/// A size, or its quotient by a whole number after a sum with one, rounded down.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Quotient {
    pub(crate) plus: u32,
    pub(crate) by: u32,
}

impl Quotient {
    /// The size itself.
    pub(crate) const SIZE: Quotient = Quotient { plus: 0, by: 1 };

    pub(crate) fn of(self, size: usize) -> usize {
        (size + self.plus as usize) / self.by as usize
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
    /// The sum of these products: of a factor, and of each size, or quotient of it, with a power.
    pub(crate) fn new(
        terms: impl IntoIterator<Item = (i64, [u8; MOST_DIMS])>,
        mut quotients: [Quotient; MOST_DIMS],
    ) -> Formula {
        let mut sorted: Vec<Term> = terms.into_iter().map(|(factor, powers)| Term { powers, factor }).collect();
        sorted.sort_unstable();
        let mut terms: SmallVec<[Term; 2]> = SmallVec::new();
        for term in sorted {
            match terms.last_mut() {
                Some(last) if last.powers == term.powers => last.factor = last.factor.wrapping_add(term.factor),
                _ => terms.push(term),
            }
        }
        terms.retain(|term| term.factor != 0);
        for (dim, quotient) in quotients.iter_mut().enumerate() {
            if terms.iter().all(|term| term.powers[dim] == 0) {
                *quotient = Quotient::SIZE;
            }
        }
        Formula { terms, quotients }
    }

    /// The size with this number in [`Program::dims`], if the formula is just that.
    pub(crate) fn as_dim(&self) -> Option<usize> {
        let [Term { powers, factor: 1 }] = &self.terms[..] else { return None };
        let dim = powers.iter().position(|power| *power == 1)?;
        (powers.iter().sum::<u8>() == 1 && self.quotients[dim] == Quotient::SIZE).then_some(dim)
    }

    /// Whether it is 0 for all sizes.
    fn is_zero(&self) -> bool {
        self.terms.is_empty()
    }

    fn one() -> Formula {
        Formula::new([(1, [0; MOST_DIMS])], [Quotient::SIZE; MOST_DIMS])
    }

    fn uses(&self, dim: usize) -> bool {
        self.terms.iter().any(|term| term.powers[dim] > 0)
    }

    /// The product; `None` if it is no formula, because the two have different quotients of one size.
    fn times(&self, other: &Formula) -> Option<Formula> {
        let mut quotients = self.quotients;
        for dim in (0..MOST_DIMS).filter(|dim| other.uses(*dim)) {
            if self.uses(dim) && quotients[dim] != other.quotients[dim] {
                return None;
            }
            quotients[dim] = other.quotients[dim];
        }
        let products = self.terms.iter().flat_map(|one| {
            other.terms.iter().map(|other| {
                let powers = std::array::from_fn(|dim| one.powers[dim] + other.powers[dim]);
                (one.factor.wrapping_mul(other.factor), powers)
            })
        });
        Some(Formula::new(products, quotients))
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

    /// The formula with the names of the sizes.
    fn named<'f>(&'f self, dims: &'f [BoundedDim]) -> impl fmt::Display + 'f {
        let name = |(dim, quotient): (&BoundedDim, &Quotient)| match *quotient {
            Quotient::SIZE => dim.name.clone(),
            Quotient { plus: 0, by } => format!("({}/{by})", dim.name),
            Quotient { plus, by } => format!("(({} + {plus})/{by})", dim.name),
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
                    (true, _) => " - ",
                    (false, 0) => "",
                    (false, _) => " + ",
                };
                write!(f, "{sign}{}", factors.join("*"))?;
            }
            if self.is_zero() { f.write_str("0") } else { Ok(()) }
        })
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
    fn contiguous(&self) -> Option<VaryingLayout> {
        let mut stride = Formula::one();
        let mut axes: SmallVec<[(Formula, Formula); 4]> = SmallVec::new();
        for (place, (size, _)) in self.axes.iter().enumerate().rev() {
            axes.push((size.clone(), stride.clone()));
            if place > 0 {
                stride = stride.times(size)?;
            }
        }
        axes.reverse();
        Some(VaryingLayout { offset: Formula::new([], [Quotient::SIZE; MOST_DIMS]), axes })
    }

    /// Whether it is all elements of a value of this layout, whatever the sizes.
    pub(crate) fn is_whole(&self, value: &VaryingLayout) -> bool {
        let as_many = || self.elements().is_some_and(|elements| Some(elements) == value.elements());
        self == value || self.offset.is_zero() && self.is_contiguous() && as_many()
    }

    /// The layout for these sizes; `None` if there is none.
    fn at(&self, sizes: &[usize]) -> Option<Layout> {
        let (mut dims, mut strides) = ([0; MAX_RANK], [0; MAX_RANK]);
        for (axis, (size, stride)) in self.axes.iter().enumerate() {
            (*dims.get_mut(axis)?, strides[axis]) = (size.at(sizes)?, stride.at(sizes)?);
        }
        let rank = self.axes.len();
        Layout::with_strides(Shape::new(&dims[..rank]).ok()?, &strides[..rank], self.offset.at(sizes)?).ok()
    }
}

/// A layout of a program that varies, as an index into [`Program::varying`].
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct VaryingId(pub u32);

impl Program {
    /// The layout of an operand, value or port whose layout varies.
    pub(crate) fn varying_of(&self, id: Option<VaryingId>) -> Option<&VaryingLayout> {
        id.map(|VaryingId(index)| &self.varying[index as usize])
    }

    /// The layout without gaps of the same shape, as a layout of the program; `None` if there are no formulas for its strides.
    pub(crate) fn contiguous_like(&mut self, id: VaryingId) -> Option<VaryingId> {
        let layout = self.varying[id.0 as usize].contiguous()?;
        let place = self.varying.iter().position(|known| *known == layout).unwrap_or_else(|| {
            self.varying.push(layout);
            self.varying.len() - 1
        });
        Some(VaryingId(place as u32))
    }

    /// Whether an operand covers all bytes of its value, whatever the sizes.
    pub(crate) fn is_whole(&self, operand: &Operand) -> bool {
        let value = self.value(operand.value);
        if !self.is_whole_view(operand.value, &operand.layout) {
            return false;
        }
        match (self.varying_of(operand.varying), self.varying_of(value.varying)) {
            (None, None) => true,
            (Some(view), Some(value)) => view.is_whole(value),
            _ => false,
        }
    }

    /// Whether an operand may be any part of its value: it varies, and is not all of it.
    pub(crate) fn is_any_part(&self, operand: &Operand) -> bool {
        operand.varying.is_some() && !self.is_whole(operand)
    }

    /// Whether an operand has no gaps, whatever the sizes.
    pub(crate) fn is_contiguous(&self, operand: &Operand) -> bool {
        let always = self.varying_of(operand.varying).is_none_or(VaryingLayout::is_contiguous);
        always && operand.layout.is_contiguous()
    }

    /// Whether two operands have one shape, whatever the sizes.
    pub(crate) fn have_one_shape(&self, one: &Operand, other: &Operand) -> bool {
        let vary_alike = match (self.varying_of(one.varying), self.varying_of(other.varying)) {
            (None, None) => true,
            (Some(one), Some(other)) => one.has_shape_of(other),
            _ => false,
        };
        vary_alike && one.layout.shape() == other.layout.shape()
    }

    /// The sizes that a run over these tensors has, in the order of [`Program::dims`].
    ///
    /// # Errors
    /// [`ProgramError::Unknown`] for a feed that is missing, unknown or given twice; [`ProgramError::Size`] if a size is not within its bounds, or if two
    /// feeds give different ones; [`ProgramError::Mismatch`] for other axes that do not fit.
    #[doc(hidden)]
    pub fn sizes_of(&self, feeds: &[(&str, &Tensor)]) -> Result<Sizes, Error> {
        let names = self.feeds.iter().map(|port| port.name.as_str());
        let given = in_order("feed", names, feeds).map_err(|what| self.unknown("feed", &self.feeds, what))?;
        // For each size the first feed that gives it.
        let mut found: SmallVec<[Option<(usize, &str)>; MOST_DIMS]> = SmallVec::from_elem(None, self.dims.len());
        for (port, tensor) in self.feeds.iter().zip(given) {
            let Some(varying) = self.varying_of(port.varying) else { continue };
            let (shape, bound) = (*tensor.layout().shape(), port.layout.shape());
            if shape.rank() != bound.rank() {
                return Err(self.mismatch("feed", port, tensor));
            }
            for ((formula, &size), &most) in varying.shape().zip(shape.dims()).zip(bound.dims()) {
                let refused = |what: String| {
                    let (program, feed) = (self.name.clone(), port.name.clone());
                    Error::from(ProgramError::Size { program, feed, what })
                };
                let Some(dim) = formula.as_dim() else {
                    if size != most {
                        return Err(self.mismatch("feed", port, tensor));
                    }
                    continue;
                };
                let BoundedDim { name, least, .. } = &self.dims[dim];
                match found[dim] {
                    Some((other, first)) if other != size => {
                        return Err(refused(format!("{name} = {size}, and the one for {first:?} has {name} = {other}")));
                    }
                    _ if !(*least..=most).contains(&size) => {
                        return Err(refused(format!("{name} = {size}, which may be {least} to {most}")));
                    }
                    _ => _ = found[dim].get_or_insert((size, &port.name)),
                }
            }
        }
        let sizes = found.iter().zip(&self.dims).map(|(found, dim)| found.map_or(dim.most, |(size, _)| size));
        Ok(sizes.collect())
    }

    /// The program for these sizes, in the order of [`Program::dims`]: the same steps over smaller tensors.
    ///
    /// # Errors
    /// [`ProgramError::Malformed`] if the sizes are no sizes of this program, or if it has no steps for them.
    #[track_caller]
    pub fn at(&self, sizes: &[usize]) -> Result<Program, Error> {
        let fits = |(size, dim): (&usize, &BoundedDim)| (dim.least..=dim.most).contains(size);
        if sizes.len() != self.dims.len() || !sizes.iter().zip(&self.dims).all(fits) {
            return Err(self.malformed(format!("it is asked for the sizes {sizes:?}, and has {}", self.dims_in_words())));
        }
        let layouts = self.varying.iter().map(|varying| varying.at(sizes)).collect::<Option<Vec<Layout>>>();
        let none = || self.malformed(format!("a layout is impossible for the sizes {sizes:?} of {}", self.dims_in_words()));
        let layouts = layouts.ok_or_else(none)?;
        let of = |VaryingId(index): VaryingId| layouts[index as usize];
        let mut program = Program { dims: Vec::new(), varying: Vec::new(), ..self.clone() };
        for Value { shape, varying, .. } in &mut program.values {
            varying.take().into_iter().for_each(|id| *shape = *of(id).shape());
        }
        for Operand { layout, varying, .. } in program.steps.iter_mut().flat_map(|step| &mut step.operands) {
            varying.take().into_iter().for_each(|id| *layout = of(id));
        }
        for ports in [&mut program.feeds, &mut program.parameters, &mut program.fetches] {
            for port in ports {
                port.varying.take().into_iter().for_each(|id| port.layout = of(id));
            }
        }
        program.check().map_err(|error| {
            let sizes: Vec<String> =
                self.dims.iter().zip(sizes).map(|(dim, size)| format!("{} = {size}", dim.name)).collect();
            self.malformed(format!("for {}: {}", sizes.join(", "), error.without_call()))
        })?;
        Ok(program)
    }

    /// The bounded sizes in words, such as `batch up to 64, length up to 128`.
    pub(crate) fn dims_in_words(&self) -> String {
        let of = |BoundedDim { name, least, most }: &BoundedDim| match least {
            1 => format!("{name} up to {most}"),
            _ => format!("{name} from {least} to {most}"),
        };
        let dims: Vec<String> = self.dims.iter().map(of).collect();
        if dims.is_empty() { "no bounded sizes".to_owned() } else { dims.join(", ") }
    }

    /// A shape with the formulas of its sizes, such as `[batch*length,384]`.
    pub(crate) fn shape_in_words(&self, shape: &Shape, varying: Option<VaryingId>) -> String {
        match self.varying_of(varying) {
            None => shape.to_string(),
            Some(varying) => {
                let sizes: Vec<String> = varying.shape().map(|size| size.named(&self.dims).to_string()).collect();
                format!("[{}]", sizes.join(","))
            }
        }
    }

    /// Checks the bounded sizes: a feed that varies has axes that are just sizes, and each size is an axis of a feed.
    pub(crate) fn check_dims(&self) -> Result<(), Error> {
        if self.dims.is_empty() && self.varying.is_empty() {
            return Ok(());
        }
        let bounds: Sizes = self.dims.iter().map(|dim| dim.most).collect();
        let at_bounds: Vec<Option<Layout>> = self.varying.iter().map(|varying| varying.at(&bounds)).collect();
        let fits = |layout: &Layout, varying: Option<VaryingId>| match varying {
            None => true,
            Some(VaryingId(index)) => at_bounds.get(index as usize) == Some(&Some(*layout)),
        };
        let operands = self.steps.iter().flat_map(|step| &step.operands);
        let ports = self.feeds.iter().chain(&self.parameters).chain(&self.fetches);
        let fit = self.values.iter().all(|value| fits(&Layout::contiguous(value.shape), value.varying))
            && operands.map(|it| (&it.layout, it.varying)).all(|(layout, varying)| fits(layout, varying))
            && ports.map(|it| (&it.layout, it.varying)).all(|(layout, varying)| fits(layout, varying));
        if !fit || self.dims.len() > MOST_DIMS {
            return Err(self.malformed("a layout is not what its formulas give for the bounds".to_owned()));
        }
        let mut given = vec![false; self.dims.len()];
        for varying in self.feeds.iter().filter_map(|feed| self.varying_of(feed.varying)) {
            varying.shape().filter_map(Formula::as_dim).for_each(|dim| given[dim] = true);
        }
        match given.iter().position(|given| !given) {
            Some(dim) => Err(self.malformed(format!("no feed has an axis of the size {}", self.dims[dim].name))),
            None => Ok(()),
        }
    }
}
