//! Copies and casts that a builder inserts where the operands of a call are on different devices or of different dtypes.

use smallvec::SmallVec;
use streamvm_ep::{DType, Op, OpClass, Params};

use crate::builder::instructions_builder::InstructionsBuilder;
use crate::error::build_error::BuildError;
use crate::error::engine_error::Error;
use crate::place::Place;
use crate::tensor::handle::Tensor;

impl InstructionsBuilder {
    /// [`InstructionsBuilder::op`] of inputs that were refused. With transfers they are brought to the device of the first that is on one, and to one dtype.
    #[cold]
    #[track_caller]
    pub(crate) fn op_with_transfers(
        &mut self,
        op: Op,
        inputs: &[&Tensor],
        params: Params,
        refused: BuildError,
    ) -> Result<Tensor, Error> {
        if !self.options.transfers {
            return Err(refused.into());
        }
        let mut transfers = self.without_transfers();
        let fitted = transfers.brought_together(inputs, |at| op.class().computes_with(at))?;
        let output = transfers.op(op, &fitted.iter().collect::<SmallVec<[&Tensor; 4]>>(), params)?;
        self.list.append(transfers.finish());
        Ok(output)
    }

    /// [`InstructionsBuilder::op_into`] of operands that were refused. With transfers the inputs are brought to the device and the dtype of `output`, or to
    /// one dtype if the op compares.
    #[cold]
    #[track_caller]
    pub(super) fn op_into_with_transfers(
        &mut self,
        op: Op,
        inputs: &[&Tensor],
        params: Params,
        output: &Tensor,
        refused: BuildError,
    ) -> Result<(), Error> {
        if !self.options.transfers {
            return Err(refused.into());
        }
        let mut transfers = self.list_of_its_own();
        if op.class() == OpClass::Comparison {
            let answers = transfers.op(op, inputs, params)?;
            transfers.copy_into(&answers, output)?;
            self.list.append(transfers.finish());
            return Ok(());
        }
        transfers.options.transfers = false;
        let fitted = transfers
            .fitted(inputs, output.place(), |at| Some(output.dtype()).filter(|_| op.class().computes_with(at)))?;
        transfers.op_into(op, &fitted.iter().collect::<SmallVec<[&Tensor; 4]>>(), params, output)?;
        self.list.append(transfers.finish());
        Ok(())
    }

    /// [`InstructionsBuilder::copy_into`] of tensors that were refused. With transfers the source is cast to the dtype of `target`, on a device of the two, and
    /// copied by way of the host where the devices do not reach each other.
    #[cold]
    #[track_caller]
    pub(super) fn copy_into_with_transfers(
        &mut self,
        source: &Tensor,
        target: &Tensor,
        refused: BuildError,
    ) -> Result<(), Error> {
        if !self.options.transfers || source.shape() != target.shape() {
            return Err(refused.into());
        }
        let mut transfers = self.without_transfers();
        let mut source = source.clone();
        if source.dtype() != target.dtype() {
            if source.place().device().is_none() {
                source = transfers.brought(&source, target.place())?;
            }
            source = transfers.cast(&source, target.dtype())?;
        }
        match transfers.copy_into(&source, target) {
            Err(Error::Build { error: BuildError::OutOfReach { .. }, .. }) => {
                source = transfers.copy(&source, Place::Host)?;
                transfers.copy_into(&source, target)?;
            }
            copied => copied?,
        }
        self.list.append(transfers.finish());
        Ok(())
    }

    /// Each tensor, or a copy of it on the device of the first that is on one. Those that are computed with are cast to the dtype that they are promoted to, if
    /// there is one.
    #[track_caller]
    pub(super) fn brought_together(
        &mut self,
        tensors: &[&Tensor],
        computes_with: impl Fn(usize) -> bool,
    ) -> Result<SmallVec<[Tensor; 4]>, Error> {
        let place = tensors.iter().map(|tensor| tensor.place()).find(|place| place.device().is_some());
        let computed =
            tensors.iter().enumerate().filter(|(at, _)| computes_with(*at)).map(|(_, tensor)| tensor.dtype());
        let dtype = computed.map(Some).reduce(|one, other| one?.promoted(other?)).flatten();
        self.fitted(tensors, place.unwrap_or(Place::Host), |at| dtype.filter(|_| computes_with(at)))
    }

    /// Each tensor, or a copy of it at `place`, cast to the dtype that is asked for.
    #[track_caller]
    fn fitted(
        &mut self,
        tensors: &[&Tensor],
        place: Place,
        dtype: impl Fn(usize) -> Option<DType>,
    ) -> Result<SmallVec<[Tensor; 4]>, Error> {
        let mut fitted: SmallVec<[Tensor; 4]> = SmallVec::with_capacity(tensors.len());
        for (at, tensor) in tensors.iter().enumerate() {
            // An operand that is given twice is copied once.
            let is_same = |(before, other): (usize, &&Tensor)| {
                other.shares_storage(tensor) && other.layout() == tensor.layout() && dtype(before) == dtype(at)
            };
            if let Some(before) = tensors[..at].iter().enumerate().position(is_same) {
                fitted.push(fitted[before].clone());
                continue;
            }
            let mut tensor = self.brought(tensor, place)?;
            if let Some(dtype) = dtype(at).filter(|dtype| *dtype != tensor.dtype()) {
                tensor = self.cast(&tensor, dtype)?;
            }
            fitted.push(tensor);
        }
        Ok(fitted)
    }

    /// The tensor, if it is at `place`, or a copy there.
    #[track_caller]
    fn brought(&mut self, tensor: &Tensor, place: Place) -> Result<Tensor, Error> {
        if tensor.place() == place {
            return Ok(tensor.clone());
        }
        match self.copy(tensor, place) {
            Err(Error::Build { error: BuildError::OutOfReach { .. }, .. }) => {
                let of_host = self.copy(tensor, Place::Host)?;
                self.copy(&of_host, place)
            }
            copied => copied,
        }
    }

    /// A builder as this one, with a list of its own, that inserts nothing.
    pub(super) fn without_transfers(&self) -> InstructionsBuilder {
        let mut builder = self.list_of_its_own();
        builder.options.transfers = false;
        builder
    }
}
