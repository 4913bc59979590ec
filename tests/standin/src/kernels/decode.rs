//! Decodes the parameter of a kernel into its operands; `streamvm_cuda::abi` defines the parameter.

use std::ops::Range;

use streamvm_cuda::abi::{Arguments, Status, View};
use streamvm_cuda::{KernelName, ReductionState};
use streamvm_ep::{Access, Axes, DType, Layout, MAX_RANK, Op, Params, Shape, infer};

use super::{dtype_of, window};

/// The decoded parameter of a kernel, with device addresses.
#[derive(Clone, Debug)]
pub(crate) struct Decoded {
    /// Inputs first, then the output.
    pub(crate) operands: Vec<Decoding>,
    /// The bytes of the status, to which the kernel reports failures, if it has one.
    pub(crate) status: Option<Range<usize>>,
}

/// One operand.
#[derive(Clone, Debug)]
pub(crate) struct Decoding {
    /// Address of the first element.
    pub(crate) base: usize,
    pub(crate) dtype: DType,
    pub(crate) layout: Layout,
    pub(crate) access: Access,
}

impl Decoding {
    /// The range from the first byte that it reaches to one past the last.
    pub(crate) fn bytes(&self) -> Range<usize> {
        let elements = self.layout.span_elements();
        self.base..self.base.saturating_add(elements.len().saturating_mul(self.dtype.size()))
    }

    /// Is the address of its first element a multiple of the element size?
    pub(crate) fn is_aligned(&self) -> bool {
        self.base.is_multiple_of(self.dtype.size())
    }
}

