//! The names of our kernels, and the modules that contain them.

use std::fmt;
use std::str::FromStr;

use streamvm_ep::{DType, KernelError, Numbers, Op, ParseError, Scalar};

use crate::plan::abi::Status;

/// A kernel of ours.
///
/// [`Display`](fmt::Display) gives its name in PTX and [`FromStr`] reads it: `sv_add_f32`, `sv_add_number1_f32`, `sv_cast_f32_i64`, `sv_copy_4`,
/// `sv_one_hot_i64_4`, `sv_index_select_i64_4`, `sv_flip_4`.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum KernelName {
    /// An op other than those below, for a dtype of its [key input](Op::key_input).
    Op(Op, DType),
    /// An elementwise op with [numbers](streamvm_ep::Numbers) as the inputs at these places.
    WithNumbers(Op, DType, NumberPlaces),
    /// [`Op::Cast`] from the first dtype to the second.
    Cast(DType, DType),
    /// Strided copy of elements of so many bytes: 1, 2, 4 or 8.
    Copy(usize),
    /// Fill of elements of so many bytes: 1, 2, 4 or 8.
    Fill(usize),
    /// [`Op::Pad`] of elements of so many bytes: 1, 2, 4 or 8.
    Pad(usize),
    /// [`Op::OneHot`] of indices of this dtype, to elements of so many bytes: 1, 2, 4 or 8.
    OneHot(DType, usize),
    /// [`Op::IndexSelect`] by indices of this dtype, of elements of so many bytes: 1, 2, 4 or 8.
    IndexSelect(DType, usize),
    /// One of the other ops that only move or compare elements of so many bytes, 1, 2, 4 or 8: [`Op::Flip`], [`Op::Tril`], [`Op::Triu`],
    /// [`Op::TakeAlongAxis`], [`Op::Scatter`], [`Op::ArgSort`]; the last is [`Op::ArgTopK`] too.
    OfSize(Op, usize),
}

/// The ops of [`KernelName::OfSize`].
const OF_SIZE: [Op; 6] = [Op::Flip, Op::Tril, Op::Triu, Op::TakeAlongAxis, Op::Scatter, Op::ArgSort];

const OPS: usize = Op::ALL.len();
const DTYPES: usize = DType::ALL.len();
/// Sizes of elements: 1, 2, 4, 8.
const SIZES: usize = 4;
/// The first op that takes numbers, and how many ops there are from it to the last one.
const FIRST_WITH_NUMBERS: usize = Op::Add.index();
const OPS_WITH_NUMBERS: usize = Op::Clamp.index() + 1 - FIRST_WITH_NUMBERS;
/// Sets of places of numbers: none is empty or has all three.
const SETS: usize = 6;
/// The indices of kernels without numbers.
const WITHOUT_NUMBERS: usize = (OPS + DTYPES) * DTYPES + (3 + 2 * DTYPES + OPS) * SIZES;

/// Which inputs of an op are numbers: one or two of three.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct NumberPlaces(u8);

impl NumberPlaces {
    /// The places of these numbers; `None` if there are none, or as many as no op takes.
    #[inline]
    pub fn of(numbers: &Numbers) -> Option<NumberPlaces> {
        let bits = (0..3).fold(0, |bits, place| bits | u8::from(numbers.contains(place)) << place);
        (1..=SETS as u8).contains(&bits).then_some(NumberPlaces(bits))
    }

    /// Whether the input of this index is a number.
    pub const fn contains(self, input: usize) -> bool {
        input < 3 && self.0 & (1 << input) != 0
    }

    /// How many numbers there are.
    pub const fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Every set of places.
    fn all() -> impl Iterator<Item = NumberPlaces> {
        (1..=SETS as u8).map(NumberPlaces)
    }

    /// Whether the op takes numbers there.
    fn fit(self, op: Op) -> bool {
        let number =
            |numbers: Numbers, place| if self.contains(place) { numbers.with(place, Scalar::I64(0)) } else { numbers };
        (0..3).fold(Numbers::NONE, number).fit(op)
    }
}

impl KernelName {
    /// An exclusive upper bound of [`index`](KernelName::index).
    pub const INDICES: usize = WITHOUT_NUMBERS + OPS_WITH_NUMBERS * DTYPES * SETS;

