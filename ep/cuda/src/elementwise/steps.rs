//! The steps of a kernel: an eager op, a copy or a fill is one step, fused steps are several.

use std::fmt::{self, Display};
use std::mem::offset_of;

use smallvec::SmallVec;
use streamvm_ep::backend::{FusedInput, FusedStep, FusedView, FusedWork};
use streamvm_ep::{DType, ElementWork, Error, FusedGroup, Op, Scalar};

use crate::plan::abi::Arguments;
use crate::plan::bits;
use crate::plan::kernel_name::KernelName;

/// Where the fields of the parameter of a kernel are.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Parameter {
    pub(crate) bytes: usize,
    pub(crate) shape: usize,
    pub(crate) elements: usize,
    pub(crate) rank: usize,
    pub(crate) vectors: usize,
    pub(crate) views: usize,
}

impl Parameter {
    /// That of a kernel of one op.
    const ONE: Parameter = Parameter {
        bytes: size_of::<Arguments>(),
        shape: offset_of!(Arguments, shape),
        elements: offset_of!(Arguments, elements),
        rank: offset_of!(Arguments, rank),
        vectors: offset_of!(Arguments, vectors),
        views: offset_of!(Arguments, views),
    };
}

/// Which elements of the second input have no result, so that the kernel reports them.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    Zeros(DType),
    Negatives(DType),
}

/// What a kernel computes.
#[derive(Debug)]
pub(crate) struct Steps {
    pub(super) group: FusedGroup,
    /// For each step that is a fill the bits of its number; `None` if they are in the parameter.
    pub(super) constants: Vec<Option<u64>>,
    /// Whether the numbers among the inputs of the only step are in the parameter, so that one kernel serves all numbers.
    pub(super) takes_numbers: bool,
    pub(super) parameter: Parameter,
    /// What is refused of which view.
    pub(super) refused: Option<(Refused, usize)>,
}

impl Steps {
    /// The step of an elementwise kernel; `None` if the kernel is another one.
    pub(crate) fn of_kernel(name: KernelName) -> Option<Steps> {
        let of_op = |op: Op, dtype: DType| {
            let mut inputs = vec![dtype; op.arity()];
            if op == Op::Where {
                inputs[0] = DType::Bool;
            }
            (FusedWork::Call(op, dtype), inputs, op.elementwise_output(dtype))
        };
        let is_number = |input: usize| matches!(name, KernelName::WithNumbers(_, _, places) if places.contains(input));
        let (work, inputs, dtype) = match name {
            KernelName::Op(op, dtype) if op.is_elementwise() => of_op(op, dtype),
            KernelName::WithNumbers(op, dtype, _) => of_op(op, dtype),
            KernelName::Cast(from, to) => (FusedWork::Call(Op::Cast, from), vec![from], to),
            KernelName::Copy(bytes) => (FusedWork::Copy, vec![unsigned(bytes)], unsigned(bytes)),
            KernelName::Fill(bytes) => (FusedWork::Fill(Scalar::one(DType::U8)), vec![], unsigned(bytes)),
            _ => return None,
        };
        let mut views = Vec::new();
        let mut input = |(place, &read): (usize, &DType)| {
            if is_number(place) {
                return FusedInput::Number(Scalar::zero(read));
            }
            views.push(FusedView { read: Some(read), written: None });
            FusedInput::View(views.len() - 1)
        };
        let inputs: SmallVec<[FusedInput; 3]> = inputs.iter().enumerate().map(&mut input).collect();
        views.push(FusedView { read: None, written: Some((dtype, 0)) });
        let refused = match name {
            KernelName::Op(op, dtype) | KernelName::WithNumbers(op, dtype, _) if name.can_fail() => {
                let refused = if op == Op::Pow { Refused::Negatives(dtype) } else { Refused::Zeros(dtype) };
                // The right operand.
                match inputs[1] {
                    FusedInput::View(view) => Some((refused, view)),
                    _ => None,
                }
            }
            _ => None,
        };
        let group = FusedGroup { views, steps: vec![FusedStep { work, inputs, dtype }] };
        Some(Steps { group, constants: vec![None], takes_numbers: true, parameter: Parameter::ONE, refused })
    }

