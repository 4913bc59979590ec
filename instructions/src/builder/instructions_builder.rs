//! The builder: appends instructions on typed streams to a list.
//!
//! The builder holds no lock and touches no shared state. No instruction runs, and no memory is allocated, before the list is
//! submitted to an engine. Each call stores the caller's source location. A call that returns an error leaves the list unchanged.

use streamvm_ep::{DType, DeviceId, MemoryKind, Op, Params, Scalar, Shape, Site};
use streamvm_stream::{StreamKey, StreamType};

use crate::builder::copy_stream::copy_stream;
use crate::builder::scope::BuilderOptions;
use crate::error::build_error::BuildError;
use crate::error::engine_error::Error;
use crate::lane::Lane;
use crate::list::check::{check_alike, check_copy, check_fill, check_in_place, check_op, check_op_into, check_output};
use crate::list::instruction_list::InstructionList;
use crate::list::kind::Kind;
use crate::place::{HOST_DEVICE, Place};
use crate::tensor::handle::Tensor;
use crate::tensor::reach::{check_copy_ends, check_not_upload};
use crate::tensor::uses::Use;
use crate::tensor::var::Var;

/// Builds an [`InstructionList`] in program order.
///
/// The stream of each instruction follows from its kind: kernels and functions run on the compute stream of their operands' device,
/// copies on the copy stream of the device at their other end. All of them use the builder's lane. Scopes of options change the lane and
/// the kind of stream that computes: `b.on_lane(1).relu(&x)` ([`on_lane`](InstructionsBuilder::on_lane)).
///
/// The list keeps everything that its instructions use alive. Mostly that costs one store per use; a reference is counted where the
/// thread has another list, or where another thread was the first to list the resource.
#[derive(Debug)]
pub struct InstructionsBuilder {
    pub(super) list: InstructionList,
    pub(super) options: BuilderOptions,
}

impl InstructionsBuilder {
    /// A builder of an empty list, on the thread's current [`Lane`](crate::Lane). It keeps that lane, whichever the thread enters later;
    /// [`on_lane`](InstructionsBuilder::on_lane) changes it.
    pub fn new() -> InstructionsBuilder {
        InstructionsBuilder { list: InstructionList::new(), options: BuilderOptions::new() }
    }

    /// A builder for an eager call on `tensor`, with [transfers](InstructionsBuilder::with_transfers) if its engine inserts them.
    pub(crate) fn for_calls_on(tensor: &Tensor) -> InstructionsBuilder {
        let mut builder = InstructionsBuilder::new();
        builder.options.transfers = tensor.resource().engine().is_some_and(|engine| engine.get().inserts_transfers());
        builder
    }

    /// Runs `op` over `inputs` on their device and returns its output, a tensor with its own storage. If the inputs belong to an
    /// engine, so does the output. Numbers among the inputs are in the parameters ([`Params::with_number`]); the methods of elementwise ops take them
    /// beside tensors.
    ///
    /// # Errors
    /// The shapes, dtypes or parameters do not fit the op, or the inputs do not live on one device.
    #[track_caller]
    pub fn op(&mut self, op: Op, inputs: &[&Tensor], params: Params) -> Result<Tensor, Error> {
        let (device, output) = match output_of(op, inputs, &params, self.options.compute) {
            Ok(checked) => checked,
            Err(refused) => return self.op_with_transfers(op, inputs, params, refused),
        };
        self.push_op(device, op, params, inputs, &output, Site::caller());
        Ok(output)
    }

    /// A new tensor on `device`, for the output of an instruction of this builder.
    pub(crate) fn output(&self, device: DeviceId, dtype: DType, shape: Shape) -> Tensor {
        Tensor::unbound(device.into(), self.options.compute.output_memory(), dtype, shape)
    }

    /// Copies `source` to `place` and returns the copy, which is contiguous and has its own storage. If the source belongs to an
    /// engine, so does the copy.
    ///
    /// # Errors
    /// [`BuildError::OutOfReach`] for a copy between devices of different kinds, neither of them a CPU: copy by way of the host.
    /// Whether the devices exist is checked when the list is submitted.
    #[track_caller]
    pub fn copy(&mut self, source: &Tensor, place: impl Into<Place>) -> Result<Tensor, Error> {
        let (engine, place) = (source.resource().engine(), place.into());
        let target = Tensor::unbound_of(engine, place, MemoryKind::Device, source.dtype(), source.layout().shape());
        self.push_copy(source, &target, Site::caller())?;
        Ok(target)
    }