    /// Every kernel without numbers.
    pub fn all() -> impl Iterator<Item = KernelName> {
        let ops = Op::ALL.into_iter().flat_map(|op| DType::ALL.map(|dtype| KernelName::Op(op, dtype)));
        let casts = DType::ALL.into_iter().flat_map(|from| DType::ALL.map(|to| KernelName::Cast(from, to)));
        let of_size = [KernelName::Copy as fn(usize) -> KernelName, KernelName::Fill, KernelName::Pad];
        let sizes = (0..SIZES).flat_map(move |log| of_size.map(|name| name(1 << log)));
        let by_index = [KernelName::OneHot as fn(DType, usize) -> KernelName, KernelName::IndexSelect];
        let by_index = by_index
            .into_iter()
            .flat_map(|name| (0..SIZES).flat_map(move |log| DType::ALL.map(|dtype| name(dtype, 1 << log))));
        let moves = OF_SIZE.into_iter().flat_map(|op| (0..SIZES).map(move |log| KernelName::OfSize(op, 1 << log)));
        ops.chain(casts).chain(sizes).chain(by_index).chain(moves).filter(|name| name.exists())
    }

    /// Every kernel with numbers.
    pub fn with_numbers() -> impl Iterator<Item = KernelName> {
        let of_op = |op| {
            DType::ALL.into_iter().flat_map(move |dtype| {
                NumberPlaces::all().map(move |places| KernelName::WithNumbers(op, dtype, places))
            })
        };
        Op::ALL.into_iter().flat_map(of_op).filter(|name| name.exists())
    }

    fn exists(self) -> bool {
        match self {
            KernelName::Op(op, dtype) => {
                let has_another = matches!(op, Op::Cast | Op::Pad | Op::OneHot | Op::IndexSelect | Op::ArgTopK);
                !has_another && !OF_SIZE.contains(&op) && op.supports(dtype)
            }
            KernelName::WithNumbers(op, dtype, places) => op.supports(dtype) && places.fit(op),
            KernelName::Cast(from, _) => Op::Cast.supports(from),
            KernelName::Copy(bytes) | KernelName::Fill(bytes) | KernelName::Pad(bytes) => is_size(bytes),
            // The indices of both ops have the same dtypes.
            KernelName::OneHot(from, bytes) | KernelName::IndexSelect(from, bytes) => {
                Op::OneHot.supports(from) && is_size(bytes)
            }
            KernelName::OfSize(op, bytes) => OF_SIZE.contains(&op) && is_size(bytes),
        }
    }

    /// A small distinct number, below [`INDICES`](KernelName::INDICES), as an index of tables. Only for kernels that exist; `None` for those of registered ops.
    #[inline]
    pub fn index(self) -> Option<usize> {
        Some(match self {
            KernelName::Op(Op::Registered(_), _) | KernelName::WithNumbers(Op::Registered(_), ..) => return None,
            KernelName::Op(op, dtype) => op.index() * DTYPES + dtype as usize,
            KernelName::WithNumbers(op, dtype, places) => {
                let of_op = (op.index() - FIRST_WITH_NUMBERS) * DTYPES + dtype as usize;
                WITHOUT_NUMBERS + of_op * SETS + usize::from(places.0) - 1
            }
            KernelName::Cast(from, to) => (OPS + from as usize) * DTYPES + to as usize,
            KernelName::Copy(bytes) => (OPS + DTYPES) * DTYPES + bytes.ilog2() as usize,
            KernelName::Fill(bytes) => (OPS + DTYPES) * DTYPES + SIZES + bytes.ilog2() as usize,
            KernelName::Pad(bytes) => (OPS + DTYPES) * DTYPES + 2 * SIZES + bytes.ilog2() as usize,
            KernelName::OneHot(from, bytes) => {
                (OPS + DTYPES) * DTYPES + (3 + from as usize) * SIZES + bytes.ilog2() as usize
            }
            KernelName::IndexSelect(from, bytes) => {
                (OPS + DTYPES) * DTYPES + (3 + DTYPES + from as usize) * SIZES + bytes.ilog2() as usize
            }
            KernelName::OfSize(op, bytes) => {
                (OPS + DTYPES) * DTYPES + (3 + 2 * DTYPES + op.index()) * SIZES + bytes.ilog2() as usize
            }
        })
    }

    /// For a kernel of a registered op the number of its tensors, which is in its name, because who reads the name need not know the op.
    fn tensors(self) -> Option<usize> {
        match self {
            KernelName::Op(op @ Op::Registered(_), _) => Some(op.arity()),
            KernelName::WithNumbers(op @ Op::Registered(_), _, places) => Some(op.arity() - places.count()),
            _ => None,
        }
    }

    /// The module that contains its code, or, of an elementwise kernel, the functions that it is written with.
    #[inline]
    pub fn module(self) -> Module {
        match self {
            KernelName::WithNumbers(..) | KernelName::Cast(..) | KernelName::Copy(_) | KernelName::Fill(_) => {
                Module::Elementwise
            }
            KernelName::Pad(_) | KernelName::OneHot(..) | KernelName::IndexSelect(..) => Module::Move,
            KernelName::OfSize(Op::ArgSort, _) => Module::Sort,
            KernelName::OfSize(..) | KernelName::Op(Op::CumSum | Op::ScatterAdd | Op::Arange, _) => Module::Arrange,
            KernelName::Op(Op::MatMul, _) => Module::MatMul,
            KernelName::Op(Op::LayerNorm, _) => Module::Reduce,
            KernelName::Op(op, _) if op.moves_a_window() => Module::Window,
            KernelName::Op(Op::CrossEntropy | Op::CrossEntropyBackward | Op::RmsNorm, _) => Module::Network,
            KernelName::Op(op, _) if op.is_source() => Module::Random,
            KernelName::Op(op, _) if op.is_reduction() || op.is_softmax() => Module::Reduce,
            KernelName::Op(..) => Module::Elementwise,
        }
    }

