//! Ops of a caller's own: what they compute, and how they are registered.
//!
//! An op is an [`ElementwiseOp`], a function of elements, or a [`TensorOp`], a function of whole tensors with a rule for its output. Registered, it is an
//! [`Op`] as the built-in ones are.

use std::any::Any;
use std::sync::Arc;

use crate::call::fn_context::FnContext;
use crate::call::kernel::KernelCall;
use crate::call::op_states::OpStates;
use crate::call::operand::Operand;
use crate::call::tile_function::{OfSlices, TileElement, TileFunction};
use crate::errors::call_error::FnError;
use crate::errors::error::KernelError;
use crate::names::device_id::DeviceId;
use crate::names::device_kind::DeviceKind;
use crate::names::growing_table::GrowingTable;
use crate::names::text::error_chain;
use crate::tensor::dtype::DType;
use crate::tensor::op::Op;
use crate::tensor::op_class::{ElementWork, OpClass};
use crate::tensor::params::{Extra, Params};
use crate::tensor::registered_op::{OpFacts, RegisterError, RegisteredOp};
use crate::tensor::rule::{self, Rule};
use crate::tensor::scalar::Scalar;
use crate::tensor::shape::Shape;

type TensorFunction =
    Box<dyn Fn(RegisteredOp, &mut FnContext<'_>, &Params, &OpStates) -> Result<(), FnError> + Send + Sync>;

/// What a kind of device runs that does not run functions of the host: its type is known to the kind.
type Code = Arc<dyn Any + Send + Sync>;

/// The kernels of a registered op.
#[derive(Default)]
struct Kernels {
    /// By the dtype that they compute in.
    of_elements: Vec<(DType, Box<dyn TileFunction>)>,
    of_tensors: Option<TensorFunction>,
    codes: Vec<(DeviceKind, DType, Code)>,
}

static KERNELS: GrowingTable<Kernels> = GrowingTable::new();

impl RegisteredOp {
    fn kernels(self) -> &'static Kernels {
        KERNELS.get(self.row()).expect("an op has its kernels before it has a number")
    }

    /// Whether a CPU can compute it for this dtype of its first input.
    pub fn has_host_kernel(self, dtype: DType) -> bool {
        self.kernels().of_tensors.is_some() || self.tile_function(dtype).is_some()
    }

    /// The function of an elementwise op for this dtype: that of `f32` for 16-bit floats.
    pub fn tile_function(self, dtype: DType) -> Option<&'static dyn TileFunction> {
        let mut of_elements = self.kernels().of_elements.iter();
        of_elements.find(|(of, _)| *of == computed_in(dtype)).map(|(_, function)| &**function)
    }

    /// Runs the function of a [`TensorOp`] over these operands, of which the last one is the output, and which have no gaps. Each operand that it reads has the access
    /// [`Access::Read`](crate::Access::Read).
    ///
    /// # Errors
    ///
    /// [`KernelError::Registered`] with the error of the function, or with one of its operands. [`KernelError::NoStates`] if the stream passes no [`OpStates`] to
    /// [`KernelCall::run`].
    pub fn run_over_tensors(self, call: &KernelCall<'_, '_>, operands: &mut [Operand<'_>]) -> Result<(), KernelError> {
        let op = Op::Registered(self);
        let (Some(function), Some(states)) = (&self.kernels().of_tensors, call.states) else {
            return Err(KernelError::NoStates { op });
        };
        let refused = |error: FnError| KernelError::Registered { op, reason: error_chain(&*error) };
        let mut context = FnContext::new(operands).map_err(|error| refused(error.into()))?;
        function(self, &mut context, call.params, states).map_err(refused)?;
        context.check_taken().map_err(|error| refused(error.into()))
    }

    /// The [code](TensorOp::code) for this kind of device and dtype of the first input: of an elementwise op without code for a 16-bit float that of `f32`.
    pub fn code(self, kind: DeviceKind, dtype: DType) -> Option<&'static (dyn Any + Send + Sync)> {
        let of = |dtype: DType| self.kernels().codes.iter().find(|(of, by, _)| (*of, *by) == (kind, dtype));
        let is_elementwise = self.class() != OpClass::Registered;
        let found = of(dtype).or_else(|| of(computed_in(dtype)).filter(|_| is_elementwise));
        found.map(|(_, _, code)| &**code)
    }
}

/// The dtype in which elementwise ops compute elements of this one.
fn computed_in(dtype: DType) -> DType {
    if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype }
}