    /// Fused steps, of which the kernel has this parameter.
    ///
    /// # Errors
    ///
    /// A number of a fill, or among the inputs of a step, does not fit its dtype.
    pub(crate) fn of_group(group: &FusedGroup, parameter: Parameter) -> Result<Steps, Error> {
        let constant = |step: &FusedStep| match step.work {
            FusedWork::Fill(value) => bits(value, step.dtype).map(Some),
            _ => Ok(None),
        };
        let constants = group.steps.iter().map(constant).collect::<Result<_, Error>>()?;
        for step in &group.steps {
            step.inputs.iter().try_for_each(|input| match *input {
                FusedInput::Number(value) => bits(value, number_dtype(step)).map(|_| ()),
                _ => Ok(()),
            })?;
        }
        Ok(Steps { group: group.clone(), constants, takes_numbers: false, parameter, refused: None })
    }

    /// Whether the kernel has code for four elements at a time. Long code is in a kernel once, and so is what reports elements.
    pub(super) fn takes_four(&self) -> bool {
        self.refused.is_none() && !self.group.steps.iter().any(is_long)
    }
}

/// The dtype of the numbers among the inputs of a step.
pub(super) fn number_dtype(step: &FusedStep) -> DType {
    if let FusedWork::Call(_, dtype) = step.work { dtype } else { step.dtype }
}

/// A dtype whose elements have so many bytes.
fn unsigned(bytes: usize) -> DType {
    match bytes {
        1 => DType::U8,
        2 => DType::U16,
        4 => DType::U32,
        _ => DType::U64,
    }
}

/// Whether the code of a step is long.
fn is_long(step: &FusedStep) -> bool {
    match step.work {
        FusedWork::Call(op, dtype) => match op.element_work() {
            ElementWork::Light => false,
            ElementWork::Long => dtype == DType::F64,
            ElementWork::Call => true,
        },
        _ => false,
    }
}

/// The name of the function for an op of inputs of this dtype: as that of the kernel, without the prefix. Selecting has one for each size of element.
pub(super) fn function(op: Op, dtype: DType) -> String {
    match op {
        Op::Where => format!("where_u{}", 8 * dtype.size()),
        _ => KernelName::Op(op, dtype).to_string().split_off(3),
    }
}

/// The views and steps, one a line, as comments. Equal texts are equal kernels.
impl Display for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, view) in self.group.views.iter().enumerate() {
            write!(f, "// v{number}:")?;
            if let Some(dtype) = view.read {
                write!(f, " reads {dtype}")?;
            }
            if let Some((dtype, step)) = view.written {
                write!(f, " writes {dtype} r{step}")?;
            }
            writeln!(f)?;
        }
        for (number, (step, constant)) in self.group.steps.iter().zip(&self.constants).enumerate() {
            write!(f, "// r{number}: {} =", step.dtype)?;
            match (step.work, constant) {
                (FusedWork::Fill(_), Some(bits)) => write!(f, " {bits:#x}")?,
                (FusedWork::Fill(_), None) => write!(f, " value")?,
                (FusedWork::Copy, _) => {}
                (FusedWork::Call(op, dtype), _) => write!(f, " {op} of {dtype}:")?,
            }
            let mut number = 0;
            for input in &step.inputs {
                match input {
                    FusedInput::View(view) => write!(f, " v{view}")?,
                    FusedInput::Step(step) => write!(f, " r{step}")?,
                    FusedInput::Number(_) if self.takes_numbers => write!(f, " n{number}")?,
                    FusedInput::Number(value) => match value.element_bits(number_dtype(step)) {
                        Some(bits) => write!(f, " {bits:#x}")?,
                        None => write!(f, " {value}")?,
                    },
                }
                number += usize::from(matches!(input, FusedInput::Number(_)));
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