    /// The kernel of its module that it is made of: the same, or one that computes in the same type and loads and stores elements of another dtype.
    pub(crate) fn template(self) -> KernelName {
        use DType::{BF16, F16, F32, F64, I8, I16, I32, I64};
        let KernelName::Op(op, dtype) = self else { return self };
        let signed = matches!(dtype, I8 | I16 | I32 | I64);
        let of = match op {
            // In f64, f32 and f64.
            Op::Sum | Op::Mean if dtype == BF16 => F32,
            Op::Prod if dtype == F32 => F64,
            Op::Prod if dtype == BF16 => F16,
            // Whether they wrap as signed ones or not is the same.
            Op::Sum | Op::Prod if !dtype.is_float() => I64,
            Op::Var | Op::Std | Op::LayerNorm | Op::RmsNorm => F64,
            Op::ReduceMax | Op::ReduceMin | Op::ArgMax | Op::ArgMin if signed => I64,
            Op::ReduceMax | Op::ReduceMin | Op::ArgMax | Op::ArgMin if !dtype.is_float() => DType::U64,
            Op::ReduceMax | Op::ReduceMin | Op::ArgMax | Op::ArgMin if dtype != F64 => F32,
            Op::CrossEntropy | Op::CrossEntropyBackward if dtype != F64 => F32,
            op if op.is_softmax() && dtype != F64 => F32,
            _ => dtype,
        };
        KernelName::Op(op, of)
    }

    /// Whether it can fail for the values of some elements: divisions of integers, pow with a signed exponent, and ops that take indices, but for
    /// one-hot. Then it needs a [`Status`], which [`failure`](KernelName::failure) reads.
    #[inline]
    pub fn can_fail(self) -> bool {
        match self {
            KernelName::Op(op, dtype) => op.refuses_elements(dtype),
            // The right operand is what is refused. That of a number is known before the launch.
            KernelName::WithNumbers(op, dtype, places) => op.refuses_elements(dtype) && !places.contains(1),
            KernelName::IndexSelect(..) => true,
            KernelName::OfSize(op, _) => matches!(op, Op::TakeAlongAxis | Op::Scatter),
            _ => false,
        }
    }

    /// Reads the status of a kernel that has passed.
    ///
    /// # Errors
    ///
    /// [`KernelError::DivisionByZero`], [`KernelError::NegativeExponent`], [`KernelError::RowOutOfRange`], like a CPU kernel. Unlike a CPU kernel, this one has
    /// overwritten the output, whose contents are then unspecified.
    pub fn failure(self, status: &Status) -> Result<(), KernelError> {
        if status.index == u64::MAX || !self.can_fail() {
            return Ok(());
        }
        let index = status.index as usize;
        match self {
            KernelName::Op(op @ Op::Pow, _) | KernelName::WithNumbers(op @ Op::Pow, ..) => {
                Err(KernelError::NegativeExponent { op, index, exponent: status.value })
            }
            KernelName::Op(op @ Op::ScatterAdd, _) | KernelName::OfSize(op, _) => {
                Err(KernelError::RowOutOfRange { op, index, row: status.value })
            }
            KernelName::Op(op, _) | KernelName::WithNumbers(op, ..) => Err(KernelError::DivisionByZero { op, index }),
            KernelName::IndexSelect(..) => {
                Err(KernelError::RowOutOfRange { op: Op::IndexSelect, index, row: status.value })
            }
            _ => Ok(()),
        }
    }
}

/// Whether the elements of some dtype have this many bytes.
fn is_size(bytes: usize) -> bool {
    matches!(bytes, 1 | 2 | 4 | 8)
}

