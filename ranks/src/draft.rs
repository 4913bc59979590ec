//! [`Draft`]: the operands of a collective, and the copies that bring them to the memory of the host without gaps, and back.

use streamvm::{Access, Error, InstructionsBuilder, MemoryKind, Place, Shape, Tensor};

use crate::issue::CPU;

/// Where the elements of one tensor are among the operands of the function.
#[derive(Copy, Clone)]
pub(crate) struct Ends {
    pub(crate) input: Option<usize>,
    pub(crate) output: Option<usize>,
    /// The number of elements read, or written if none is read.
    pub(crate) elements: usize,
}

#[derive(Default)]
pub(crate) struct Draft {
    /// Copies of operands.
    pub(crate) before: InstructionsBuilder,
    pub(crate) uses: Vec<(Tensor, Access)>,
    pub(crate) ends: Vec<Ends>,
    /// Copies of results.
    pub(crate) after: InstructionsBuilder,
}

impl Draft {
    fn operand(&mut self, x: Tensor, access: Access) -> usize {
        self.uses.push((x, access));
        self.uses.len() - 1
    }

    /// An operand with the elements of `x`: itself, or a copy.
    #[track_caller]
    pub(crate) fn read(&mut self, x: &Tensor) -> Result<usize, Error> {
        let there = if is_ready(x) { x.clone() } else { self.before.copy(x, CPU)? };
        Ok(self.operand(there, Access::Read))
    }

    /// An operand whose elements become those of `x`.
    #[track_caller]
    pub(crate) fn write(&mut self, x: &Tensor) -> Result<usize, Error> {
        if is_ready(x) {
            return Ok(self.operand(x.clone(), Access::Write));
        }
        let there = new(x, x.dims())?;
        self.after.copy_into(&there, x)?;
        Ok(self.operand(there, Access::Write))
    }

    /// An operand with the elements of `x`, whose new elements become those of `x`.
    #[track_caller]
    pub(crate) fn update(&mut self, x: &Tensor) -> Result<usize, Error> {
        if is_ready(x) {
            return Ok(self.operand(x.clone(), Access::ReadWrite));
        }
        let there = self.before.copy(x, CPU)?;
        self.after.copy_into(&there, x)?;
        Ok(self.operand(there, Access::ReadWrite))
    }

    /// An operand for a result of this shape, with the dtype of `x`, and the tensor that has the result at the place of `x`.
    #[track_caller]
    pub(crate) fn result(&mut self, x: &Tensor, dims: &[usize]) -> Result<(usize, Tensor), Error> {
        let there = new(x, dims)?;
        let result = match x.place() {
            Place::Device(CPU) | Place::Host => there.clone(),
            other => self.after.copy(&there, other)?,
        };
        Ok((self.operand(there, Access::Write), result))
    }

    /// Notes a tensor of the collective by its operands.
    pub(crate) fn end(&mut self, input: Option<usize>, output: Option<usize>, elements: usize) {
        self.ends.push(Ends { input, output, elements });
    }
}

/// A new tensor of the host's memory, with the dtype of `x`.
fn new(x: &Tensor, dims: &[usize]) -> Result<Tensor, Error> {
    let shape = Shape::new(dims)?;
    Ok(Tensor::unbound(CPU.into(), MemoryKind::Device, x.dtype(), shape))
}

fn is_ready(x: &Tensor) -> bool {
    x.place() == Place::Device(CPU) && x.layout().is_contiguous()
}
