//! Emits values: loads, copies, fills, and kernels with the numbers among their operands.

use super::{Emitter, view};
use crate::base::engine::{Axes, DType, DeviceId, Error, Extra, Generator, Numbers, Op, Params, Scalar, Shape, Tensor};
use crate::syntax::ast::{Expr, ExprKind, ExtraRef, Number, PlaceRef, RangeBy};
use crate::syntax::diagnostic::Diagnostic;
use crate::syntax::source::{Span, Spanned};

impl Emitter<'_> {
    /// Emits an expression on its lane, or on `lane` if it names none.
    pub(super) fn value(&mut self, expr: &Expr, lane: u32) -> Result<Tensor, Diagnostic> {
        let lane = self.lane_of(expr.lane.as_ref()).unwrap_or(lane);
        let at = |error: Error| Diagnostic::new(expr.span, error.without_call());
        match &expr.kind {
            ExprKind::Name(name) => self.named(name, expr.span),
            ExprKind::Number(_) => Err(Diagnostic::new(expr.span, "expected a tensor, found a number")
                .with_help("a number can be an operand of an elementwise op beside a tensor; `fill` makes a tensor")),
            ExprKind::Load { path, tensor } => {
                let name = tensor.as_ref().map(|name| name.value.as_str());
                let file = self.source.resolve(&path.value);
                self.loader.load(&file, name).map_err(|message| {
                    let missing = !file.exists();
                    Diagnostic::new(path.span, message)
                        .with_help_if(missing.then(|| "a relative path starts at the folder of the script".to_owned()))
                })
            }
            ExprKind::Copy { value, to } => {
                let Some(to) = to else {
                    return Err(Diagnostic::new(expr.span, "expected `to` and a place after what is copied"));
                };
                let place = self.devices.place(to)?;
                let tensor = self.value(value, lane)?;
                self.builder.on_lane(lane).copy(&tensor, place).map_err(at)
            }
            ExprKind::Fill { dtype, dims, value, on } => {
                let place = self.devices.place(on)?;
                let shape = shape(&self.scope.numbers(dims)?, expr.span)?;
                let value = match value {
                    Some(value) => scalar(value, *dtype)?,
                    None => Scalar::zero(*dtype),
                };
                self.builder.on_lane(lane).full(place, *dtype, shape.dims(), value).map_err(at)
            }
            ExprKind::Range { dtype, first, last, by, on } => {
                let device = self.device(on, expr.span, Op::Arange.name())?;
                let mut builder = self.builder.on_lane(lane);
                match by {
                    RangeBy::Step(step) => {
                        let [first, last, step] = [first, last, step].map(|number| any_scalar(number.value));
                        builder.arange(device, *dtype, first, last, step)
                    }
                    RangeBy::Count(count) => builder.linspace(device, *dtype, float(first)?, float(last)?, *count),
                }
                .map_err(at)
            }
            ExprKind::Random { op, dtype, dims, seed, on } => {
                let device = self.device(on, expr.span, op.name())?;
                let shape = shape(&self.scope.numbers(dims)?, expr.span)?;
                let generator = self.generators.entry(*seed).or_insert_with(|| Generator::new(*seed));
                let mut builder = self.builder.on_lane(lane);
                match op {
                    Op::Normal => builder.randn(generator, device, *dtype, shape.dims()),
                    _ => builder.rand(generator, device, *dtype, shape.dims()),
                }
                .map_err(at)
            }
            ExprKind::Call { op, inputs, axes, keep, to, extra } => {
                let (inputs, numbers) = self.inputs(*op, inputs, lane)?;
                let params = params(*op, (&inputs, numbers), axes, *keep, *to, extra)?;
                let inputs: Vec<&Tensor> = inputs.iter().collect();
                self.builder.on_lane(lane).op(*op, &inputs, params).map_err(at)
            }
            ExprKind::Composed { inputs, call } => {
                let inputs = inputs.iter().map(|input| self.value(input, lane)).collect::<Result<Vec<_>, _>>()?;
                self.composed(call, &inputs, expr.span, lane)
            }
            ExprKind::Join { inputs, axis, is_new } => {
                let inputs: Vec<Tensor> =
                    inputs.iter().map(|input| self.value(input, lane)).collect::<Result<_, _>>()?;
                let shape = inputs.first().map_or(Shape::SCALAR, Tensor::shape);
                let tensors: Vec<&Tensor> = inputs.iter().collect();
                let mut builder = self.builder.on_lane(lane);
                match is_new {
                    true => builder.stack(&tensors, view::new_axis("stack", &shape, axis.value, axis.span)?),
                    false => builder.cat(&tensors, view::axis("cat", &shape, axis.value, axis.span)?),
                }
                .map_err(at)
            }
            ExprKind::Eye { dtype, dims, on } => {
                let place = self.devices.place(on)?;
                let shape = shape(&self.scope.numbers(dims)?, expr.span)?;
                // The parser takes one size or two.
                let size = |axis: usize| shape.dims().get(axis).or(shape.dims().first()).copied().unwrap_or_default();
                self.builder.on_lane(lane).eye(place, *dtype, size(0), size(1)).map_err(at)
            }
            ExprKind::View { value, view } => {
                let tensor = self.value(value, lane)?;
                view::apply(&mut self.builder.on_lane(lane), &tensor, view, &self.scope, expr.span)
            }
        }
    }

    /// The device of what runs on devices alone.
    fn device(&self, on: &PlaceRef, span: Span, what: &str) -> Result<DeviceId, Diagnostic> {
        self.devices.place(on)?.device().ok_or_else(|| {
            Diagnostic::new(span, format!("{what} runs on devices alone"))
                .with_help("compute it on a device such as `cpu:0`, and copy from there")
        })
    }

    /// The inputs of an op: its tensors, and its numbers with their places among all inputs. A number has the dtype of the tensor beside it.
    pub(super) fn inputs(&mut self, op: Op, inputs: &[Expr], lane: u32) -> Result<(Vec<Tensor>, Numbers), Diagnostic> {
        let is_registered = op.is_over_tensors();
        let mut tensors: Vec<Option<Tensor>> = Vec::with_capacity(inputs.len());
        for input in inputs {
            tensors.push(match input.kind {
                ExprKind::Number(_) if op.is_elementwise() || is_registered => None,
                _ => Some(self.value(input, lane)?),
            });
        }
        // The condition of `where` is a bool, so its dtype does not decide the dtype of the numbers.
        let first_value = usize::from(op == Op::Where);
        let like = tensors.iter().skip(first_value).flatten().next().cloned();
        let (mut out, mut numbers) = (Vec::with_capacity(inputs.len()), Numbers::NONE);
        for (index, (tensor, input)) in tensors.into_iter().zip(inputs).enumerate() {
            let (None, ExprKind::Number(number)) = (&tensor, &input.kind) else {
                out.extend(tensor);
                continue;
            };
            if is_registered {
                numbers = numbers.with(index, any_scalar(*number));
                continue;
            }
            let Some(like) = like.as_ref().filter(|_| index >= first_value) else {
                return Err(Diagnostic::new(input.span, format!("{op} needs a tensor beside or instead of a number"))
                    .with_help("a number has the dtype of the tensor beside it; `fill` makes a tensor"));
            };
            numbers = numbers.with(index, scalar(&Spanned::new(*number, input.span), like.dtype())?);
        }
        Ok((out, numbers))
    }
}

