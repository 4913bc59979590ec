//! Measured costs of steps, by which the compiler spreads steps over lanes in place of estimates.
//!
//! A cost is that of a kind of work (an op, a copy, a fill, a function by its name) and of a size. Sizes count in powers of two: two sizes of one power
//! have one cost, the mean of what was measured. The size is what the time of such work follows: multiplications for a matrix product, elements of the
//! widest operand for other ops, elements of all operands for a function.

use std::collections::BTreeMap;
use std::time::Duration;

use streamvm_ep::OpClass;

use crate::ir::program::{Operand, Program, Step, Work};

/// How long steps take, by their work and size. Plain data: the same costs give the same plan on every machine.
///
/// ```
/// use std::time::Duration;
/// use streamvm_ep::{DType, DeviceId};
/// use streamvm_program::{CompileOptions, Costs, compile, record};
///
/// # fn main() -> Result<(), streamvm_instructions::Error> {
/// let program = record("two", |r| {
///     let x = r.feed("x", DeviceId::cpu(0), DType::F32, &[64])?;
///     r.fetch("a", &x.exp()?)?;
///     r.fetch("b", &x.exp()?.tanh()?)
/// })?;
/// let mut costs = Costs::default();
/// costs.add(&program, 0, Duration::from_millis(1)); // as `exp` over so many elements takes
/// costs.set_all_sizes("tanh", Duration::from_millis(2));
/// let options = CompileOptions { lanes: 2, costs, ..CompileOptions::default() };
/// assert_eq!(compile(&program, &options)?.segments()[0].branches.len(), 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct Costs {
    /// By the name of the work and the power of two of the size.
    by_size: BTreeMap<(String, u32), Measured>,
    by_name: BTreeMap<String, u64>,
}

/// What was measured of one kind of work.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Default, Debug)]
struct Measured {
    times: u64,
    nanoseconds: u64,
}

impl Costs {
    /// Adds that a step of `program` took so long. It counts for all steps, of any program, that do the same work with as many elements, within a
    /// power of two.
    ///
    /// # Panics
    /// If the program has no step with this number.
    pub fn add(&mut self, program: &Program, step: usize, time: Duration) {
        self.add_times(program, step, 1, time);
    }

    /// [`add`](Costs::add) of several runs of the step, which took so long together.
    ///
    /// # Panics
    /// If the program has no step with this number.
    pub fn add_times(&mut self, program: &Program, step: usize, times: u64, time: Duration) {
        let step = &program.steps[step];
        let measured = self.by_size.entry((name(step).to_owned(), power(size(step)))).or_default();
        measured.times = measured.times.saturating_add(times);
        measured.nanoseconds = measured.nanoseconds.saturating_add(nanoseconds(time));
    }

    /// Sets how long work with this name takes where no cost of its size is known: the name of an op, `copy`, `fill`, or the name of a function.
    pub fn set_all_sizes(&mut self, name: impl Into<String>, time: Duration) {
        self.by_name.insert(name.into(), nanoseconds(time));
    }

    /// About how many bytes of host memory they take on the heap.
    pub fn heap_bytes(&self) -> usize {
        let by_size = self.by_size.keys().map(|(name, _)| name.len() + size_of::<((String, u32), Measured)>());
        let by_name = self.by_name.keys().map(|name| name.len() + size_of::<(String, u64)>());
        by_size.chain(by_name).sum()
    }

    /// How long a step takes; `None` if nothing tells.
    pub fn of(&self, program: &Program, step: usize) -> Option<Duration> {
        self.nanoseconds_of(&program.name, &program.steps[step]).map(Duration::from_nanos)
    }

    /// The time of a step of the program with this name.
    pub(crate) fn nanoseconds_of(&self, program: &str, step: &Step) -> Option<u64> {
        if self.by_size.is_empty() && self.by_name.is_empty() {
            return None;
        }
        let name = name(step);
        if let Some(Measured { times, nanoseconds }) = self.by_size.get(&(name.to_owned(), power(size(step)))) {
            return nanoseconds.checked_div(*times);
        }
        // As the profile of an engine names functions of programs.
        let in_program = || step.function().and_then(|_| self.by_name.get(&format!("{name} of {program}")));
        self.by_name.get(name).or_else(in_program).copied()
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The power of two that a size lies in.
fn power(size: u64) -> u32 {
    u64::BITS - size.leading_zeros()
}

fn name(step: &Step) -> &str {
    match &step.work {
        Work::Function(function) => function.name(),
        work => work.name(),
    }
}

/// What the time of a step follows.
pub(crate) fn size(step: &Step) -> u64 {
    let elements = |operand: &Operand| operand.layout.elements() as u64;
    match &step.work {
        Work::Call(op, _) if op.class() == OpClass::MatMul => {
            let inner = step.operands.first().and_then(|a| a.layout.shape().dims().last().copied()).unwrap_or(1) as u64;
            step.output().map_or(0, elements).saturating_mul(inner)
        }
        Work::Call(op, _) if matches!(op.class(), OpClass::Convolution | OpClass::ConvolutionGradient) => {
            // The output of the convolution: of a gradient the last input. Each element of it is a sum over an output channel of the weight.
            let (weight, output) = (&step.operands[1], &step.operands[2]);
            let channels = weight.layout.shape().dims().first().copied().unwrap_or(1).max(1) as u64;
            elements(output).saturating_mul(elements(weight) / channels)
        }
        Work::Call(..) => step.operands.iter().map(elements).max().unwrap_or(0),
        Work::Copy | Work::Fill(_) => step.output().map_or(0, elements),
        Work::Function(_) => step.operands.iter().map(elements).fold(0, u64::saturating_add),
        Work::Touch(_) | Work::SectionBegin(_) | Work::SectionEnd(_) => 0,
        Work::If | Work::Else | Work::While | Work::End => 0,
    }
}