/// Decodes the parameter of a kernel.
///
/// # Errors
///
/// The first inconsistency in it, as text.
pub(crate) fn decode(function: KernelName, arguments: &Arguments) -> Result<Decoded, String> {
    let outer = axes("shape", &arguments.shape, arguments.rank)?;
    let inner = axes("inner", &arguments.inner, arguments.inner_rank)?;
    let count = |dims: &[usize]| dims.iter().try_fold(1usize, |all, &dim| all.checked_mul(dim)).map(|all| all as u64);
    // Other kernels do not read the number of inner elements.
    let inner_elements = if has_lanes(function) || matches!(function, KernelName::OneHot(..)) {
        count(&inner)
    } else {
        Some(arguments.inner_elements)
    };
    for (name, expected, said, dims) in [
        ("elements", count(&outer), arguments.elements, &outer),
        ("inner_elements", inner_elements, arguments.inner_elements, &inner),
    ] {
        if expected != Some(said) {
            return Err(format!("{name} is {said}, but the axes are {dims:?}"));
        }
    }
    let mut reader = Reader { arguments, outer: &outer, next: 0, operands: Vec::new() };
    let sized = |bytes| dtype_of(bytes).ok_or("no element has that many bytes");
    match function {
        KernelName::Copy(bytes) => {
            reader.operand(sized(bytes)?, &[], Access::Read)?;
            reader.operand(sized(bytes)?, &[], Access::Write)?;
        }
        KernelName::Fill(bytes) => {
            reader.operand(sized(bytes)?, &[], Access::Write)?;
        }
        KernelName::Pad(bytes) => {
            if inner.len() != outer.len() {
                return Err(format!("pad of {inner:?} to {outer:?}"));
            }
            let margin = |(&inside, &size)| if inside == size { 0 } else { arguments.before as usize };
            let before: Vec<usize> = inner.iter().zip(&outer).map(margin).collect();
            if (0..outer.len()).any(|axis| before[axis] + inner[axis] > outer[axis]) {
                return Err(format!("pad of {inner:?} to {outer:?} behind {before:?}"));
            }
            reader.operand_of(sized(bytes)?, &inner, Access::Read)?;
            reader.operand(sized(bytes)?, &[], Access::Write)?;
        }
        KernelName::OneHot(from, bytes) => {
            if inner.len() != 1 {
                return Err(format!("one-hot with the inner axes {inner:?}"));
            }
            reader.operand(from, &[], Access::Read)?;
            reader.operand(sized(bytes)?, &inner, Access::Write)?;
        }
        KernelName::IndexSelect(from, bytes) => {
            let &[_, columns] = &inner[..] else { return Err(format!("index_select with the inner axes {inner:?}")) };
            reader.operand_of(sized(bytes)?, &inner, Access::Read)?;
            reader.operand(from, &[], Access::Read)?;
            reader.operand(sized(bytes)?, &[columns], Access::Write)?;
        }
        KernelName::OfSize(Op::Flip, bytes) => {
            if arguments.before.checked_shr(arguments.rank).unwrap_or(0) != 0 {
                return Err(format!("a flip of {outer:?} along the axes of the bits {:b}", arguments.before));
            }
            reader.operand(sized(bytes)?, &[], Access::Read)?;
            reader.operand(sized(bytes)?, &[], Access::Write)?;
        }
        KernelName::OfSize(op @ (Op::Tril | Op::Triu), bytes) => {
            if inner.len() != 2 {
                return Err(format!("{op} with the inner axes {inner:?}"));
            }
            reader.operand(sized(bytes)?, &inner, Access::Read)?;
            reader.operand(sized(bytes)?, &inner, Access::Write)?;
        }
        KernelName::Op(Op::CumSum, dtype) => {
            if inner.len() != 1 {
                return Err(format!("cumsum with the inner axes {inner:?}"));
            }
            reader.operand(dtype, &inner, Access::Read)?;
            reader.operand(dtype, &inner, Access::Write)?;
        }
        KernelName::OfSize(op @ (Op::TakeAlongAxis | Op::Scatter), _) | KernelName::Op(op @ Op::ScatterAdd, _) => {
            let &[size, count] = &inner[..] else { return Err(format!("{op} with the inner axes {inner:?}")) };
            let dtype = match function {
                KernelName::OfSize(_, bytes) => sized(bytes)?,
                KernelName::Op(_, dtype) => dtype,
                _ => return Err(format!("{function} takes no indices")),
            };
            reader.operand(dtype, &[size], Access::Read)?;
            reader.operand(index_dtype(arguments)?, &[count], Access::Read)?;
            if op != Op::TakeAlongAxis {
                reader.operand(dtype, &[count], Access::Read)?;
            }
            reader.operand(dtype, &[if op == Op::TakeAlongAxis { count } else { size }], Access::Write)?;
        }
        KernelName::OfSize(Op::ArgSort, bytes) => {
            let &[size, count] = &inner[..] else { return Err(format!("argsort with the inner axes {inner:?}")) };
            reader.operand(sized(bytes)?, &[size], Access::Read)?;
            reader.operand(DType::I64, &[count], Access::Write)?;
        }
        KernelName::OfSize(op, _) => return Err(format!("{op} does not move elements by their size alone")),
        KernelName::Op(op @ (Op::LayerNorm | Op::RmsNorm), dtype) => {
            let &[length] = &inner[..] else { return Err(format!("{op} with the inner axes {inner:?}")) };
            reader.operand(dtype, &inner, Access::Read)?;
            for _ in 1..op.arity() {
                reader.operand_along_inner(dtype, length)?;
            }
            reader.operand(dtype, &inner, Access::Write)?;
        }
        KernelName::Op(op @ (Op::CrossEntropy | Op::CrossEntropyBackward), dtype) => {
            reader.operand(dtype, &inner, Access::Read)?;
            reader.operand(DType::I64, &[], Access::Read)?;
            if op == Op::CrossEntropyBackward {
                reader.operand(dtype, &[], Access::Read)?;
                reader.operand(dtype, &inner, Access::Write)?;
            } else {
                reader.operand(dtype, &[], Access::Write)?;
            }
        }
        KernelName::Op(op, dtype) if op.moves_a_window() => {
            for dims in window::inputs(op, &outer, &inner, arguments)? {
                reader.operand_of(dtype, &dims, Access::Read)?;
            }
            reader.operand(dtype, &[], Access::Write)?;
        }
        KernelName::Cast(from, to) => {
            reader.operand(from, &[], Access::Read)?;
            reader.operand(to, &[], Access::Write)?;
        }
        KernelName::Op(Op::MatMul, dtype) => {
            let &[m, n, k] = &inner[..] else { return Err(format!("matmul with the inner axes {inner:?}")) };
            reader.operand(dtype, &[m, k], Access::Read)?;
            reader.operand(dtype, &[k, n], Access::Read)?;
            reader.operand(dtype, &[m, n], Access::Write)?;
        }
        KernelName::Op(op, dtype) if has_lanes(function) => {
            // One axis of size 1 instead of none, since no axes would mean all axes.
            let inner = if inner.is_empty() { vec![1] } else { inner.clone() };
            let over: Vec<usize> = (outer.len()..outer.len() + inner.len()).collect();
            let params = Params::over(Axes::new(&over).map_err(|error| error.to_string())?);
            if op.is_reduction() && arguments.before != 0 {
                reader.pass(function, &inner, &params)?;
            } else {
                for _ in 0..op.arity() {
                    reader.operand(dtype, &inner, Access::Read)?;
                }
                let output = reader.output_dtype(op, &params)?;
                let kept: &[usize] = if op.is_softmax() { &inner } else { &[] };
                reader.operand(output, kept, Access::Write)?;
            }
        }
        KernelName::Op(op, dtype) if op.is_source() => {
            reader.operand(dtype, &[], Access::Write)?;
        }
        KernelName::Op(op, dtype) | KernelName::WithNumbers(op, dtype, _) => {
            // Numbers are in the parameter, and no operands.
            let is_tensor =
                |input: &usize| !matches!(function, KernelName::WithNumbers(_, _, places) if places.contains(*input));
            for input in (0..op.arity()).filter(is_tensor) {
                let dtype = if op == Op::Where && input == 0 { DType::Bool } else { dtype };
                reader.operand(dtype, &[], Access::Read)?;
            }
            let output = match function {
                KernelName::WithNumbers(..) => op.elementwise_output(dtype),
                _ => reader.output_dtype(op, &Params::default())?,
            };
            reader.operand(output, &[], Access::Write)?;
        }
    }
    let operands = reader.finish()?;
    let start = arguments.status as usize;
    let status = (start != 0 && function.can_fail()).then(|| start..start.saturating_add(size_of::<Status>()));
    Ok(Decoded { operands, status })
}