/// A number as a value, whatever the dtype.
fn any_scalar(number: Number) -> Scalar {
    match number {
        Number::Int(value) => Scalar::I64(value),
        Number::Large(value) => Scalar::U64(value),
        Number::Float(value) => Scalar::F64(value),
        Number::Bool(value) => Scalar::Bool(value),
    }
}

/// A number as a value of a dtype.
pub(crate) fn scalar(number: &Spanned<Number>, dtype: DType) -> Result<Scalar, Diagnostic> {
    let value = match number.value {
        // Above 2^53 not every whole number is an f64. As an integer the number is rounded only once, to the float dtype that it becomes.
        Number::Int(value) if dtype.is_float() && value.unsigned_abs() <= 1 << 53 => Scalar::F64(value as f64),
        Number::Int(value) => Scalar::I64(value),
        Number::Large(value) => Scalar::U64(value),
        Number::Float(value) => Scalar::F64(value),
        Number::Bool(value) => Scalar::Bool(value),
    };
    if value.fits(dtype) {
        return Ok(value);
    }
    let expected = match dtype {
        DType::Bool => "expected true or false",
        dtype if dtype.is_float() => "expected a number",
        _ => "expected a whole number in its range",
    };
    Err(Diagnostic::new(number.span, format!("{value} does not fit {dtype}, {expected}")))
}

