//! Ops: the built-in ones, made from the [table of ops](crate::op_table), and registered ones. Their names and fixed properties.

use std::fmt;
use std::str::FromStr;

use crate::names::text::{ParseError, listed};
use crate::tensor::accuracy::{Accuracy, Samples};
use crate::tensor::dtype::DType;
use crate::tensor::op_class::{ElementWork, OpClass, dtypes};
use crate::tensor::registered_op::RegisteredOp;

macro_rules! define {
    ({$($(#[doc = $doc:literal])* $op:ident: $name:literal, $class:ident, $dtypes:ident,
        $method:ident($($input:ident),+ $(; $($parameters:tt)*)?) $(=> $params:expr)? $(, {
            $(work: $work:ident,)? $(empty: $empty:literal,)? $(samples: $($samples:ident)+,)? $(error: $error:ident($($number:literal),+),)?
            $(numpy: $numpy:literal,)? $(both: $both:expr,)? $(floats: $floats:expr,)? $(integers: $integers:expr,)?
        })?;)*}
     {$($(#[doc = $source_doc:literal])* $source:ident: $source_name:literal, $source_class:ident, $source_dtypes:ident
        $(, { error: $source_error:ident($($source_number:literal),+), })?;)*}) => {
        define! {
            $($op $name $class $dtypes [$($input)+] [$($doc)*] [$($($work)?)?] [$($($empty)?)?] [$($($($samples)+)?)?] [$($($error $($number)+)?)?]
                [$($($numpy)?)?];)*
            $($source $source_name $source_class $source_dtypes [] [$($source_doc)*] [] [] [] [$($source_error $($source_number)+)?] [];)*
        }
    };
    ($($op:ident $name:literal $class:ident $dtypes:ident [$($input:ident)*] [$($doc:literal)*] [$($work:ident)?] [$($empty:literal)?] [$($samples:ident)*]
        [$($error:ident $($number:literal)+)?] [$($numpy:literal)?];)*) => {
        /// An op: a built-in one, or one that was registered. Each has one output.
        ///
        /// `f16` and `bf16` are computed in `f32`, and each element of the output is rounded once, to the nearest value with ties to
        /// even. That holds for sums, means, softmax and matrix products too, which accumulate in `f32` or wider.
        #[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
        pub enum Op {
            $(
                $(#[doc = $doc])*
                #[doc = $crate::op_error!($($error $($number)+)?)]
                $op,
            )*
            /// An op of a caller's own.
            Registered(RegisteredOp),
        }

        /// The numbers of the built-in ops.
        enum Number {
            $($op,)*
        }

        impl Op {
            /// Every built-in op, in the order of the enum.
            pub const ALL: [Op; [$($name),*].len()] = [$(Op::$op),*];

            /// The place of a built-in op in [`Op::ALL`], and their number for a registered op.
            #[inline]
            pub const fn index(self) -> usize {
                match self {
                    $(Op::$op => Number::$op as usize,)*
                    Op::Registered(_) => Op::ALL.len(),
                }
            }

            /// The name that [`Display`](fmt::Display) prints and [`FromStr`] reads.
            pub fn name(self) -> &'static str {
                match self {
                    $(Op::$op => $name,)*
                    Op::Registered(op) => op.name(),
                }
            }

            /// The class: what the op has in common with others.
            #[inline]
            pub const fn class(self) -> OpClass {
                const CLASSES: [OpClass; Op::ALL.len()] = [$(OpClass::$class),*];
                match self {
                    Op::Registered(op) => op.class(),
                    built_in => CLASSES[built_in.index()],
                }
            }

            /// Whether the op accepts `dtype` for its [key input](Op::key_input).
            #[inline]
            pub fn supports(self, dtype: DType) -> bool {
                const SETS: [u16; Op::ALL.len()] = [$(dtypes::set(dtypes::$dtypes)),*];
                match self {
                    Op::Registered(op) => op.dtypes().contains(&dtype),
                    built_in => SETS[built_in.index()] & (1 << dtype as u16) != 0,
                }
            }

            /// The dtypes that the op accepts for its [key input](Op::key_input).
            pub fn dtypes(self) -> &'static [DType] {
                match self {
                    $(Op::$op => dtypes::$dtypes,)*
                    Op::Registered(op) => op.dtypes(),
                }
            }

            /// The names of the inputs.
            pub fn inputs(self) -> &'static [&'static str] {
                match self {
                    $(Op::$op => &[$(stringify!($input)),*],)*
                    Op::Registered(op) => op.inputs(),
                }
            }

            /// Number of inputs.
            #[inline]
            pub const fn arity(self) -> usize {
                const ARITIES: [u8; Op::ALL.len()] = [$({ const INPUTS: &[&str] = &[$(stringify!($input)),*]; INPUTS.len() as u8 }),*];
                match self {
                    Op::Registered(op) => op.arity(),
                    built_in => ARITIES[built_in.index()] as usize,
                }
            }

            /// About how much work it is for each element; [`ElementWork::Light`] for an op that is not elementwise.
            pub const fn element_work(self) -> ElementWork {
                match self {
                    $($(Op::$op => ElementWork::$work,)?)*
                    Op::Registered(op) => op.work(),
                    _ => ElementWork::Light,
                }
            }

            /// Whether it is a reduction that has a result for no elements.
            pub const fn reduces_no_elements(self) -> bool {
                match self {
                    $($(Op::$op => $empty,)?)*
                    _ => false,
                }
            }

            /// What it computes, in a few sentences of Markdown.
            pub fn documentation(self) -> &'static str {
                match self {
                    Op::Registered(op) => op.documentation(),
                    $(Op::$op => concat!($($doc,)* " ", $crate::op_error!($($error $($number)+)?)).trim_ascii(),)*
                }
            }

            /// The same function in NumPy, for arrays `{0}` and `{1}`; `None` if that is not one expression.
            pub const fn numpy(self) -> Option<&'static str> {
                match self {
                    $($(Op::$op => Some($numpy),)?)*
                    _ => None,
                }
            }

            /// How far a float that it computes may be from the exact result.
            pub const fn accuracy(self) -> Accuracy {
                match self {
                    $($(Op::$op => Accuracy::$error($($number as f64),+),)?)*
                    _ => Accuracy::EXACT,
                }
            }

            /// The values that suites draw for an input.
            pub const fn samples(self, input: usize) -> Samples {
                let all: &[Samples] = match self {
                    $(Op::$op => &[$(Samples::$samples),*],)*
                    Op::Registered(_) => &[],
                };
                match all {
                    [] => Samples::Wild,
                    _ if input < all.len() => all[input],
                    [.., last] => *last,
                }
            }
        }
    };
}
crate::op_table!(define);