/// The dtype of the indices of an op along an axis, by the size of one.
fn index_dtype(arguments: &Arguments) -> Result<DType, String> {
    match arguments.before {
        1 => Ok(DType::U8),
        4 => Ok(DType::I32),
        8 => Ok(DType::I64),
        bytes => Err(format!("indices of {bytes} bytes")),
    }
}

/// Is it a reduction, of the softmax family, a norm or a cross entropy, whose threads share the inner elements?
fn has_lanes(function: KernelName) -> bool {
    matches!(function, KernelName::Op(op, _) if op.is_reduction() || op.is_softmax()
        || matches!(op, Op::LayerNorm | Op::RmsNorm | Op::CrossEntropy | Op::CrossEntropyBackward))
}

/// Checks the sizes of axes.
pub(super) fn axes(name: &str, sizes: &[i64; MAX_RANK], rank: u32) -> Result<Vec<usize>, String> {
    let used = sizes.get(..rank as usize).ok_or_else(|| format!("{name} has {rank} axes, at most {MAX_RANK} fit"))?;
    let size = |&size: &i64| usize::try_from(size).map_err(|_| format!("{name} has an axis of size {size}"));
    used.iter().map(size).collect()
}

/// Reads the views one after the other.
struct Reader<'a> {
    arguments: &'a Arguments,
    outer: &'a [usize],
    next: usize,
    operands: Vec<Decoding>,
}