    /// Returns a new tensor with every element set to `value`.
    ///
    /// # Errors
    /// The shape is impossible, or the value does not fit the dtype.
    #[track_caller]
    pub fn full(
        &mut self,
        place: impl Into<Place>,
        dtype: DType,
        shape: &[usize],
        value: impl Into<Scalar>,
    ) -> Result<Tensor, Error> {
        let target = Tensor::unbound(place.into(), MemoryKind::Device, dtype, Shape::new(shape)?);
        self.fill(&target, value)?;
        Ok(target)
    }

    /// [`full`](InstructionsBuilder::full) of zeros, or `false`.
    ///
    /// # Errors
    /// The shape is impossible.
    #[track_caller]
    pub fn zeros(&mut self, place: impl Into<Place>, dtype: DType, shape: &[usize]) -> Result<Tensor, Error> {
        self.full(place, dtype, shape, Scalar::zero(dtype))
    }

    /// [`full`](InstructionsBuilder::full) of ones, or `true`.
    ///
    /// # Errors
    /// The shape is impossible.
    #[track_caller]
    pub fn ones(&mut self, place: impl Into<Place>, dtype: DType, shape: &[usize]) -> Result<Tensor, Error> {
        self.full(place, dtype, shape, Scalar::one(dtype))
    }

    /// Returns a new tensor that has memory but no values yet.
    ///
    /// # Errors
    /// The shape is impossible.
    #[track_caller]
    pub fn allocate(&mut self, place: impl Into<Place>, dtype: DType, shape: &[usize]) -> Result<Tensor, Error> {
        let target = Tensor::unbound(place.into(), MemoryKind::Device, dtype, Shape::new(shape)?);
        self.push_on(target.place(), Kind::Allocate, [target.write()], Site::caller());
        Ok(target)
    }
}

impl InstructionsBuilder {
    /// The stream of an instruction that computes on `device`.
    #[inline]
    fn stream_of(&self, device: DeviceId) -> StreamKey {
        // Workers are threads of the host: they run callers' functions for any device, but no kernels of a device that runs them itself.
        let by_device = self.options.compute == StreamType::Workers && !device.kind.is_run_by_host();
        StreamKey::new(device, if by_device { StreamType::Compute } else { self.options.compute }, self.options.lane)
    }

    /// The list so far.
    pub fn list(&self) -> &InstructionList {
        &self.list
    }

    /// Appends the instructions of another list, which keep their streams.
    pub fn append(&mut self, list: InstructionList) {
        self.list.append(list);
    }

    /// The lane of the instructions that the next calls build.
    pub fn lane(&self) -> Lane {
        Lane(self.options.lane)
    }

    /// The finished list.
    pub fn finish(self) -> InstructionList {
        self.list
    }

    /// Runs `op` over `inputs` into `output`, which may be a view; for an elementwise op, `output` may be exactly the view of an
    /// input. Ops without inputs run on the device of `output`.
    ///
    /// # Errors
    /// As [`InstructionsBuilder::op`]; `output` has another shape, dtype or device, or broadcasts; `output` overlaps an input,
    /// unless the op is elementwise and both are the same view.
    #[track_caller]
    pub fn op_into(&mut self, op: Op, inputs: &[&Tensor], params: Params, output: &Tensor) -> Result<(), Error> {
        let checked = check_op_into(op, inputs, &params, output).and_then(|(device, dtype, shape)| {
            check_output(op.name(), output, device.into(), dtype, &shape)?;
            Ok(device)
        });
        let device = match checked {
            Ok(device) => device,
            Err(refused) => return self.op_into_with_transfers(op, inputs, params, output, refused),
        };
        check_not_upload(op.name(), output)?;
        check_in_place(op, inputs, output)?;
        self.push_op(device, op, params, inputs, output, Site::caller());
        Ok(())
    }

