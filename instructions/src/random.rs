//! Generators of random numbers: a seed, and how far its numbers are used up.
//!
//! A generator computes nothing. What is drawn from it is an instruction that has the seed and the first block of its share
//! as parameters, like any other parameters: what it gives is decided when it is built, whoever runs it, where and when.

use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use streamvm_ep::{DType, DeviceId, Op, Params, Shape};

use crate::check::{check_not_upload, check_op_into, check_output};
use crate::{BuildError, InstructionsBuilder, Tensor};

/// Elements of one block of four words; two of 8 bytes.
const OF_A_BLOCK: usize = 4;

/// A sequence of random numbers, which calls that draw from it share out among themselves, in the order in which they are
/// made. Two generators of one seed give the same; clones are one generator. It can be shared by threads, whose calls then
/// get shares in the order in which they happen to come; threads that want the same numbers each time have one each, of
/// another seed.
///
/// ```
/// use streamvm_ep::{DType, DeviceId};
/// use streamvm_instructions::{Generator, InstructionsBuilder};
///
/// # fn main() -> Result<(), streamvm_instructions::BuildError> {
/// let (mut b, generator) = (InstructionsBuilder::new(), Generator::new(7));
/// b.uniform(&generator, DeviceId::cpu(0), DType::F32, &[2, 3])?;
/// b.normal(&generator, DeviceId::cpu(0), DType::F64, &[3])?;
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
    /// The first block that nobody has. Shares have nothing else in common, so its order alone matters.
    next: Arc<AtomicU64>,
}

impl Generator {
    /// The numbers of `seed`, from the first on.
    pub fn new(seed: u64) -> Generator {
        Generator::at(seed, 0)
    }

    /// The numbers of `seed`, from a [`position`](Generator::position) on.
    pub fn at(seed: u64, position: u64) -> Generator {
        Generator { seed, next: Arc::new(AtomicU64::new(position)) }
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Where the next share begins, in blocks. Saved with the seed, it is what goes on elsewhere from here.
    pub fn position(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Takes the share of a tensor of so many elements: the parameters that draw it. Behind 2 to the power 64 blocks the
    /// numbers begin anew.
    pub fn take(&self, dtype: DType, elements: usize) -> Params {
        let of_a_block = if dtype.size() == 8 { OF_A_BLOCK / 2 } else { OF_A_BLOCK };
        let counter = self.next.fetch_add(elements.div_ceil(of_a_block) as u64, Ordering::Relaxed);
        Params::random(self.seed, counter)
    }
}

impl InstructionsBuilder {
    /// A new tensor of random numbers, evenly from `[0, 1)`, of a float dtype. The same on every device and in every mode.
    ///
    /// # Errors
    /// The shape is impossible, or the dtype is no float; then nothing is taken from the generator.
    #[track_caller]
    pub fn uniform(
        &mut self,
        generator: &Generator,
        device: DeviceId,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Tensor, BuildError> {
        let output = self.output(device, dtype, Shape::new(shape)?);
        self.uniform_into(generator, &output)?;
        Ok(output)
    }

    /// A new tensor of random numbers from the normal distribution of mean 0 and variance 1, of a float dtype. The same in
    /// every mode; devices of another kind may differ in the last bits.
    ///
    /// # Errors
    /// As [`uniform`](InstructionsBuilder::uniform).
    #[track_caller]
    pub fn normal(
        &mut self,
        generator: &Generator,
        device: DeviceId,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Tensor, BuildError> {
        let output = self.output(device, dtype, Shape::new(shape)?);
        self.normal_into(generator, &output)?;
        Ok(output)
    }
}

impl InstructionsBuilder {
    /// [`uniform`](InstructionsBuilder::uniform) into `output`, which may be a view.
    ///
    /// # Errors
    /// The dtype is no float, or `output` lives on no device or broadcasts; then nothing is taken from the generator.
    #[track_caller]
    pub fn uniform_into(&mut self, generator: &Generator, output: &Tensor) -> Result<(), BuildError> {
        self.draw(Op::Uniform, generator, output)
    }

    /// [`normal`](InstructionsBuilder::normal) into `output`, which may be a view.
    ///
    /// # Errors
    /// As [`uniform_into`](InstructionsBuilder::uniform_into).
    #[track_caller]
    pub fn normal_into(&mut self, generator: &Generator, output: &Tensor) -> Result<(), BuildError> {
        self.draw(Op::Normal, generator, output)
    }

    #[track_caller]
    fn draw(&mut self, op: Op, generator: &Generator, output: &Tensor) -> Result<(), BuildError> {
        // What is refused takes no share: the counter is none that is used.
        let (device, dtype, shape) = check_op_into(op, &[], &Params::random(generator.seed, 0), output)?;
        check_output(op.name(), output, device.into(), dtype, &shape)?;
        check_not_upload(op.name(), output)?;
        let params = generator.take(dtype, shape.elements());
        self.push_op(device, op, params, &[], output, Location::caller());
        Ok(())
    }
}