impl Reader<'_> {
    /// Reads the next view, as an operand with the outer axes followed by these.
    fn operand(&mut self, dtype: DType, inner: &[usize], access: Access) -> Result<(), String> {
        let dims: Vec<usize> = self.outer.iter().chain(inner).copied().collect();
        self.operand_of(dtype, &dims, access)
    }

    /// Reads the next view, as an operand with these axes.
    fn operand_of(&mut self, dtype: DType, dims: &[usize], access: Access) -> Result<(), String> {
        let number = self.next;
        let view = self.arguments.views.get(number).ok_or("more operands than there are views")?;
        self.next += 1;
        let wrong = |error: &dyn std::fmt::Display| format!("view {number}: {error}");
        let shape = Shape::new(dims).map_err(|error| wrong(&error))?;
        let layout = Layout::with_strides(shape, &strides(view, dims.len()).map_err(|error| wrong(&error))?, 0)
            .map_err(|error| wrong(&error))?;
        self.operands.push(Decoding { base: view.base as usize, dtype, layout, access });
        Ok(())
    }

    /// Reads the next view, which is the same for every index of the outer axes, as an operand with the one inner axis.
    fn operand_along_inner(&mut self, dtype: DType, length: usize) -> Result<(), String> {
        self.operand(dtype, &[length], Access::Read)?;
        let outer = self.outer.len();
        let Some(Decoding { layout, .. }) = self.operands.last_mut() else { return Ok(()) };
        let (strides, along) = layout.strides().split_at(outer);
        if strides.iter().any(|&stride| stride != 0) {
            return Err(format!("a weight or bias with the strides {strides:?} along the outer axes"));
        }
        let row = Shape::new(&[length]).and_then(|shape| Layout::with_strides(shape, along, 0));
        *layout = row.map_err(|error| error.to_string())?;
        Ok(())
    }

    /// Reads the views of one of the two launches of a reduction over these inner axes.
    fn pass(&mut self, function: KernelName, inner: &[usize], params: &Params) -> Result<(), String> {
        let (KernelName::Op(op, dtype), Some(state)) = (function, ReductionState::of(function)) else {
            return Err(format!("{function} has no states"));
        };
        let Arguments { value: of_a_part, counter: parts, inner_elements: all, lanes, .. } = *self.arguments;
        if of_a_part == 0 || all.div_ceil(of_a_part) != parts {
            return Err(format!("{function} of {all} elements in {parts} parts of {of_a_part}"));
        }
        match self.arguments.before {
            Arguments::FOLD => {
                self.operand(dtype, inner, Access::Read)?;
                self.states(&state, Access::Write)
            }
            Arguments::JOIN if parts > u64::from(lanes) => {
                Err(format!("{function} joins {parts} parts by {lanes} lanes, of which each has one"))
            }
            Arguments::JOIN => {
                self.states(&state, Access::Read)?;
                let whole: Vec<usize> = self.outer.iter().chain(inner).copied().collect();
                let whole = Shape::new(&whole).map_err(|error| error.to_string())?;
                let (output, _) = infer(op, &[(dtype, &whole)], params).map_err(|error| error.to_string())?;
                self.operand(output, &[], Access::Write)
            }
            other => Err(format!("{function} in pass {other}")),
        }
    }

    /// Reads the next view, as the states of a reduction: an operand for each field of them.
    fn states(&mut self, state: &ReductionState, access: Access) -> Result<(), String> {
        let (Arguments { elements, counter, .. }, number) = (self.arguments, self.next);
        let base = self.arguments.views.get(number).ok_or("more operands than there are views")?.base as usize;
        self.next += 1;
        let count = usize::try_from(elements.saturating_mul(*counter)).map_err(|error| error.to_string())?;
        if !base.is_multiple_of(8) {
            return Err(format!("view {number}: states at {base:#x}, which is no multiple of 8"));
        }
        let shape = Shape::new(&[count]).map_err(|error| error.to_string())?;
        for (field, &dtype) in state.fields().iter().enumerate() {
            let layout = Layout::with_strides(shape, &[state.bytes() / dtype.size()], 0);
            let layout = layout.map_err(|error| error.to_string())?;
            self.operands.push(Decoding { base: base + 8 * field, dtype, layout, access });
        }
        Ok(())
    }

    /// The dtype of the output of `op` for the operands so far.
    fn output_dtype(&self, op: Op, params: &Params) -> Result<DType, String> {
        let inputs: Vec<_> = self.operands.iter().map(|operand| (operand.dtype, operand.layout.shape())).collect();
        infer(op, &inputs, params).map(|(dtype, _)| dtype).map_err(|error| error.to_string())
    }

    /// Returns the operands; the remaining views must be empty.
    fn finish(self) -> Result<Vec<Decoding>, String> {
        let empty = View { base: 0, strides: [0; MAX_RANK] };
        match self.arguments.views[self.next..].iter().position(|view| *view != empty) {
            Some(extra) => Err(format!("view {} is set, but the kernel has {} operands", self.next + extra, self.next)),
            None => Ok(self.operands),
        }
    }
}

