//! Calls of the builder that run functions of the caller.

use std::borrow::Cow;

use streamvm_ep::{DeviceId, FnContext, FnError, InlineFn, RawCall, Site};
use streamvm_stream::{StreamKey, StreamType};

use crate::builder::instructions_builder::InstructionsBuilder;
use crate::error::build_error::BuildError;
use crate::error::engine_error::Error;
use crate::list::check::check_function;
use crate::list::kind::{Kind, Role};
use crate::place::HOST_DEVICE;
use crate::tensor::reach::Home;
use crate::tensor::uses::Use;

/// Code that gets no operands, as a function. Inlined, so that the captures are moved once.
#[inline(always)]
fn without_operands(f: impl FnOnce() -> Result<(), FnError> + Send + 'static) -> InlineFn {
    InlineFn::new(move |_: &mut FnContext<'_>| f())
}

impl InstructionsBuilder {
    /// Runs a function of the caller over declared reads and writes, on the compute stream of `device`.
    ///
    /// The function gets slices of contiguous tensors: the reads in the order declared, then the writes and updates in the order
    /// declared. A declared variable only orders the function. If the function returns an error or panics, the resources that it
    /// should have written are marked as failed. Only a panic while captures are dropped because of another panic ends the process,
    /// as everywhere in Rust.
    ///
    /// # Errors
    /// An operand lives in memory that a function of this stream cannot get, such as that of another device or the device memory of a
    /// CUDA device. A written operand shares bytes with another operand, broadcasts, or lives in upload memory. Too many operands are
    /// written ([`BuildError::TooManyWrites`]).
    #[track_caller]
    pub fn call_fn<'u, F>(
        &mut self,
        name: impl Into<Cow<'static, str>>,
        device: DeviceId,
        uses: impl IntoIterator<Item = Use<'u>>,
        f: F,
    ) -> Result<(), Error>
    where
        F: for<'a, 'b> FnOnce(&'a mut FnContext<'b>) -> Result<(), FnError> + Send + 'static,
    {
        Ok(self.push_function(name, Role::Function, device, uses, || Some(InlineFn::new(f)), Site::caller())?)
    }

    /// [`call_fn`](InstructionsBuilder::call_fn) of a function that a thread may run while it waits for it, as it runs kernels: no thread of the engine need wake, and the
    /// wait ends microseconds earlier.
    ///
    /// The function, the [`Operation`](streamvm_ep::Operation) that it starts, and the drops of both must take no lock that a thread may hold while it waits for the
    /// engine, because that thread would wait for itself. An operation on a stream that is no [collective](InstructionsBuilder::on_collective) one keeps the thread until it
    /// is over.
    ///
    /// # Errors
    /// As [`call_fn`](InstructionsBuilder::call_fn).
    #[track_caller]
    pub fn call_helpable<'u, F>(
        &mut self,
        name: impl Into<Cow<'static, str>>,
        device: DeviceId,
        uses: impl IntoIterator<Item = Use<'u>>,
        f: F,
    ) -> Result<(), Error>
    where
        F: for<'a, 'b> FnOnce(&'a mut FnContext<'b>) -> Result<(), FnError> + Send + 'static,
    {
        let body = || Some(InlineFn::helpable(f));
        Ok(self.push_function(name, Role::Function, device, uses, body, Site::caller())?)
    }

    /// [`push`](InstructionsBuilder::push) of code that uses no resource known to streamvm: it takes part only in the order of its stream.
    #[track_caller]
    pub fn host_fn<F>(&mut self, name: impl Into<Cow<'static, str>>, device: DeviceId, f: F)
    where
        F: FnOnce() -> Result<(), FnError> + Send + 'static,
    {
        let kind = Kind::Function { role: Role::Host, name: name.into(), body: Some(without_operands(f)) };
        self.push_on(device.into(), kind, [], Site::caller());
    }

    /// Runs code of the caller on the compute stream of `device`, in the order that `uses` ask for.
    ///
    /// The code gets no access to the bytes of its uses. So tensors may live at any place, and the same tensor may be used twice:
    /// the stronger use counts. As the code writes no byte of a tensor, [`Tensor::write`](crate::Tensor::write) counts as
    /// [`Tensor::update`](crate::Tensor::update) here.
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
        let body = || Some(without_operands(f));
        let uses = uses.into_iter().map(Use::of_order);
        let pushed = self.push_function(name, Role::Push, device, uses, body, Site::caller());
        debug_assert!(pushed.is_ok(), "uses that only order are always accepted: {pushed:?}");
    }

    /// [`call_fn`](InstructionsBuilder::call_fn) over one tensor, on the compute stream of the tensor's device, or of `cpu:0` for a
    /// host tensor and for page-locked memory of a GPU or a simulated device.
    ///
    /// # Errors
    /// As [`call_fn`](InstructionsBuilder::call_fn): the tensor lives on a device whose memory the host cannot reach, or is a written view
    /// that broadcasts.
    #[track_caller]
    pub fn access<F>(&mut self, name: impl Into<Cow<'static, str>>, tensor: Use<'_>, f: F) -> Result<(), Error>
    where
        F: for<'a, 'b> FnOnce(&'a mut FnContext<'b>) -> Result<(), FnError> + Send + 'static,
    {
        let device = match tensor.as_tensor() {
            // The host reaches page-locked memory directly, and on the device's own stream the device would wait for the callback.
            Some(tensor) if Home::of(tensor) == Home::Locked => HOST_DEVICE,
            tensor => tensor.and_then(|tensor| tensor.place().device()).unwrap_or(HOST_DEVICE),
        };
        Ok(self.push_function(name, Role::Access, device, [tensor], || Some(InlineFn::new(f)), Site::caller())?)
    }

    /// Queues commands of the caller on the compute stream of a CUDA device, over the addresses of declared reads and writes, which
    /// must live on that device. The commands are kernels (`CudaFunction`), or calls of a library such as cuBLAS.
    ///
    /// The function runs once, on the thread that launches work on the device, after all earlier work of the stream has been
    /// launched. It queues its commands only on the stream that it gets, and must not block. If it returns an error, or the device
    /// is not a CUDA device, the resources that it should have written are marked as failed.
    ///
    /// # Errors
    /// An operand does not live on that device; a written operand shares bytes with another operand or broadcasts.
    #[track_caller]
    pub fn call_cuda<'u, F>(
        &mut self,
        name: impl Into<Cow<'static, str>>,
        device: DeviceId,
        uses: impl IntoIterator<Item = Use<'u>>,
        f: F,
    ) -> Result<(), Error>
    where
        F: for<'a, 'b> FnOnce(&'a RawCall<'b>) -> Result<(), FnError> + Send + 'static,
    {
        let body = move |context: &mut FnContext<'_>| match context.raw {
            Some(raw) => f(raw),
            None => Err("it runs on a driver's stream alone".into()),
        };
        self.call_raw(name, device, uses, body)
    }

    /// [`call_cuda`](InstructionsBuilder::call_cuda) of a function that gets its context, with the driver's stream in [`FnContext::raw`]. On a
    /// [collective](InstructionsBuilder::on_collective) stream it may start an [`Operation`](streamvm_ep::Operation), and is called when it is skipped, too
    /// ([`FnContext::skipped`]).
    ///
    /// # Errors
    /// As [`call_cuda`](InstructionsBuilder::call_cuda).
    #[track_caller]
    pub fn call_raw<'u, F>(
        &mut self,
        name: impl Into<Cow<'static, str>>,
        device: DeviceId,
        uses: impl IntoIterator<Item = Use<'u>>,
        f: F,
    ) -> Result<(), Error>
    where
        F: for<'a, 'b> FnOnce(&'a mut FnContext<'b>) -> Result<(), FnError> + Send + 'static,
    {
        Ok(self.push_function(name, Role::Cuda, device, uses, || Some(InlineFn::new(f)), Site::caller())?)
    }

    #[inline(always)]
    pub(crate) fn push_function<'u>(
        &mut self,
        name: impl Into<Cow<'static, str>>,
        role: Role,
        device: DeviceId,
        uses: impl IntoIterator<Item = Use<'u>>,
        body: impl FnOnce() -> Option<InlineFn>,
        site: Site,
    ) -> Result<(), BuildError> {
        let on_device = role == Role::Cuda && self.options.compute == StreamType::Workers;
        let compute = if on_device { StreamType::Compute } else { self.options.compute };
        let stream = StreamKey::new(device, compute, self.options.lane);
        let make = || Kind::Function { role, name: name.into(), body: body() };
        let has_more = self.list.push_made(stream, make, uses, site, self.options.launch);
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
}