    pub(crate) fn push_op(
        &mut self,
        device: DeviceId,
        op: Op,
        params: Params,
        inputs: &[&Tensor],
        output: &Tensor,
        site: Site,
    ) {
        let stream = self.stream_of(device);
        let uses = inputs.iter().map(|input| input.read()).chain([output.write()]);
        self.list.push_unchecked(stream, Kind::Call { op, params }, uses, site);
    }

    /// Copies `source` into `target`, which may be a view. Both may have any strides.
    ///
    /// # Errors
    /// The shapes or dtypes differ, `target` broadcasts, or the two overlap; [`BuildError::OutOfReach`] as for
    /// [`InstructionsBuilder::copy`].
    #[track_caller]
    pub fn copy_into(&mut self, source: &Tensor, target: &Tensor) -> Result<(), Error> {
        let site = Site::caller();
        match check_copy(source, target).and_then(|()| self.push_copy(source, target, site)) {
            Ok(()) => Ok(()),
            Err(refused) => self.copy_into_with_transfers(source, target, refused),
        }
    }

    fn push_copy(&mut self, source: &Tensor, target: &Tensor, site: Site) -> Result<(), BuildError> {
        let ends = [source, target].map(|end| (end.place(), end.memory()));
        let (device, stream_type) = copy_stream(ends[0], ends[1], self.options.compute);
        let computes = stream_type == self.options.compute;
        let stream =
            if computes { self.stream_of(device) } else { StreamKey::new(device, stream_type, self.options.lane) };
        check_copy_ends(stream, source, target)?;
        self.list.push_unchecked(stream, Kind::Copy, [source.read(), target.write()], site);
        Ok(())
    }

    /// Sets every element of `target`, which may be a view, to `value`.
    ///
    /// # Errors
    /// The value does not fit the dtype, or the view broadcasts.
    #[track_caller]
    pub fn fill(&mut self, target: &Tensor, value: impl Into<Scalar>) -> Result<(), Error> {
        let value = value.into();
        check_fill(value, target)?;
        self.push_on(target.place(), Kind::Fill(value), [target.write()], Site::caller());
        Ok(())
    }

    /// Frees the memory behind `tensor` before its last handle is dropped; later instructions of this list may get that memory. All
    /// views of the storage become unusable.
    #[track_caller]
    pub fn release(&mut self, tensor: &Tensor) {
        self.push_on(tensor.place(), Kind::Release, [tensor.owner().write()], Site::caller());
    }

    /// Orders the compute stream of `place` after the last writes of `tensors`; runs no code. A recording has it as a step, but not in a block.
    #[track_caller]
    pub fn touch(&mut self, place: impl Into<Place>, tensors: &[&Tensor]) {
        let uses = tensors.iter().map(|tensor| tensor.read());
        self.push_on(place.into(), Kind::Touch, uses, Site::caller());
    }

    /// Deletes a variable. Later lists that use it are refused; instructions submitted before still run.
    #[track_caller]
    pub fn release_var(&mut self, var: &Var) {
        self.push_on(Place::Host, Kind::Release, [var.write()], Site::caller());
    }

    pub(super) fn push_on<'u>(
        &mut self,
        place: Place,
        kind: Kind,
        uses: impl IntoIterator<Item = Use<'u>>,
        site: Site,
    ) {
        let device = place.device().unwrap_or(HOST_DEVICE);
        self.list.push_unchecked(self.stream_of(device), kind, uses, site);
    }
}

impl Default for InstructionsBuilder {
    fn default() -> Self {
        InstructionsBuilder::new()
    }
}

/// The device that an op runs on, and a new tensor for its output. If the inputs belong to an engine, so does the tensor.
pub(crate) fn output_of(
    op: Op,
    inputs: &[&Tensor],
    params: &Params,
    on: StreamType,
) -> Result<(DeviceId, Tensor), BuildError> {
    // An instruction that reads a tensor of an engine can run only there.
    let engine = inputs.iter().find_map(|input| input.resource().engine());
    let output = |device: DeviceId, dtype, shape: &Shape| {
        (device, Tensor::unbound_of(engine, device.into(), on.output_memory(), dtype, shape))
    };
    if let Some((device, dtype)) = check_alike(op, inputs, params)? {
        return Ok(output(device, dtype, inputs[0].layout().shape()));
    }
    let (device, dtype, shape) = check_op(op, inputs, params)?;
    Ok(output(device, dtype, &shape))
}