pub(super) fn strides(view: &View, rank: usize) -> Result<Vec<usize>, String> {
    let used = view.strides.get(..rank).ok_or_else(|| format!("{rank} axes, at most {MAX_RANK} fit"))?;
    used.iter().map(|&stride| usize::try_from(stride).map_err(|_| format!("it has the stride {stride}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(base: u64, strides: &[i64]) -> View {
        let mut all = [0; MAX_RANK];
        all[..strides.len()].copy_from_slice(strides);
        View { base, strides: all }
    }

    fn arguments(views: &[View], shape: &[i64], inner: &[i64]) -> Arguments {
        let fill = |sizes: &[i64]| std::array::from_fn(|axis| sizes.get(axis).copied().unwrap_or(1));
        let empty = view(0, &[]);
        Arguments {
            views: std::array::from_fn(|at| views.get(at).copied().unwrap_or(empty)),
            shape: fill(shape),
            inner: fill(inner),
            rank: shape.len() as u32,
            inner_rank: inner.len() as u32,
            elements: shape.iter().product::<i64>() as u64,
            inner_elements: if inner.len() == 1 { inner[0] as u64 } else { 0 },
            value: 0,
            counter: 0,
            status: 0,
            vectors: 0,
            lanes: 1,
            across: 0,
            before: 0,
        }
    }

    fn shapes(name: &str, arguments: &Arguments) -> Result<Vec<String>, String> {
        let decoded = decode(name.parse().unwrap(), arguments)?;
        Ok(decoded.operands.iter().map(|one| format!("{}{}", one.dtype, one.layout.shape())).collect())
    }

    #[test]
    fn operands_follow_from_the_family() {
        let elementwise = arguments(&[view(64, &[4, 1]), view(128, &[0, 1]), view(256, &[4, 1])], &[3, 4], &[]);
        assert_eq!(shapes("sv_lt_f32", &elementwise).unwrap(), ["f32[3,4]", "f32[3,4]", "bool[3,4]"]);
        let reduction = arguments(&[view(64, &[4, 1]), view(256, &[1])], &[3], &[4]);
        assert_eq!(shapes("sv_sum_i32", &reduction).unwrap(), ["i32[3,4]", "i32[3]"]);
        assert_eq!(
            shapes("sv_softmax_f32", &arguments(&[view(64, &[4, 1]), view(256, &[4, 1])], &[3], &[4])).unwrap(),
            ["f32[3,4]", "f32[3,4]"]
        );
        let margins = arguments(&[view(64, &[4, 1]), view(256, &[7, 1])], &[3, 7], &[3, 4]);
        let margins = Arguments { before: 2, ..margins };
        assert_eq!(shapes("sv_pad_8", &margins).unwrap(), ["f64[3,4]", "f64[3,7]"]);
        assert!(shapes("sv_pad_8", &Arguments { before: 4, ..margins }).is_err());
        let hot = arguments(&[view(64, &[1]), view(256, &[5, 1])], &[3], &[5]);
        assert_eq!(shapes("sv_one_hot_i64_4", &hot).unwrap(), ["i64[3]", "f32[3,5]"]);
        let rows = arguments(&[view(64, &[6, 2]), view(128, &[1]), view(256, &[4, 1])], &[3], &[5, 4]);
        assert_eq!(shapes("sv_index_select_i64_4", &rows).unwrap(), ["f32[5,4]", "i64[3]", "f32[3,4]"]);
        let views = [view(64, &[4, 1]), view(128, &[0, 2]), view(192, &[0, 1]), view(256, &[4, 1])];
        let norm = Arguments { value: 0.5f64.to_bits(), ..arguments(&views, &[3], &[4]) };
        assert_eq!(shapes("sv_layer_norm_f32", &norm).unwrap(), ["f32[3,4]", "f32[4]", "f32[4]", "f32[3,4]"]);
        let turned = Arguments { views: [views[0], views[0], views[2], views[3]], ..norm };
        assert!(shapes("sv_layer_norm_f32", &turned).is_err());
        let product = arguments(&[view(64, &[6, 3, 1]), view(64, &[0, 4, 1]), view(256, &[8, 4, 1])], &[5], &[2, 4, 3]);
        assert_eq!(shapes("sv_matmul_f64", &product).unwrap(), ["f64[5,2,3]", "f64[5,3,4]", "f64[5,2,4]"]);
    }

    #[test]
    fn operands_of_windows_follow_from_the_output_and_the_inner_sizes() {
        let four = |base| view(base, &[64, 16, 4, 1]);
        let moved = Arguments { value: 1 | 1 << 16, counter: 1 | 1 << 16 | 2 << 32, ..arguments(&[], &[], &[]) };
        let of = |views: &[u64], shape: &[i64], inner: &[i64]| {
            let views: Vec<View> = views.iter().map(|&base| four(base)).collect();
            Arguments { value: moved.value, counter: moved.counter, ..arguments(&views, shape, inner) }
        };
        let forward = of(&[64, 128, 256], &[1, 6, 3, 3], &[2, 2, 2, 4, 4]);
        assert_eq!(shapes("sv_conv2d_f32", &forward).unwrap(), ["f32[1,4,4,4]", "f32[6,2,2,2]", "f32[1,6,3,3]"]);
        let input = of(&[64, 128, 192, 256], &[1, 4, 4, 4], &[3, 2, 2, 3, 3]);
        let expected = ["f64[1,4,4,4]", "f64[6,2,2,2]", "f64[1,6,3,3]", "f64[1,4,4,4]"];
        assert_eq!(shapes("sv_conv2d_backward_input_f64", &input).unwrap(), expected);
        let weight = of(&[64, 128, 192, 256], &[6, 2, 2, 2], &[1, 3, 3, 4, 4]);
        let expected = ["f64[1,4,4,4]", "f64[6,2,2,2]", "f64[1,6,3,3]", "f64[6,2,2,2]"];
        assert_eq!(shapes("sv_conv2d_backward_weight_f64", &weight).unwrap(), expected);
        let pooled = of(&[64, 256], &[1, 4, 3, 3], &[2, 2, 4, 4]);
        assert_eq!(shapes("sv_max_pool2d_f32", &pooled).unwrap(), ["f32[1,4,4,4]", "f32[1,4,3,3]"]);
        let gradient = of(&[64, 128, 256], &[1, 4, 4, 4], &[2, 2, 3, 3]);
        let expected = ["f32[1,4,4,4]", "f32[1,4,3,3]", "f32[1,4,4,4]"];
        assert_eq!(shapes("sv_avg_pool2d_backward_f32", &gradient).unwrap(), expected);
        assert!(shapes("sv_conv2d_f32", &of(&[64, 128, 256], &[1, 6, 3, 3], &[2, 2, 2, 4])).is_err());
        assert!(shapes("sv_conv2d_f32", &Arguments { counter: 0, ..forward }).is_err());
    }

    #[test]
    fn a_reduction_over_axes_of_size_one_reduces_nothing_else() {
        let none = Arguments { inner_elements: 1, ..arguments(&[view(64, &[1]), view(256, &[1])], &[3], &[]) };
        let decoded = decode("sv_sum_f32".parse().unwrap(), &none);
        let decoded = decoded.unwrap();
        assert_eq!(decoded.operands[0].layout.shape().to_string(), "[3,1]");
    }

    #[test]
    fn arguments_that_make_no_sense_are_refused() {
        let good = arguments(&[view(64, &[1]), view(256, &[1])], &[3], &[]);
        assert!(shapes("sv_neg_f32", &good).is_ok());
        for broken in [
            Arguments { rank: 9, ..good },
            Arguments { elements: 4, ..good },
            Arguments { shape: [-1, 1, 1, 1, 1, 1, 1, 1], ..good },
            arguments(&[view(64, &[-1]), view(256, &[1])], &[3], &[]),
            arguments(&[view(64, &[1]), view(256, &[1]), view(512, &[1])], &[3], &[]),
        ] {
            assert!(shapes("sv_neg_f32", &broken).is_err(), "{broken:?}");
        }
        let reduced = arguments(&[view(64, &[4, 1]), view(256, &[1])], &[3], &[4]);
        assert!(shapes("sv_sum_f32", &Arguments { inner_elements: 5, ..reduced }).is_err());
    }
}
