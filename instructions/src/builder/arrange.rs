//! Tensors that are made of a few copies, fills or ops: repeated and rolled ones, those with values in some places, sequences, and the identity matrix.

use streamvm_ep::{DType, DeviceId, Layout, MAX_RANK, MemoryKind, Op, Params, Scalar, Shape};

use crate::builder::instructions_builder::InstructionsBuilder;
use crate::error::build_error::BuildError;
use crate::error::engine_error::Error;
use crate::list::instruction_list::InstructionList;
use crate::place::Place;
use crate::tensor::handle::{Tensor, in_call};

impl InstructionsBuilder {
    /// Returns a new tensor, at the place of `x`, with the elements of `x` as often on each axis as `counts` says, one repetition after the other. This is one
    /// copy, unless `x` has so many axes that these and those of the repetitions are more than 8: then it is one copy for each repetition along the first axes.
    ///
    /// # Errors
    /// [`BuildError::Repeat`] unless there is one count for each axis; the shape is impossible; those of [`copy_into`](InstructionsBuilder::copy_into).
    #[track_caller]
    pub fn repeat(&mut self, x: &Tensor, counts: &[usize]) -> Result<Tensor, Error> {
        let shape = x.shape();
        if counts.len() != shape.rank() {
            return Err(BuildError::Repeat { shape: Box::new(shape), counts: counts.to_vec() }.into());
        }
        let dims: Vec<usize> = shape.dims().iter().zip(counts).map(|(dim, count)| dim.saturating_mul(*count)).collect();
        let mut copies = self.list_of_its_own();
        let repeated = like(x, &Shape::new(&dims)?);
        match repeated.shape().elements() {
            0 => copies.fill(&repeated, Scalar::zero(x.dtype()))?,
            _ => copies.copy_repeated(x, &repeated, counts)?,
        }
        self.list.append(copies.finish());
        Ok(repeated)
    }

    /// Copies `x` to each of its places in `target`. No size is 0.
    #[track_caller]
    fn copy_repeated(&mut self, x: &Tensor, target: &Tensor, counts: &[usize]) -> Result<(), Error> {
        let sizes = x.shape();
        let is_two = |axis: &usize| counts[*axis] > 1 && sizes.dims()[*axis] > 1;
        // An axis that is repeated, and has more than one element, is two axes of the copy; one that is not, and has one, is none.
        let needed: usize =
            sizes.dims().iter().zip(counts).map(|(&size, &count)| usize::from(size > 1) + usize::from(count > 1)).sum();
        if needed > MAX_RANK
            && let Some(axis) = (0..sizes.rank()).find(is_two)
        {
            let (size, once) = (sizes.dims()[axis], [&counts[..axis], &[1], &counts[axis + 1..]].concat());
            for part in 0..counts[axis] {
                self.copy_repeated(x, &target.slice(axis, part * size..(part + 1) * size)?, &once)?;
            }
            return Ok(());
        }
        // Size, stride of the source, stride of the target.
        let mut axes = Vec::new();
        for (axis, (&size, &count)) in sizes.dims().iter().zip(counts).enumerate() {
            let [from, to] = [x, target].map(|tensor| tensor.layout().strides()[axis]);
            if count > 1 {
                axes.push([count, 0, to * size]);
            }
            if size > 1 {
                axes.push([size, from, to]);
            }
        }
        let [dims, from, to] = [0, 1, 2].map(|part| axes.iter().map(|axis| axis[part]).collect::<Vec<usize>>());
        let shape = Shape::new(&dims)?;
        let view = |tensor: &Tensor, strides: &[usize]| {
            tensor.view(Layout::with_strides(shape, strides, tensor.layout().offset())?)
        };
        self.copy_into(&view(x, &from)?, &view(target, &to)?)
    }

