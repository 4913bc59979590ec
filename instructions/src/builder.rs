//! The builder: emits instructions onto typed streams.
//!
//! It holds no lock and touches no shared state; nothing runs, and no memory is taken, before an engine is given the
//! list. Every call notes the caller's source line. A call that returns an error has added nothing.

use std::borrow::Cow;
use std::panic::Location;

use streamvm_ep::{
    DType, DeviceId, DeviceKind, FnContext, FnError, InlineFn, MemoryKind, Op, Params, Priority, RawCall, Scalar, Shape,
};
use streamvm_stream::{StreamKey, StreamType};

use crate::check::{
    check_alike, check_copy, check_fill, check_function, check_in_place, check_not_upload, check_op, check_op_into,
    check_output,
};
use crate::reach::{Home, check_copy_ends};
use crate::uses::Use;
use crate::{BuildError, Event, InstructionList, Kind, Manner, Place, Role, Tensor, Var, WaitFor, current_lane};

/// Builds an [`InstructionList`] in program order.
///
/// The stream of each instruction follows from what it does: kernels and functions run on the compute stream of their
/// operands' device, copies on the copy stream of the device at their other end; all on the builder's lane.
///
/// The list holds all that it uses, for one store each; where its thread has another list, or another thread was the first to list
/// something, by counting.
#[derive(Debug)]
pub struct InstructionsBuilder {
    list: InstructionList,
    lane: u32,
    compute: StreamType,
    manner: Manner,
}

impl InstructionsBuilder {
    /// A builder of an empty list, on the lane of the thread's [`lane`](crate::lane) guard.
    pub fn new() -> InstructionsBuilder {
        let (list, compute, manner) = (InstructionList::new(), StreamType::Compute, Manner::default());
        InstructionsBuilder { list, lane: current_lane(), compute, manner }
    }

    /// Runs `op` over `inputs` on their device and returns its output, a tensor of its own, for the engine of the inputs
    /// if they have one.
    ///
    /// # Errors
    /// The shapes, dtypes or parameters do not fit the op, or the inputs do not live on one device.
    #[track_caller]
    pub fn op(&mut self, op: Op, inputs: &[&Tensor], params: Params) -> Result<Tensor, BuildError> {
        let (device, output) = output_of(op, inputs, &params, self.compute)?;
        self.push_op(device, op, params, inputs, &output, Location::caller());
        Ok(output)
    }

    /// A tensor for an instruction of this builder to make on `device`.
    pub(crate) fn output(&self, device: DeviceId, dtype: DType, shape: Shape) -> Tensor {
        Tensor::unbound(device.into(), self.compute.output_memory(), dtype, shape)
    }

    /// Copies `source` to `place` and returns the copy, contiguous and of its own storage, for the engine of the source if
    /// it has one.
    ///
    /// # Errors
    /// [`BuildError::OutOfReach`] from a device to one of another kind, neither of them a CPU: copy by way of the host. Whether the
    /// devices are there is found out when the list is submitted.
    #[track_caller]
    pub fn copy(&mut self, source: &Tensor, place: impl Into<Place>) -> Result<Tensor, BuildError> {
        let (engine, place) = (source.resource().engine(), place.into());
        let target = Tensor::unbound_of(engine, place, MemoryKind::Device, source.dtype(), source.layout().shape());
        self.push_copy(source, &target, Location::caller())?;
        Ok(target)
    }

    /// A new tensor with every element set to `value`.
    ///
    /// # Errors
    /// The shape is impossible, or the value does not fit the dtype.
    #[track_caller]
    pub fn fill(
        &mut self,
        place: impl Into<Place>,
        dtype: DType,
        shape: &[usize],
        value: impl Into<Scalar>,
    ) -> Result<Tensor, BuildError> {
        let target = Tensor::unbound(place.into(), MemoryKind::Device, dtype, Shape::new(shape)?);
        self.fill_into(&target, value)?;
        Ok(target)
    }

