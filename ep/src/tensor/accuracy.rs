//! What suites check of an op: which values they draw, and how far a float may be from the exact result.

use crate::tensor::dtype::DType;

/// The values that suites draw for an input of an op.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Samples {
    /// Any: NaN, infinities, zeros of both signs, the ends of the range.
    Wild,
    /// Floats from -4 to 4, so that the order of adding hardly matters; any integers.
    Tame,
    /// As [`Samples::Wild`], but no integer 0: divisors.
    NonZero,
    /// As [`Samples::Wild`], but integers from 0 to 8: exponents.
    Exponents,
    /// From 0 to 8: indices of axes with more elements.
    Small,
}

/// The dtype that an op computes floats in, before each element is rounded once.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Computed {
    /// Its own, or `f32` for 16-bit floats.
    InOwn,
    /// As sums: `f64`, or `f32` for 16-bit floats.
    AsSums,
    /// `f64`.
    InF64,
}

/// How far a float that an op computes may be from the exact result: so many steps of the dtype that it is [computed in](Accuracy::computed), and half a
/// step of its own dtype if that is narrower. Without steps it is the nearest number.
///
/// A step is the distance from 1 to the next number, times the size of the result, or times `scale` if that is larger: where terms cancel, the
/// error is that of the terms. Suites draw terms of at most 4 in size for such an op ([`Samples::Tame`]).
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Accuracy {
    computed: Computed,
    on_cpu: f64,
    apart: f64,
    scale: f64,
    /// Whether `on_cpu` is for each term.
    grows: bool,
    /// Whether `scale` is that of one term of a sum.
    scale_grows: bool,
    is_function: bool,
}

impl Accuracy {
    /// The nearest number, with the same bits on every device.
    pub const EXACT: Accuracy = Accuracy::own(0.0, 0.0, 0.0);

    /// A function of one or two numbers: `on_cpu` ulp from the exact result on a CPU. A result of another device may be `apart` ulp away from that.
    pub const fn ulps(on_cpu: f64, apart: f64) -> Accuracy {
        Accuracy { is_function: true, ..Accuracy::own(on_cpu, apart, 0.0) }
    }

    /// Computed in the own dtype: `on_cpu` steps from the exact result on a CPU. A result of another device may be `apart` steps away from that.
    pub const fn own(on_cpu: f64, apart: f64, scale: f64) -> Accuracy {
        let computed = Computed::InOwn;
        Accuracy { computed, on_cpu, apart, scale, grows: false, scale_grows: false, is_function: false }
    }

    /// As [`Accuracy::own`], computed in `f64`.
    pub const fn wide(on_cpu: f64, apart: f64, scale: f64) -> Accuracy {
        Accuracy { computed: Computed::InF64, ..Accuracy::own(on_cpu, apart, scale) }
    }

    /// As [`Accuracy::own`], computed as sums are: in `f64`, or in `f32` for 16-bit floats.
    pub const fn sums(on_cpu: f64, apart: f64, scale: f64) -> Accuracy {
        Accuracy { computed: Computed::AsSums, ..Accuracy::own(on_cpu, apart, scale) }
    }

    /// As [`Accuracy::sums`], where `on_cpu` is for each term.
    pub const fn folded(on_cpu: f64, apart: f64, scale: f64) -> Accuracy {
        Accuracy { grows: true, ..Accuracy::sums(on_cpu, apart, scale) }
    }

    /// As [`Accuracy::folded`], where `scale` is that of a term: the sum of many is larger, by the root of their number as a rule.
    pub const fn total(on_cpu: f64, apart: f64, scale: f64) -> Accuracy {
        Accuracy { scale_grows: true, ..Accuracy::folded(on_cpu, apart, scale) }
    }

    /// The dtype that a result of this dtype is computed in.
    pub const fn computed(self, dtype: DType) -> DType {
        match (self.computed, dtype) {
            (Computed::InF64, DType::F32 | DType::F16 | DType::BF16) | (Computed::AsSums, DType::F32) => DType::F64,
            (_, DType::F16 | DType::BF16) => DType::F32,
            _ => dtype,
        }
    }

    /// Steps between the exact result and that of a CPU, for an element with this many terms.
    pub fn on_cpu(self, terms: usize) -> f64 {
        if self.grows { self.on_cpu * terms.max(2) as f64 } else { self.on_cpu }
    }

    /// Steps between the results of a CPU and of another device; 0 if all have the same bits.
    pub const fn apart(self) -> f64 {
        self.apart
    }

    /// The size, if larger than that of the result, that steps are relative to, for an element with this many terms.
    pub fn scale(self, terms: usize) -> f64 {
        if self.scale_grows { self.scale * (terms as f64).sqrt() } else { self.scale }
    }

    /// Whether it is that of a [function of numbers](Accuracy::ulps), whose reference in `f64` has an error of the same kind.
    pub const fn is_function(self) -> bool {
        self.is_function
    }
}