    /// Returns a new tensor, at the place of `x`, in which each element of `x` has moved by `shift` places along `axis`, backwards if `shift` is negative;
    /// elements that leave the axis at one end come in at the other. These are one or two copies.
    ///
    /// # Errors
    /// There is no such axis; those of [`copy_into`](InstructionsBuilder::copy_into).
    #[track_caller]
    pub fn roll(&mut self, x: &Tensor, shift: i64, axis: usize) -> Result<Tensor, Error> {
        let shape = x.shape();
        in_call("roll", shape.check_axis(axis))?;
        let size = shape.dims()[axis];
        // A size fits `i64`, and the remainder is below it.
        let first = if size == 0 { 0 } else { shift.rem_euclid(size as i64) as usize };
        let rolled = like(x, &shape);
        let mut copies = self.list_of_its_own();
        for (from, to) in [(0..size - first, first..size), (size - first..size, 0..first)] {
            if !from.is_empty() || size == 0 {
                copies.copy_into(&x.slice(axis, from)?, &rolled.slice(axis, to)?)?;
            }
        }
        self.list.append(copies.finish());
        Ok(rolled)
    }

    /// Returns `x` with `value` in place of each element for which `mask`, a bool, is true. The shapes of the two broadcast. This is
    /// [`Op::Where`].
    ///
    /// # Errors
    /// The value does not fit the dtype; those of [`op`](InstructionsBuilder::op).
    #[track_caller]
    pub fn masked_fill(&mut self, x: &Tensor, mask: &Tensor, value: impl Into<Scalar>) -> Result<Tensor, Error> {
        self.where_(mask, value.into(), x)
    }

    /// Returns a new matrix with ones, or `true`, on the diagonal from its first element on, and zeros elsewhere. These are two fills.
    ///
    /// # Errors
    /// The shape is impossible.
    #[track_caller]
    pub fn eye(&mut self, place: impl Into<Place>, dtype: DType, rows: usize, columns: usize) -> Result<Tensor, Error> {
        let mut fills = self.list_of_its_own();
        let matrix = fills.zeros(place, dtype, &[rows, columns])?;
        let length = rows.min(columns);
        if length > 0 {
            let diagonal = Layout::with_strides(Shape::new(&[length])?, &[columns + 1], 0)?;
            fills.fill(&matrix.view(diagonal)?, Scalar::one(dtype))?;
        }
        self.list.append(fills.finish());
        Ok(matrix)
    }

    /// Returns a new tensor, of one axis, of the numbers from `first` on, each by `step` more than the one before, as long as they are before `end`; none if
    /// `end` is not after `first`. Element `i` is `first + i step`, computed in `f64` for float dtypes and rounded once, so rounding may add a last number that
    /// is `end` or nearly so: [`linspace`](InstructionsBuilder::linspace) has a given number of elements.
    ///
    /// # Errors
    /// [`BuildError::Value`] if the first or the last element of an integer dtype does not fit it, or a number is no integer; [`BuildError::Range`] if the step is
    /// 0, a number is infinite or NaN, or `end - first` is past the range of `f64`; there are too many elements; the dtype is bool.
    #[track_caller]
    pub fn arange(
        &mut self,
        device: DeviceId,
        dtype: DType,
        first: impl Into<Scalar>,
        end: impl Into<Scalar>,
        step: impl Into<Scalar>,
    ) -> Result<Tensor, Error> {
        let numbers @ [first, end, step] = [first.into(), end.into(), step.into()];
        let refused = |value| BuildError::Value { what: Op::Arange.name().to_owned(), value, dtype };
        let range = || BuildError::Range { what: Op::Arange.name().to_owned(), first, last: end, step: Some(step) };
        let (params, elements) = if dtype.is_float() {
            let [first, end, step] = floats(numbers).map_err(refused)?;
            if step == 0.0 || ![first, end, step, end - first].iter().all(|number| number.is_finite()) {
                return Err(range().into());
            }
            // A float that is too large becomes the largest number, of which there is no shape.
            (Params::floats(first, step), ((end - first) / step).ceil().max(0.0) as usize)
        } else {
            let [first, end, step] = integers(numbers).map_err(refused)?;
            if step == 0 {
                return Err(range().into());
            }
            // None of these is past the range of `i128`.
            let elements = ((end - first + step - step.signum()) / step).max(0);
            for index in [0, elements - 1] {
                let element = first + index * step;
                let fitting =
                    i64::try_from(element).map(Scalar::I64).or_else(|_| u64::try_from(element).map(Scalar::U64));
                let fits = fitting.is_ok_and(|element| element.fits(dtype));
                if elements > 0 && !fits {
                    return Err(refused(fitting.unwrap_or(numbers[usize::from(index > 0)])).into());
                }
            }
            // The kernels count by the low 64 bits, of which an element of any dtype has no more.
            (Params::integers(first as i64, step as i64), usize::try_from(elements).unwrap_or(usize::MAX))
        };
        let sequence = self.output(device, dtype, Shape::new(&[elements])?);
        self.op_into(Op::Arange, &[], params, &sequence)?;
        Ok(sequence)
    }