    /// A new tensor with memory and no values yet.
    ///
    /// # Errors
    /// The shape is impossible.
    #[track_caller]
    pub fn allocate(&mut self, place: impl Into<Place>, dtype: DType, shape: &[usize]) -> Result<Tensor, BuildError> {
        let target = Tensor::unbound(place.into(), MemoryKind::Device, dtype, Shape::new(shape)?);
        self.push_on(target.place(), Kind::Allocate, [target.write()], Location::caller());
        Ok(target)
    }
}

impl InstructionsBuilder {
    /// The lane of the calls that follow.
    pub fn set_lane(&mut self, lane: u32) {
        self.lane = lane;
    }

    /// Whether kernels that follow run on the pinned compute stream, with outputs in pinned host memory.
    pub fn set_pinned(&mut self, pinned: bool) {
        self.compute = if pinned { StreamType::PinnedCompute } else { StreamType::Compute };
    }

    /// Whether functions that follow, and what the CPU computes, run on the workers of their device: each as soon as what it uses
    /// is ready, whatever was issued before it. The lane tells apart several pools of workers of one device.
    pub fn set_workers(&mut self, workers: bool) {
        self.compute = if workers { StreamType::Workers } else { StreamType::Compute };
    }

    /// Which of the functions that can run goes first on workers: those that follow have this priority. Streams run in order
    /// whatever it is.
    pub fn set_priority(&mut self, priority: Priority) {
        self.manner.priority = priority;
    }

    /// How the functions that follow are run.
    pub fn set_manner(&mut self, manner: Manner) {
        self.manner = manner;
    }

    /// The stream of what a device computes.
    #[inline]
    fn stream_of(&self, device: DeviceId) -> StreamKey {
        // Workers are threads of the host: they run callers' functions for any device, and compute for CPUs.
        let hosted = self.compute == StreamType::Workers && device.kind != DeviceKind::Cpu;
        StreamKey::new(device, if hosted { StreamType::Compute } else { self.compute }, self.lane)
    }

    /// The list so far.
    pub fn list(&self) -> &InstructionList {
        &self.list
    }

    /// The finished list.
    pub fn finish(self) -> InstructionList {
        self.list
    }

    /// Runs `op` over `inputs` into `output`, which may be a view, and for elementwise ops exactly an input. Ops without
    /// inputs run on the device of `output`.
    ///
    /// # Errors
    /// As [`InstructionsBuilder::op`]; `output` has another shape, dtype or device, broadcasts, or overlaps an input
    /// without being the same view of an elementwise op.
    #[track_caller]
    pub fn op_into(&mut self, op: Op, inputs: &[&Tensor], params: Params, output: &Tensor) -> Result<(), BuildError> {
        let (device, dtype, shape) = check_op_into(op, inputs, &params, output)?;
        check_output(op.name(), output, device.into(), dtype, &shape)?;
        check_not_upload(op.name(), output)?;
        check_in_place(op, inputs, output)?;
        self.push_op(device, op, params, inputs, output, Location::caller());
        Ok(())
    }

    pub(crate) fn push_op(
        &mut self,
        device: DeviceId,
        op: Op,
        params: Params,
        inputs: &[&Tensor],
        output: &Tensor,
        site: &'static Location<'static>,
    ) {
        let stream = self.stream_of(device);
        let uses = inputs.iter().map(|input| input.read()).chain([output.write()]);
        self.list.push_unchecked(stream, Kind::Call { op, params }, uses, site);
    }

    /// Copies `source` into `target`, which may be a view. Any strides on both sides.
    ///
    /// # Errors
    /// The shapes or dtypes differ, `target` broadcasts, or the two overlap; [`BuildError::OutOfReach`] as for
    /// [`InstructionsBuilder::copy`].
    #[track_caller]
    pub fn copy_into(&mut self, source: &Tensor, target: &Tensor) -> Result<(), BuildError> {
        check_copy(source, target)?;
        self.push_copy(source, target, Location::caller())
    }