/// An elementwise op of a caller's own, of `N` inputs of one dtype, which is also that of the output. Shapes broadcast. The op may write the tensor that it reads, takes
/// numbers in place of all tensors but one, runs on several threads, and is fused in programs, as the built-in elementwise ops are.
///
/// ```
/// use streamvm_ep::{ElementwiseOp, Op};
///
/// let softsign: Op = ElementwiseOp::new("softsign", ["x"])
///     .kernel(|[x]: [&[f32]; 1], y| {
///         for (y, x) in y.iter_mut().zip(x) {
///             *y = x / (1.0 + x.abs());
///         }
///     })
///     .register()?;
/// assert_eq!("softsign".parse(), Ok(softsign));
/// # Ok::<(), streamvm_ep::RegisterError>(())
/// ```
#[must_use = "an op exists once it is registered"]
pub struct ElementwiseOp<const N: usize> {
    definition: Definition,
}

impl<const N: usize> ElementwiseOp<N> {
    /// An op with this name, which texts use, and these inputs: one to three.
    pub fn new(name: &str, inputs: [&str; N]) -> ElementwiseOp<N> {
        let class = match N {
            1 => OpClass::Unary,
            2 => OpClass::Binary,
            _ => OpClass::Ternary,
        };
        ElementwiseOp { definition: Definition::new(name, &inputs, class) }
    }

    /// What it computes, in a few sentences of Markdown.
    pub fn documentation(mut self, text: &str) -> ElementwiseOp<N> {
        text.clone_into(&mut self.definition.documentation);
        self
    }

    /// About how much work an element is; [`ElementWork::Light`] if it is not said. A large call is divided among threads by it.
    pub fn work(mut self, work: ElementWork) -> ElementwiseOp<N> {
        self.definition.work = work;
        self
    }

    /// What it computes for elements of type `T` on a CPU or a simulated device: the results, for slices of as many elements of each input. Each result depends only on the
    /// elements at its own index, because the caller of the function chooses the slices. The results are 0 before. The function of `f32` also computes `f16` and `bf16`,
    /// whose results are rounded once.
    ///
    /// The function may be called on any thread of the engine, several at a time, so it should not block; a wait in it fails.
    /// In inline and simulated mode the thread that submits or waits runs it. A panic becomes the failure of the instruction.
    pub fn kernel<T: TileElement>(
        mut self,
        function: impl Fn([&[T]; N], &mut [T]) + Send + Sync + 'static,
    ) -> ElementwiseOp<N> {
        self.definition.kernels.of_elements.push((T::DTYPE, Box::new(OfSlices::<T, _, N>::new(function))));
        self
    }

    /// What a kind of device runs for these dtypes that runs no functions of the host. The kind says which type `code` must have.
    pub fn code(mut self, kind: DeviceKind, dtypes: &[DType], code: Arc<dyn Any + Send + Sync>) -> ElementwiseOp<N> {
        self.definition.code(kind, dtypes, code);
        self
    }

    /// Makes [`register`](ElementwiseOp::register) fail for this reason, which the maker of a [code](ElementwiseOp::code) found.
    pub fn refuse(mut self, reason: String) -> ElementwiseOp<N> {
        self.definition.refused.get_or_insert(reason);
        self
    }

    /// Registers the op for the whole process. Thread-safe.
    ///
    /// # Errors
    ///
    /// A name that is taken, or is no name; no kernel, or two for one dtype; see [`RegisterError`].
    pub fn register(mut self) -> Result<Op, RegisterError> {
        let Kernels { of_elements, codes, .. } = &self.definition.kernels;
        let of_codes = codes.iter().map(|(_, dtype, _)| *dtype);
        let all: Vec<DType> = of_elements.iter().map(|(dtype, _)| *dtype).chain(of_codes).collect();
        let has = |dtype: &DType| all.contains(&computed_in(*dtype)) || all.contains(dtype);
        self.definition.dtypes = DType::ALL.into_iter().filter(has).collect();
        self.definition.register(None)
    }
}

/// An op of a caller's own over whole tensors, with a rule for the dtype and shape of its output and, if it wants one, a state per device.
///
/// ```
/// use streamvm_ep::{DType, Op, Scalar, TensorOp};
///
/// /// The last axis moves by so many places, and around.
/// let roll: Op = TensorOp::new("roll", ["x"], |inputs, _| match inputs[0] {
///     (DType::F32, shape) if shape.rank() > 0 => Ok((DType::F32, *shape)),
///     (dtype, shape) => Err(format!("it takes f32 with an axis, found {dtype}{shape}").into()),
/// })
/// .numbers(["by"])
/// .kernel(|context, call| {
///     let Some(Scalar::I64(by)) = call.number(0) else { return Err("`by` is no integer".into()) };
///     let row = context.reads.layout(0)?.shape().dims().last().copied().unwrap_or(1);
///     let (x, y) = (context.reads.get::<f32>(0)?, context.writes.take::<f32>(0)?);
///     for (y, x) in y.chunks_mut(row.max(1)).zip(x.chunks(row.max(1))) {
///         y.copy_from_slice(x);
///         y.rotate_right(by.rem_euclid(row as i64) as usize);
///     }
///     Ok(())
/// })
/// .register()?;
/// assert_eq!(roll.inputs(), ["x", "by"]);
/// # Ok::<(), streamvm_ep::RegisterError>(())
/// ```
#[must_use = "an op exists once it is registered"]
pub struct TensorOp<S = ()> {
    definition: Definition,
    rule: Rule,
    /// `None`: its state is `()`.
    make_state: Option<MakeState<S>>,
}