    /// Returns a new tensor, of one axis, of `count` numbers of a float dtype from `first` to `last`, with equal differences: element `i` is
    /// `first + i (last - first) / (count - 1)`, computed in `f64` and rounded once, and the last one is `last`. One number is `first`. This is
    /// [`Op::Arange`], and a fill of the last element.
    ///
    /// # Errors
    /// [`BuildError::Value`] if the dtype is not a float; [`BuildError::Range`] if a number or the difference is infinite or NaN; there are too many elements.
    #[track_caller]
    pub fn linspace(
        &mut self,
        device: DeviceId,
        dtype: DType,
        first: f64,
        last: f64,
        count: usize,
    ) -> Result<Tensor, Error> {
        let what = || "linspace".to_owned();
        if !dtype.is_float() {
            return Err(BuildError::Value { what: what(), value: Scalar::F64(first), dtype }.into());
        }
        let step = if count > 1 { (last - first) / (count - 1) as f64 } else { 0.0 };
        if ![first, last, step].iter().all(|number| number.is_finite()) {
            let [first, last] = [first, last].map(Scalar::F64);
            return Err(BuildError::Range { what: what(), first, last, step: None }.into());
        }
        let numbers = self.output(device, dtype, Shape::new(&[count])?);
        let mut steps = self.list_of_its_own();
        steps.op_into(Op::Arange, &[], Params::floats(first, step), &numbers)?;
        if count > 1 {
            steps.fill(&numbers.slice(0, count - 1..count)?, last)?;
        }
        self.list.append(steps.finish());
        Ok(numbers)
    }

    /// A builder with the options of this one. Its list is appended once it is complete, so that an error leaves the list of this builder as it is.
    pub(super) fn list_of_its_own(&self) -> InstructionsBuilder {
        InstructionsBuilder { list: InstructionList::new(), options: self.options }
    }
}

/// Numbers as floats, or the one that is none.
fn floats(numbers: [Scalar; 3]) -> Result<[f64; 3], Scalar> {
    let mut all = [0.0; 3];
    for (float, number) in all.iter_mut().zip(numbers) {
        *float = match number {
            Scalar::F64(value) => value,
            Scalar::I64(value) => value as f64,
            Scalar::U64(value) => value as f64,
            Scalar::Bool(_) => return Err(number),
        };
    }
    Ok(all)
}

/// Numbers as integers, or the one that is none.
fn integers(numbers: [Scalar; 3]) -> Result<[i128; 3], Scalar> {
    let mut all = [0; 3];
    for (integer, number) in all.iter_mut().zip(numbers) {
        *integer = match number {
            Scalar::I64(value) => value.into(),
            Scalar::U64(value) => value.into(),
            _ => return Err(number),
        };
    }
    Ok(all)
}

/// A new tensor of this shape, at the place of `x` and of its dtype and engine.
fn like(x: &Tensor, shape: &Shape) -> Tensor {
    Tensor::unbound_of(x.resource().engine(), x.place(), MemoryKind::Device, x.dtype(), shape)
}