    fn push_copy(
        &mut self,
        source: &Tensor,
        target: &Tensor,
        site: &'static Location<'static>,
    ) -> Result<(), BuildError> {
        // Nothing that only a device reaches: the host copies, and no device's stream waits for it.
        let cpu = |end: &Tensor| end.place().device().unwrap_or(HOST_DEVICE);
        let by_host = match (Home::of(source), Home::of(target)) {
            (Home::Pageable, Home::Locked) => Some((cpu(source), StreamType::HostToDevice)),
            (Home::Locked, Home::Pageable) => Some((cpu(target), StreamType::DeviceToHost)),
            _ => None,
        };
        let (device, stream_type) = by_host.unwrap_or_else(|| match (source.place(), target.place()) {
            (Place::Host, Place::Host) => (HOST_DEVICE, self.compute),
            (Place::Device(device), Place::Host) => (device, StreamType::DeviceToHost),
            (Place::Device(from), Place::Device(to)) if from == to => (to, self.copies_within(source, target)),
            // A CPU stream cannot reach another device's memory: that device copies out.
            (Place::Device(from), Place::Device(to)) if to.kind == DeviceKind::Cpu && from.kind != DeviceKind::Cpu => {
                (from, StreamType::DeviceToHost)
            }
            (_, Place::Device(to)) => (to, StreamType::HostToDevice),
        });
        let computes = stream_type == self.compute;
        let stream = if computes { self.stream_of(device) } else { StreamKey::new(device, stream_type, self.lane) };
        check_copy_ends(stream, source, target)?;
        self.list.push_unchecked(stream, Kind::Copy, [source.read(), target.write()], site);
        Ok(())
    }

    /// Between pinned and device memory of one device its copy streams work, within either its compute stream.
    fn copies_within(&self, source: &Tensor, target: &Tensor) -> StreamType {
        match (Home::of(source), Home::of(target)) {
            (Home::Locked, Home::Device) => StreamType::HostToDevice,
            (Home::Device, Home::Locked) => StreamType::DeviceToHost,
            _ => self.compute,
        }
    }

    /// Sets every element of `target`, which may be a view, to `value`.
    ///
    /// # Errors
    /// The value does not fit the dtype, or the view broadcasts.
    #[track_caller]
    pub fn fill_into(&mut self, target: &Tensor, value: impl Into<Scalar>) -> Result<(), BuildError> {
        let value = value.into();
        check_fill(value, target)?;
        self.push_on(target.place(), Kind::Fill(value), [target.write()], Location::caller());
        Ok(())
    }

    /// Gives the memory behind `tensor` back, ahead of its last handle; later instructions of this list may get it.
    /// All its views become unusable.
    #[track_caller]
    pub fn release(&mut self, tensor: &Tensor) {
        self.push_on(tensor.place(), Kind::Release, [tensor.owner().write()], Location::caller());
    }

    /// Orders the compute stream of `place` after the last writes of `tensors`, and does nothing.
    #[track_caller]
    pub fn touch(&mut self, place: impl Into<Place>, tensors: &[&Tensor]) {
        let uses = tensors.iter().map(|tensor| tensor.read());
        self.push_on(place.into(), Kind::Touch, uses, Location::caller());
    }