impl Op {
    /// The built-in ops, then those that are registered now.
    pub(crate) fn known() -> impl Iterator<Item = Op> {
        Op::ALL.into_iter().chain(RegisteredOp::all().map(Op::Registered))
    }

    /// Whether it is a registered op over tensors, with a rule and kernels of a caller.
    #[inline]
    pub const fn is_over_tensors(self) -> bool {
        match self {
            Op::Registered(op) => matches!(op.class(), OpClass::Registered),
            _ => false,
        }
    }

    /// Whether each output element depends only on the input elements at its own (broadcast) index. Then the output may be exactly the
    /// view of an input.
    #[inline]
    pub const fn is_elementwise(self) -> bool {
        use OpClass::{Binary, Cast, Comparison, Predicate, Select, Ternary, Unary};
        matches!(self.class(), Unary | Predicate | Binary | Comparison | Select | Ternary | Cast)
    }

    /// Whether the output may be exactly the view of this input: of an elementwise op of any, of a registered op [in place](crate::TensorOp::in_place) of the first.
    #[inline]
    pub const fn may_write(self, input: usize) -> bool {
        match self {
            Op::Registered(op) if op.is_in_place() => input == 0,
            _ => self.is_elementwise(),
        }
    }

    /// Whether its kernels refuse some values of elements: integers that are divided by zero or raised to a negative power, and indices out
    /// of range.
    pub fn refuses_elements(self, dtype: DType) -> bool {
        match self {
            Op::Div | Op::FloorDiv | Op::Remainder => !dtype.is_float(),
            Op::Pow => matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64),
            Op::IndexSelect | Op::TakeAlongAxis | Op::Scatter | Op::ScatterAdd => true,
            _ => false,
        }
    }

    /// Whether it combines elements along [`Params::axes`](crate::Params::axes).
    pub const fn is_reduction(self) -> bool {
        matches!(self.class(), OpClass::Reduction | OpClass::ArgReduction)
    }

    /// Whether it is of the softmax family: each output row along one axis depends on a whole input row.
    pub const fn is_softmax(self) -> bool {
        matches!(self.class(), OpClass::Softmax | OpClass::SoftmaxGradient)
    }

    /// Whether a window moves over images: convolutions, poolings and their gradients.
    pub const fn moves_a_window(self) -> bool {
        use OpClass::{Convolution, ConvolutionGradient, Pooling, PoolingGradient};
        matches!(self.class(), Convolution | ConvolutionGradient | Pooling | PoolingGradient)
    }

    /// Whether it has no inputs. Then the caller gives the output, with its dtype and shape.
    pub const fn is_source(self) -> bool {
        matches!(self.class(), OpClass::Source | OpClass::Sequence)
    }

    /// Whether it draws random numbers: each call of the same instruction is to draw others.
    pub const fn is_random(self) -> bool {
        match self {
            Op::Registered(op) => op.is_random(),
            _ => matches!(self.class(), OpClass::Source),
        }
    }

    /// Whether it is a question about elements, whose answers are bool.
    #[inline]
    pub const fn gives_bool(self) -> bool {
        matches!(self.class(), OpClass::Comparison | OpClass::Predicate)
    }

    /// The dtype of the output of an elementwise op other than [`Op::Cast`], whose [key input](Op::key_input) has this dtype.
    #[inline]
    pub const fn elementwise_output(self, dtype: DType) -> DType {
        if self.gives_bool() { DType::Bool } else { dtype }
    }

    /// The index of the input whose dtype selects the kernel: 1 for [`Op::Where`], whose first input is always bool, and 0 for all
    /// others. For an op without inputs, the index of the output.
    #[inline]
    pub const fn key_input(self) -> usize {
        matches!(self.class(), OpClass::Select) as usize
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Op {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Op, ParseError> {
        Op::known().find(|op| op.name() == text).ok_or_else(|| {
            let all: Vec<Op> = Op::known().collect();
            let expected = format!("one of {}; an op of your own is known once it is registered", listed(&all));
            ParseError::new("op", text, expected)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_are_unique() {
        for op in Op::ALL {
            assert_eq!(op.to_string().parse::<Op>(), Ok(op));
        }
        let error = "addd".parse::<Op>().unwrap_err().to_string();
        assert!(error.contains("`addd`") && error.contains("matmul"), "{error}");
    }

    #[test]
    fn position_in_all_is_the_discriminant() {
        for (index, op) in Op::ALL.into_iter().enumerate() {
            assert_eq!(op.index(), index);
        }
    }
}