type MakeState<S> = Arc<dyn Fn(DeviceId) -> S + Send + Sync>;

/// What the function of a [`TensorOp`] gets besides its operands.
#[derive(Debug)]
pub struct OpCall<'a, S = ()> {
    /// The parameters of the call.
    pub params: &'a Params,
    /// The device that it runs on.
    pub device: DeviceId,
    /// The [state](TensorOp::state) of the op on this device.
    pub state: &'a S,
    tensors: usize,
}

impl<S> OpCall<'_, S> {
    /// A number of the call, by its place among the [numbers](TensorOp::numbers) of the op.
    pub fn number(&self, index: usize) -> Option<Scalar> {
        self.params.numbers().get(self.tensors + index)
    }

    /// The seed and the first block of the random numbers of a call of an op that [draws some](TensorOp::random).
    pub fn random(&self) -> Option<(u64, u64)> {
        if let Extra::Random { seed, counter } = self.params.extra { Some((seed, counter)) } else { None }
    }
}

impl TensorOp {
    /// An op with this name, which texts use, and these tensors as inputs: 1 to 16, or, with [numbers](TensorOp::numbers), 8 inputs in all. `rule` gives dtype and shape of the output for those of the tensors, and for the
    /// parameters, of which the op uses what it likes: axes, a dtype, [numbers](TensorOp::numbers). It is called by each thread that builds an instruction or a program
    /// with the op, and before each run of its kernel, on the thread of the engine that runs it. So it should be quick, and must give the same result for the same inputs; it calls nothing of streamvm that submits or records, and takes no lock that is held during a wait, because those that wait may wait
    /// for it. Its error becomes that of the call.
    pub fn new<const N: usize>(
        name: &str,
        inputs: [&str; N],
        rule: impl Fn(&[(DType, &Shape)], &Params) -> Result<(DType, Shape), FnError> + Send + Sync + 'static,
    ) -> TensorOp {
        let mut definition = Definition::new(name, &inputs, OpClass::Registered);
        definition.dtypes = DType::ALL.to_vec();
        TensorOp { definition, rule: Box::new(rule), make_state: None }
    }
}

impl<S: Send + Sync + 'static> TensorOp<S> {
    /// What it computes, in a few sentences of Markdown.
    pub fn documentation(mut self, text: &str) -> TensorOp<S> {
        text.clone_into(&mut self.definition.documentation);
        self
    }

    /// Numbers that a call gives after the tensors, at most two. A call gives all of them.
    pub fn numbers<const N: usize>(mut self, names: [&str; N]) -> TensorOp<S> {
        self.definition.inputs.extend(names.map(str::to_owned));
        self.definition.numbers += N;
        self
    }

    /// About how much work an element of the output is; [`ElementWork::Light`] if it is not said. Plans of programs use it.
    pub fn work(mut self, work: ElementWork) -> TensorOp<S> {
        self.definition.work = work;
        self
    }

    /// Makes it an op that changes its first input: the output has its dtype and shape, and holds its elements when the function begins. They are copied where the call names another
    /// tensor as output. The first input is not among the operands that are read.
    pub fn in_place(mut self) -> TensorOp<S> {
        self.definition.in_place = true;
        self
    }

    /// Makes it an op that draws random numbers: a call gives it a share of a generator by its parameters, `Generator::take` for the dtype and the number of elements of the
    /// output, and each run of a program gives it the next share. A share is a seed and a first block ([`OpCall::random`]); the function computes the numbers from these,
    /// for example by `kernels::random_block`, so that they are the same on every device. Such an op takes no other numbers, and cannot be in a loop or branch of a program.
    pub fn random(mut self) -> TensorOp<S> {
        self.definition.random = true;
        self
    }

    /// Gives the op a state on each device of each engine, such as a cache. The first call on a device makes it; it is dropped with the device, after the engine and
    /// all executables of its programs. Comes before [`kernel`](TensorOp::kernel).
    pub fn state<T: Send + Sync + 'static>(self, make: impl Fn(DeviceId) -> T + Send + Sync + 'static) -> TensorOp<T> {
        TensorOp { definition: self.definition, rule: self.rule, make_state: Some(Arc::new(make)) }
    }

    /// What it computes on a CPU or a simulated device. The tensors are in [`FnContext::reads`], the output in [`FnContext::writes`], and must be taken; elements
    /// are in row-major order without gaps, views with gaps are copied before and after.
    ///
    /// The function may be called on any thread of the engine, several at a time, so it should not block; a wait in it fails.
    /// In inline and simulated mode the thread that submits or waits runs it. An error or a panic becomes the failure of the
    /// instruction.
    pub fn kernel(
        mut self,
        function: impl Fn(&mut FnContext<'_>, &OpCall<'_, S>) -> Result<(), FnError> + Send + Sync + 'static,
    ) -> TensorOp<S> {
        let make = self.make_state.clone();
        let run = move |op: RegisteredOp, context: &mut FnContext<'_>, params: &Params, states: &OpStates| {
            let kept = make.as_ref().map(|make| states.get(op, &|device| Arc::new(make(device))));
            let state: &dyn Any = kept.as_deref().map_or(&(), |state| state);
            let state = state.downcast_ref().ok_or("the state of the op has another type")?;
            function(context, &OpCall { params, device: states.device(), state, tensors: op.arity() - op.numbers() })
        };
        if self.definition.kernels.of_tensors.replace(Box::new(run)).is_some() {
            self.definition.twice = true;
        }
        self
    }

    /// What a kind of device runs for these dtypes of the first input that runs no functions of the host. The kind says which type `code` must have.
    pub fn code(mut self, kind: DeviceKind, dtypes: &[DType], code: Arc<dyn Any + Send + Sync>) -> TensorOp<S> {
        self.definition.code(kind, dtypes, code);
        self
    }

    /// Registers the op for the whole process. Thread-safe.
    ///
    /// # Errors
    ///
    /// A name that is taken, or is no name; no kernel, or two; too many inputs; see [`RegisterError`].
    pub fn register(self) -> Result<Op, RegisterError> {
        self.definition.register(Some(self.rule))
    }
}