/// A number as an `f64`.
pub(super) fn float(number: &Spanned<Number>) -> Result<f64, Diagnostic> {
    match scalar(number, DType::F64)? {
        Scalar::I64(value) => Ok(value as f64),
        Scalar::U64(value) => Ok(value as f64),
        Scalar::F64(value) => Ok(value),
        Scalar::Bool(_) => Err(Diagnostic::new(number.span, "expected a number")),
    }
}

/// The shape of sizes as the script gives them.
pub(super) fn shape(dims: &[Spanned<i64>], span: Span) -> Result<Shape, Diagnostic> {
    let sizes: Vec<usize> = dims
        .iter()
        .map(|dim| {
            usize::try_from(dim.value)
                .map_err(|_| Diagnostic::new(dim.span, format!("a size is zero or more, found {}", dim.value)))
        })
        .collect::<Result<_, _>>()?;
    Shape::new(&sizes).map_err(|error| Diagnostic::new(span, error.to_string()))
}

/// The parameters of an op over these tensors and numbers; a negative axis counts from the last axis of the first input.
pub(super) fn params(
    op: Op,
    (inputs, numbers): (&[Tensor], Numbers),
    axes: &[Spanned<i64>],
    keep: bool,
    to: Option<DType>,
    extra: &ExtraRef,
) -> Result<Params, Diagnostic> {
    let shape = inputs.first().map_or(Shape::SCALAR, Tensor::shape);
    let mut resolved = Vec::with_capacity(axes.len());
    for axis in axes {
        resolved.push(view::axis(op.name(), &shape, axis.value, axis.span)?);
    }
    let span = axes.iter().map(|axis| axis.span).reduce(Span::to).unwrap_or_default();
    let axes = Axes::new(&resolved).map_err(|error| Diagnostic::new(span, format!("{op}: {error}")))?;
    let dtype = inputs.first().map_or(DType::F32, Tensor::dtype);
    let extra = match extra {
        ExtraRef::None if numbers.is_empty() => Extra::None,
        ExtraRef::None => Extra::Numbers(numbers),
        ExtraRef::Pad { before, after, value } => {
            let value = value.as_ref().map_or(Ok(Scalar::zero(dtype)), |value| scalar(value, dtype))?;
            Extra::Pad { before: *before, after: *after, value }
        }
        ExtraRef::Diagonal(diagonal) => Extra::Diagonal(*diagonal),
        ExtraRef::Order { descending } => Extra::Order { descending: *descending },
        ExtraRef::Top { count, largest } => Extra::Top { count: *count, largest: *largest },
        ExtraRef::Classes(classes) => Extra::Classes(*classes),
        ExtraRef::Convolution(by) => Extra::Convolution(*by),
        ExtraRef::Pooling(by) => Extra::Pooling(*by),
        ExtraRef::Epsilon(epsilon) => Extra::Epsilon(scalar(epsilon, DType::F64)?),
    };
    Ok(Params { axes, keep_dims: keep, to, extra })
}