    /// Runs a caller's function over declared reads and writes, on the compute stream of `device`.
    ///
    /// The function gets slices of contiguous tensors: reads in the order declared, then writes and updates in the
    /// order declared; variables give order alone. An error or a panic fails what it should have written; only a panic
    /// while captures are dropped because of another panic ends the process, as everywhere in Rust.
    ///
    /// # Errors
    /// A written operand shares bytes with another operand or broadcasts, or an operand lives on another device.
    #[track_caller]
    pub fn call_fn<'u, F>(
        &mut self,
        name: impl Into<Cow<'static, str>>,
        device: DeviceId,
        uses: impl IntoIterator<Item = Use<'u>>,
        f: F,
    ) -> Result<(), BuildError>
    where
        F: for<'a, 'b> FnOnce(&'a mut FnContext<'b>) -> Result<(), FnError> + Send + 'static,
    {
        self.push_function(name, Role::Function, device, uses, || Some(InlineFn::new(f)), Location::caller())
    }

    /// Runs a caller's code that touches nothing streamvm knows, in the order of the compute stream of `device`.
    #[track_caller]
    pub fn host_fn<F>(&mut self, name: impl Into<Cow<'static, str>>, device: DeviceId, f: F)
    where
        F: FnOnce() -> Result<(), FnError> + Send + 'static,
    {
        let body = Some(InlineFn::new(move |_: &mut FnContext<'_>| f()));
        let kind = Kind::Function { role: Role::Host, name: name.into(), body };
        self.push_on(device.into(), kind, [], Location::caller());
    }

    /// Runs a caller's code in the order that `uses` ask for, on the compute stream of `device`. It is shown none of them, so
    /// tensors may live anywhere, the same one may be used twice, and the stronger use counts. As it writes no byte of a tensor,
    /// [`Tensor::write`] counts as [`Tensor::update`] here.
    #[track_caller]
    pub fn push<'u, F>(
        &mut self,
        name: impl Into<Cow<'static, str>>,
        device: DeviceId,
        uses: impl IntoIterator<Item = Use<'u>>,
        f: F,
    ) where
        F: FnOnce() -> Result<(), FnError> + Send + 'static,
    {
        let body = || Some(InlineFn::new(move |_: &mut FnContext<'_>| f()));
        let uses = uses.into_iter().map(Use::of_order);
        let pushed = self.push_function(name, Role::Push, device, uses, body, Location::caller());
        debug_assert!(pushed.is_ok(), "nothing that it is given can be wrong: {pushed:?}");
    }

    /// Ends a variable: later lists that use it are refused, and what was submitted before goes on.
    #[track_caller]
    pub fn release_var(&mut self, var: &Var) {
        self.push_on(Place::Host, Kind::Release, [var.write()], Location::caller());
    }

    /// Looks at the bytes of one tensor (declared by [`Tensor::read`], [`Tensor::write`] or [`Tensor::update`]) by a
    /// callback that runs on the stream. No borrowed view of live storage leaves it.
    ///
    /// # Errors
    /// The tensor lives on a device whose memory the host cannot reach, or is a written view that broadcasts.
    #[track_caller]
    pub fn access<F>(&mut self, name: impl Into<Cow<'static, str>>, tensor: Use<'_>, f: F) -> Result<(), BuildError>
    where
        F: for<'a, 'b> FnOnce(&'a mut FnContext<'b>) -> Result<(), FnError> + Send + 'static,
    {
        let device = match tensor.as_tensor() {
            // The host reaches it by itself, and the device's stream would wait for the callback.
            Some(tensor) if Home::of(tensor) == Home::Locked => HOST_DEVICE,
            tensor => tensor.and_then(|tensor| tensor.place().device()).unwrap_or(HOST_DEVICE),
        };
        self.push_function(name, Role::Access, device, [tensor], || Some(InlineFn::new(f)), Location::caller())
    }

    /// Gives the compute stream of a CUDA device commands of the caller's own: kernels ([`CudaFunction`]), or those of a library
    /// such as cuBLAS, over the addresses of declared reads and writes, which must live on that device.
    ///
    /// The function runs once, in the thread that gives the device its work, when all before it on the stream has been given. It
    /// queues what it wants on the stream that it is shown, and on no other, and waits for nothing. An error of it fails what it
    /// should have written; so does a device of another kind.
    ///
    /// [`CudaFunction`]: streamvm_ep::cuda::CudaFunction
    ///
    /// # Errors
    /// An operand lives elsewhere; a written operand shares bytes with another operand or broadcasts.
    #[track_caller]
    pub fn call_cuda<'u, F>(
        &mut self,
        name: impl Into<Cow<'static, str>>,
        device: DeviceId,
        uses: impl IntoIterator<Item = Use<'u>>,
        f: F,
    ) -> Result<(), BuildError>
    where
        F: for<'a, 'b> FnOnce(&'a RawCall<'b>) -> Result<(), FnError> + Send + 'static,
    {
        let body = move |context: &mut FnContext<'_>| match context.raw {
            Some(raw) => f(raw),
            None => Err("it runs on a driver's stream alone".into()),
        };
        self.push_function(name, Role::Cuda, device, uses, || Some(InlineFn::new(body)), Location::caller())
    }

    #[inline(always)]
    pub(crate) fn push_function<'u>(
        &mut self,
        name: impl Into<Cow<'static, str>>,
        role: Role,
        device: DeviceId,
        uses: impl IntoIterator<Item = Use<'u>>,
        body: impl FnOnce() -> Option<InlineFn>,
        site: &'static Location<'static>,
    ) -> Result<(), BuildError> {
        let on_device = role == Role::Cuda && self.compute == StreamType::Workers;
        let compute = if on_device { StreamType::Compute } else { self.compute };
        let stream = StreamKey::new(device, compute, self.lane);
        let make = || Kind::Function { role, name: name.into(), body: body() };
        let has_more = self.list.push_made(stream, make, uses, site, self.manner);
        if has_more { self.check_last_function() } else { Ok(()) }
    }

    #[inline(never)]
    fn check_last_function(&mut self) -> Result<(), BuildError> {
        let Some(last) = self.list.instructions().last() else {
            return Ok(());
        };
        let Kind::Function { role, name, .. } = &last.kind else {
            return Ok(());
        };
        let checked = check_function(name, *role, last.stream, self.list.uses(last));
        if checked.is_err() {
            self.list.pop();
        }
        checked
    }

    /// Marks the present end of `stream`.
    #[track_caller]
    pub fn record(&mut self, stream: StreamKey) -> Event {
        let event = Event::new();
        self.list.push_unchecked(stream, Kind::Record(event.clone()), [], Location::caller());
        event
    }

    /// Orders what follows on `stream` after `event`, which must have been recorded on `source` before.
    #[track_caller]
    pub fn wait(&mut self, stream: StreamKey, source: StreamKey, event: &Event) {
        let target = WaitFor::Event(event.clone());
        let kind = Kind::Wait { source, target, kind: streamvm_stream::WaitKind::Device };
        self.list.push_unchecked(stream, kind, [], Location::caller());
    }

    /// Everything after this comes after everything before it, failed or not.
    #[track_caller]
    pub fn barrier(&mut self) {
        let kind = Kind::Barrier { name: Cow::Borrowed("barrier"), body: None, calls: false };
        self.list.push_unchecked(BARRIER, kind, [], Location::caller());
    }

    /// A barrier that runs `f` in between.
    #[track_caller]
    pub fn barrier_with<F>(&mut self, name: impl Into<Cow<'static, str>>, f: F)
    where
        F: FnOnce() -> Result<(), FnError> + Send + 'static,
    {
        let body = Some(InlineFn::new(move |_: &mut FnContext<'_>| f()));
        self.list.push_unchecked(
            BARRIER,
            Kind::Barrier { name: name.into(), body, calls: true },
            [],
            Location::caller(),
        );
    }

    /// A point that comes after everything before it and that nothing waits for but who asks its ticket.
    #[track_caller]
    pub fn global_sync(&mut self) {
        self.list.push_unchecked(BARRIER, Kind::GlobalSync, [], Location::caller());
    }

    fn push_on<'u>(
        &mut self,
        place: Place,
        kind: Kind,
        uses: impl IntoIterator<Item = Use<'u>>,
        site: &'static Location<'static>,
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

/// Where an op runs, and a new tensor for what it gives: of the engine of its inputs, if they have one.
pub(crate) fn output_of(
    op: Op,
    inputs: &[&Tensor],
    params: &Params,
    on: StreamType,
) -> Result<(DeviceId, Tensor), BuildError> {
    // What reads a tensor of an engine can run nowhere else.
    let engine = inputs.iter().find_map(|input| input.resource().engine());
    let output = |device: DeviceId, dtype, shape: &Shape| {
        (device, Tensor::unbound_of(engine, device.into(), on.output_memory(), dtype, shape))
    };
    if let Some((device, dtype)) = check_alike(op, inputs)? {
        return Ok(output(device, dtype, inputs[0].layout().shape()));
    }
    let (device, dtype, shape) = check_op(op, inputs, params)?;
    Ok(output(device, dtype, &shape))
}

/// The device whose threads reach host memory.
pub(crate) const HOST_DEVICE: DeviceId = DeviceId::cpu(0);

/// The stream of barriers: they order every device, so there is one for all.
const BARRIER: StreamKey = StreamKey { device: HOST_DEVICE, stream_type: StreamType::Barrier, lane: 0 };
