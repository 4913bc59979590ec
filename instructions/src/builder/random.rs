//! Generators of random numbers: a seed, and a counter of the numbers that were handed out.
//!
//! A generator computes no numbers. Drawing from it builds an instruction whose parameters are the seed and the first block of its
//! share. So the numbers are determined when the instruction is built, and do not depend on the thread, time or place of its
//! execution.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use streamvm_ep::{DType, DeviceId, Op, Params, Shape, Site};

use crate::builder::instructions_builder::InstructionsBuilder;
use crate::error::engine_error::Error;
use crate::list::check::{check_op_into, check_output};
use crate::tensor::handle::Tensor;
use crate::tensor::reach::check_not_upload;

/// Elements in one block of random numbers: a block has four 32-bit words, so it holds four elements, or two of 8 bytes.
const OF_A_BLOCK: usize = 4;

/// A sequence of random numbers. Each call that draws from it takes the next share of the sequence, in the order of the calls.
///
/// Two generators of one seed give the same numbers; clones share one position. Threads may share a generator, and get their shares
/// in the order in which their calls happen to come. For reproducible numbers, give each thread a generator with a seed of its own.
///
/// ```
/// use streamvm_ep::{DType, DeviceId};
/// use streamvm_instructions::{Generator, InstructionsBuilder};
///
/// # fn main() -> Result<(), streamvm_instructions::Error> {
/// let (mut b, generator) = (InstructionsBuilder::new(), Generator::new(7));
/// b.rand(&generator, DeviceId::cpu(0), DType::F32, &[2, 3])?;
/// b.randn(&generator, DeviceId::cpu(0), DType::F64, &[3])?;
/// assert_eq!(b.finish().to_string(), "\
/// %0 call     compute@cpu:0:0       uniform seed 7 at 0 -> t0                 f32[2,3]
/// %1 call     compute@cpu:0:0       normal seed 7 at 2 -> t1                  f64[3]
/// ");
/// assert_eq!(generator.position(), 4);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Generator {
    seed: u64,
    /// The first block that was not handed out. No other data depends on it, so relaxed ordering is enough.
    next: Arc<AtomicU64>,
}

impl Generator {
    /// A generator of the numbers of `seed`, from the first number.
    pub fn new(seed: u64) -> Generator {
        Generator::at(seed, 0)
    }

    /// A generator of the numbers of `seed`, from a [`position`](Generator::position).
    pub fn at(seed: u64, position: u64) -> Generator {
        Generator { seed, next: Arc::new(AtomicU64::new(position)) }
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The first block of the next share. A generator [at](Generator::at) this position, with the same seed, continues the
    /// sequence.
    pub fn position(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Takes the share for a tensor of so many elements and returns the parameters that draw it. After 2^64 blocks the sequence
    /// repeats.
    pub fn take(&self, dtype: DType, elements: usize) -> Params {
        let counter = self.next.fetch_add(Generator::blocks(dtype, elements), Ordering::Relaxed);
        Params::random(self.seed, counter)
    }

    /// How many blocks a tensor of so many elements takes.
    pub fn blocks(dtype: DType, elements: usize) -> u64 {
        let of_a_block = if dtype.size() == 8 { OF_A_BLOCK / 2 } else { OF_A_BLOCK };
        elements.div_ceil(of_a_block) as u64
    }
}

impl InstructionsBuilder {
    /// Returns a new tensor of random numbers, uniformly distributed in `[0, 1)`, of a float dtype. The numbers are the same on
    /// every device and in every mode of the engine.
    ///
    /// # Errors
    /// The shape is impossible, or the dtype is not a float. Then the generator does not advance.
    #[track_caller]
    pub fn rand(
        &mut self,
        generator: &Generator,
        device: DeviceId,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Tensor, Error> {
        let output = self.output(device, dtype, Shape::new(shape)?);
        self.rand_into(generator, &output)?;
        Ok(output)
    }

    /// Returns a new tensor of random numbers from the normal distribution of mean 0 and variance 1, of a float dtype. The numbers
    /// are the same in every mode of the engine; devices of different kinds may differ in the last bits.
    ///
    /// # Errors
    /// As [`rand`](InstructionsBuilder::rand).
    #[track_caller]
    pub fn randn(
        &mut self,
        generator: &Generator,
        device: DeviceId,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Tensor, Error> {
        let output = self.output(device, dtype, Shape::new(shape)?);
        self.randn_into(generator, &output)?;
        Ok(output)
    }
}

impl InstructionsBuilder {
    /// [`rand`](InstructionsBuilder::rand) into `output`, which may be a view.
    ///
    /// # Errors
    /// The dtype is not a float, or `output` does not live on a device, or broadcasts. Then the generator does not advance.
    #[track_caller]
    pub fn rand_into(&mut self, generator: &Generator, output: &Tensor) -> Result<(), Error> {
        self.draw(Op::Uniform, generator, output)
    }

    /// [`randn`](InstructionsBuilder::randn) into `output`, which may be a view.
    ///
    /// # Errors
    /// As [`rand_into`](InstructionsBuilder::rand_into).
    #[track_caller]
    pub fn randn_into(&mut self, generator: &Generator, output: &Tensor) -> Result<(), Error> {
        self.draw(Op::Normal, generator, output)
    }

    #[track_caller]
    fn draw(&mut self, op: Op, generator: &Generator, output: &Tensor) -> Result<(), Error> {
        // The check comes first, so that a refused call takes no share; it does not depend on the counter, which is 0 here.
        let (device, dtype, shape) = check_op_into(op, &[], &Params::random(generator.seed, 0), output)?;
        check_output(op.name(), output, device.into(), dtype, &shape)?;
        check_not_upload(op.name(), output)?;
        let params = generator.take(dtype, shape.elements());
        self.push_op(device, op, params, &[], output, Site::caller());
        Ok(())
    }
}