impl fmt::Display for KernelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KernelName::Op(op, dtype) | KernelName::WithNumbers(op, dtype, _) => {
                write!(f, "sv_{}", op.name())?;
                if let KernelName::WithNumbers(_, _, places) = self {
                    f.write_str("_number")?;
                    (0..3).filter(|place| places.contains(*place)).try_for_each(|place| write!(f, "{place}"))?;
                }
                if let Some(tensors) = self.tensors() {
                    write!(f, "_of{tensors}")?;
                }
                write!(f, "_{}", dtype.name())
            }
            KernelName::Cast(from, to) => write!(f, "sv_cast_{}_{}", from.name(), to.name()),
            KernelName::Copy(bytes) => write!(f, "sv_copy_{bytes}"),
            KernelName::Fill(bytes) => write!(f, "sv_fill_{bytes}"),
            KernelName::Pad(bytes) => write!(f, "sv_pad_{bytes}"),
            KernelName::OneHot(from, bytes) => write!(f, "sv_one_hot_{}_{bytes}", from.name()),
            KernelName::IndexSelect(from, bytes) => write!(f, "sv_index_select_{}_{bytes}", from.name()),
            KernelName::OfSize(op, bytes) => write!(f, "sv_{}_{bytes}", op.name()),
        }
    }
}

impl FromStr for KernelName {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<KernelName, ParseError> {
        let refused = || ParseError::new("CUDA kernel", text, "the name of one, such as sv_add_f32 or sv_copy_4");
        // The name of an op can contain an underscore, the name of a dtype cannot.
        let (work, last) = text.strip_prefix("sv_").and_then(|rest| rest.rsplit_once('_')).ok_or_else(refused)?;
        let bytes =
            || ["1", "2", "4", "8"].into_iter().position(|size| size == last).map(|log| 1 << log).ok_or_else(refused);
        let name = match work.rsplit_once('_') {
            None if work == "copy" => KernelName::Copy(bytes()?),
            None if work == "fill" => KernelName::Fill(bytes()?),
            None if work == "pad" => KernelName::Pad(bytes()?),
            Some(("one_hot", from)) => KernelName::OneHot(from.parse()?, bytes()?),
            Some(("index_select", from)) => KernelName::IndexSelect(from.parse()?, bytes()?),
            Some(("cast", from)) => KernelName::Cast(from.parse()?, last.parse()?),
            Some((op, places)) if let Some(digits) = places.strip_prefix("number") => {
                let place = |bits: u8, digit: char| Some(bits | 1 << digit.to_digit(3)?);
                let bits = digits.chars().try_fold(0, place).filter(|bits| (1..=SETS as u8).contains(bits));
                KernelName::WithNumbers(op.parse()?, last.parse()?, NumberPlaces(bits.ok_or_else(refused)?))
            }
            _ if bytes().is_ok() => KernelName::OfSize(work.parse()?, bytes()?),
            _ => KernelName::Op(work.parse()?, last.parse()?),
        };
        if name.exists() && name.to_string() == text { Ok(name) } else { Err(refused()) }
    }
}

/// A module of PTX: what NVRTC makes of one source, with the kernels or functions of one kind.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Module {
    /// Functions, no kernels: elementwise ops, casts among them, and loads and stores of elements.
    Elementwise,
    /// Data movement: pad, one-hot, index_select.
    Move,
    /// Reductions, softmax and its gradients, layer norm.
    Reduce,
    /// Matrix products.
    MatMul,
    /// Random numbers.
    Random,
    /// Other places of elements, and ops along one axis in its order: flip, triangles, cumsum, take_along_axis, scatter,
    /// scatter_add, arange.
    Arrange,
    /// Convolutions, poolings and their gradients.
    Window,
    /// Losses, and RMS norm.
    Network,
    /// Indices of elements in sorted order: argsort and argtopk.
    Sort,
}

/// The text of a module.
macro_rules! ptx {
    ($name:literal) => {
        include_str!(concat!("../../ptx/", $name, ".ptx"))
    };
}

impl Module {
    /// Every module, in the order of the enum.
    pub const ALL: [Module; 9] = [
        Module::Elementwise,
        Module::Move,
        Module::Reduce,
        Module::MatMul,
        Module::Random,
        Module::Arrange,
        Module::Window,
        Module::Network,
        Module::Sort,
    ];

    /// Its name, for messages; its source is `kernels/<name>.cu`.
    pub const fn name(self) -> &'static str {
        match self {
            Module::Elementwise => "elementwise",
            Module::Move => "move",
            Module::Reduce => "reduce",
            Module::MatMul => "matmul",
            Module::Random => "random",
            Module::Arrange => "arrange",
            Module::Window => "window",
            Module::Network => "network",
            Module::Sort => "sort",
        }
    }

    /// Its PTX. A driver is given [one kernel](crate::kernel_ptx()) at a time.
    pub const fn text(self) -> &'static str {
        match self {
            Module::Elementwise => ptx!("elementwise"),
            Module::Move => ptx!("move"),
            Module::Reduce => ptx!("reduce"),
            Module::MatMul => ptx!("matmul"),
            Module::Random => ptx!("random"),
            Module::Arrange => ptx!("arrange"),
            Module::Window => ptx!("window"),
            Module::Network => ptx!("network"),
            Module::Sort => ptx!("sort"),
        }
    }
}

#[cfg(test)]
#[path = "kernel_name_tests.rs"]
mod tests;
