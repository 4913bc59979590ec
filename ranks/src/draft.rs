//! [`Draft`]: the operands of a collective, and the copies and casts that bring them to the memory of its device without gaps, and back.

use streamvm::{Access, DType, DeviceId, Error, InstructionsBuilder, MemoryKind, Place, Shape, Tensor};

use crate::issue::CPU;

/// Where the elements of one tensor are among the operands of the function.
#[derive(Copy, Clone)]
pub(crate) struct Ends {
    pub(crate) input: Option<usize>,
    pub(crate) output: Option<usize>,
    /// The number of elements when the collective was made: those of one rank's part for a scatter, else those read, or written if none is read.
    pub(crate) elements: usize,
}

pub(crate) struct Draft {
    /// The device of the collective.
    pub(crate) device: DeviceId,
    /// The dtype of all operands of the function.
    dtype: DType,
    /// Copies and casts of operands.
    pub(crate) before: InstructionsBuilder,
    pub(crate) uses: Vec<(Tensor, Access)>,
    pub(crate) ends: Vec<Ends>,
    /// Casts and copies of results.
    pub(crate) after: InstructionsBuilder,
}

impl Draft {
    pub(crate) fn new(device: DeviceId, dtype: DType) -> Draft {
        let (before, after) = (InstructionsBuilder::new(), InstructionsBuilder::new());
        Draft { device, dtype, before, uses: Vec::new(), ends: Vec::new(), after }
    }

    fn operand(&mut self, x: Tensor, access: Access) -> usize {
        self.uses.push((x, access));
        self.uses.len() - 1
    }

    /// An operand with the elements of `x`: itself, or a copy.
    #[track_caller]
    pub(crate) fn read(&mut self, x: &Tensor) -> Result<usize, Error> {
        let there = self.brought(x)?;
        Ok(self.operand(there, Access::Read))
    }

    /// An operand whose elements become those of `x`.
    #[track_caller]
    pub(crate) fn write(&mut self, x: &Tensor) -> Result<usize, Error> {
        if self.is_ready(x) {
            return Ok(self.operand(x.clone(), Access::Write));
        }
        let there = self.new_tensor(x.dims())?;
        self.bring_back(&there, x)?;
        Ok(self.operand(there, Access::Write))
    }

    /// An operand with the elements of `x`, whose new elements become those of `x`.
    #[track_caller]
    pub(crate) fn update(&mut self, x: &Tensor) -> Result<usize, Error> {
        let there = self.brought(x)?;
        if !self.is_ready(x) {
            self.bring_back(&there, x)?;
        }
        Ok(self.operand(there, Access::ReadWrite))
    }

    /// An operand for a result of this shape, and the tensor that has the result, with the dtype and at the place of `x`.
    #[track_caller]
    pub(crate) fn result(&mut self, x: &Tensor, dims: &[usize]) -> Result<(usize, Tensor), Error> {
        let there = self.new_tensor(dims)?;
        let mut result = self.narrowed(&there, x.dtype())?;
        let place = if x.place() == Place::Host { CPU.into() } else { x.place() };
        if place != Place::Device(self.device) {
            result = self.after.copy(&result, place)?;
        }
        Ok((self.operand(there, Access::Write), result))
    }

    /// An operand that stands for nothing, on the device of the collective.
    #[track_caller]
    pub(crate) fn token(&mut self) -> Result<usize, Error> {
        let token = self.before.zeros(self.device, self.dtype, &[1])?;
        Ok(self.operand(token, Access::ReadWrite))
    }

    /// Notes a tensor of the collective by its operands.
    pub(crate) fn end(&mut self, input: Option<usize>, output: Option<usize>, elements: usize) {
        self.ends.push(Ends { input, output, elements });
    }

    fn is_ready(&self, x: &Tensor) -> bool {
        x.place() == Place::Device(self.device) && x.layout().is_contiguous() && x.dtype() == self.dtype
    }

    /// A new tensor on the device.
    fn new_tensor(&self, dims: &[usize]) -> Result<Tensor, Error> {
        Ok(Tensor::unbound(self.device.into(), MemoryKind::Device, self.dtype, Shape::new(dims)?))
    }

    /// A tensor on the device with the elements of `x`: itself, or a new one.
    #[track_caller]
    fn brought(&mut self, x: &Tensor) -> Result<Tensor, Error> {
        if self.is_ready(x) {
            return Ok(x.clone());
        }
        let is_there = x.place() == Place::Device(self.device) && x.dtype() != self.dtype;
        let there = if is_there { x.clone() } else { self.before.copy(x, self.device)? };
        if there.dtype() == self.dtype { Ok(there) } else { self.before.cast(&there, self.dtype) }
    }

    /// Copies the result `there` to `x`.
    #[track_caller]
    fn bring_back(&mut self, there: &Tensor, x: &Tensor) -> Result<(), Error> {
        let narrowed = self.narrowed(there, x.dtype())?;
        self.after.copy_into(&narrowed, x)
    }

    #[track_caller]
    fn narrowed(&mut self, there: &Tensor, dtype: DType) -> Result<Tensor, Error> {
        if there.dtype() == dtype { Ok(there.clone()) } else { self.after.cast(there, dtype) }
    }
}