/// What both kinds of ops have.
struct Definition {
    name: String,
    documentation: String,
    inputs: Vec<String>,
    numbers: usize,
    dtypes: Vec<DType>,
    class: OpClass,
    work: ElementWork,
    in_place: bool,
    random: bool,
    kernels: Kernels,
    /// Whether a second function over tensors was given.
    twice: bool,
    refused: Option<String>,
}

impl Definition {
    fn new(name: &str, inputs: &[&str], class: OpClass) -> Definition {
        Definition {
            name: name.to_owned(),
            documentation: String::new(),
            inputs: inputs.iter().copied().map(str::to_owned).collect(),
            numbers: 0,
            dtypes: Vec::new(),
            class,
            work: ElementWork::Light,
            in_place: false,
            random: false,
            kernels: Kernels::default(),
            twice: false,
            refused: None,
        }
    }

    fn code(&mut self, kind: DeviceKind, dtypes: &[DType], code: Code) {
        self.kernels.codes.extend(dtypes.iter().map(|dtype| (kind, *dtype, code.clone())));
    }

    fn register(self, rule: Option<Rule>) -> Result<Op, RegisterError> {
        let (op, kernels) = (self.name.clone(), self.kernels);
        if let Some(reason) = self.refused {
            return Err(RegisterError::Code { op, reason });
        }
        let of_elements: Vec<DType> = kernels.of_elements.iter().map(|(dtype, _)| *dtype).collect();
        let codes: Vec<_> = kernels.codes.iter().map(|(kind, dtype, _)| (*kind, *dtype)).collect();
        if of_elements.is_empty() && codes.is_empty() && kernels.of_tensors.is_none() {
            return Err(RegisterError::NoKernel { op });
        }
        let mut elements = of_elements.iter().enumerate();
        if let Some((_, dtype)) = elements.find(|(place, dtype)| of_elements[..*place].contains(dtype)) {
            return Err(RegisterError::TwoKernels { op, what: format!("for {dtype} on CPUs") });
        }
        let mut places = codes.iter().enumerate();
        if let Some((_, (kind, dtype))) = places.find(|(place, code)| codes[..*place].contains(code)) {
            return Err(RegisterError::TwoKernels { op, what: format!("for {dtype} on {kind}") });
        }
        if self.twice {
            return Err(RegisterError::TwoKernels { op, what: String::from("on CPUs") });
        }
        let facts = OpFacts {
            name: self.name,
            documentation: self.documentation,
            inputs: self.inputs,
            numbers: self.numbers,
            dtypes: self.dtypes,
            class: self.class,
            work: self.work,
            in_place: self.in_place,
            random: self.random,
        };
        let is_taken = |name: &str| Op::known().any(|op| op.name() == name);
        let keep = |row: usize| {
            KERNELS.set(row, kernels);
            if let Some(rule) = rule {
                rule::keep(row, rule);
            }
        };
        Ok(Op::Registered(RegisteredOp::register(facts, is_taken, keep)?))
    }
}
