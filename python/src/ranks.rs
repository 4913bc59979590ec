//! The class `Group`: ranks that communicate, as Python has them.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use streamvm::Tensor;
use streamvm_ranks::{Group, RankError, Ranks, Reduction};

use crate::engine::{PyVm, device_named};
use crate::programs::recorder;
use crate::tensor::PyTensor;
use crate::{errors, waiting};

/// The ranks of this process: MPI starts once in a process.
static RANKS: Mutex<Option<Ranks>> = Mutex::new(None);

/// Ranks that communicate: the processes of a job, or some of them. Calls return at once, as those of tensors do; all ranks of a group make the same calls in the same order.
#[pyclass(name = "Group", module = "streamvm", frozen)]
pub(crate) struct PyGroup(Group);

/// Calls the engine for a collective: a step of the recording that this thread makes, or an instruction.
macro_rules! issued {
    ($py:expr, $engine:expr, |$on:ident| $call:expr) => {
        match recorder() {
            Some(recorder) => {
                let $on = &recorder;
                waiting::at_once($py, || $call)
            }
            None => waiting::call($py, || {
                let $on = $engine.vm();
                $call
            }),
        }
    };
}

#[pymethods]
impl PyGroup {
    /// The number of this process in the group, from 0.
    #[getter]
    fn rank(&self) -> usize {
        self.0.rank()
    }

    /// The number of ranks.
    #[getter]
    fn size(&self) -> usize {
        self.0.size()
    }

    /// The name of the backend: local, MPI or NCCL.
    #[getter]
    fn backend(&self) -> &'static str {
        self.0.capabilities().backend
    }

    /// The device on which the collectives run.
    #[getter]
    fn device(&self) -> String {
        self.0.device().to_string()
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }

    /// The tensors of all ranks combined, element by element, for all of them. `by` is "sum", "prod", "min", "max" or "mean".
    #[pyo3(signature = (x, by = "sum"))]
    fn all_reduce(&self, py: Python<'_>, x: &Bound<'_, PyTensor>, by: &str) -> PyResult<PyTensor> {
        let (x, by) = (x.get(), reduction(py, by)?);
        issued!(py, x.engine, |on| self.0.all_reduce(on, &x.tensor, by)).map(|y| x.like(y))
    }

    /// As `all_reduce`, in the tensors themselves; several are one collective.
    #[pyo3(signature = (*tensors, by = "sum"))]
    fn all_reduce_in_place(&self, py: Python<'_>, tensors: &Bound<'_, PyTuple>, by: &str) -> PyResult<()> {
        let by = reduction(py, by)?;
        let given: Vec<Bound<'_, PyTensor>> = tensors.extract()?;
        let Some(first) = given.first() else {
            return Err(errors::usage(py, "all_reduce_in_place takes at least one tensor"));
        };
        let (engine, tensors) = (&first.get().engine, given.iter().map(|x| &x.get().tensor).collect::<Vec<&Tensor>>());
        issued!(py, engine, |on| self.0.all_reduce_in_place(on, &tensors, by).map(drop))
    }

    /// As `all_reduce`, for `root` alone; the others get None.
    #[pyo3(signature = (x, by = "sum", *, root = 0))]
    fn reduce(&self, py: Python<'_>, x: &Bound<'_, PyTensor>, by: &str, root: usize) -> PyResult<Option<PyTensor>> {
        let (x, by) = (x.get(), reduction(py, by)?);
        issued!(py, x.engine, |on| self.0.reduce(on, &x.tensor, by, root)).map(|y| y.map(|y| x.like(y)))
    }

    /// Writes `x` of rank `root` into `x` of all others.
    #[pyo3(signature = (x, *, root = 0))]
    fn broadcast(&self, py: Python<'_>, x: &Bound<'_, PyTensor>, root: usize) -> PyResult<()> {
        let x = x.get();
        issued!(py, x.engine, |on| self.0.broadcast(on, &x.tensor, root).map(drop))
    }

    /// The tensors of all ranks, joined along axis 0, for all of them.
    fn all_gather(&self, py: Python<'_>, x: &Bound<'_, PyTensor>) -> PyResult<PyTensor> {
        let x = x.get();
        issued!(py, x.engine, |on| self.0.all_gather(on, &x.tensor)).map(|y| x.like(y))
    }

    /// As `all_gather`, for `root` alone; the others get None.
    #[pyo3(signature = (x, *, root = 0))]
    fn gather(&self, py: Python<'_>, x: &Bound<'_, PyTensor>, root: usize) -> PyResult<Option<PyTensor>> {
        let x = x.get();
        issued!(py, x.engine, |on| self.0.gather(on, &x.tensor, root)).map(|y| y.map(|y| x.like(y)))
    }

    /// The tensors of all ranks combined; each gets its part along axis 0.
    #[pyo3(signature = (x, by = "sum"))]
    fn reduce_scatter(&self, py: Python<'_>, x: &Bound<'_, PyTensor>, by: &str) -> PyResult<PyTensor> {
        let (x, by) = (x.get(), reduction(py, by)?);
        issued!(py, x.engine, |on| self.0.reduce_scatter(on, &x.tensor, by)).map(|y| x.like(y))
    }

    /// Writes a part of `whole`, which `root` alone gives, along axis 0, into `part` of each rank.
    #[pyo3(signature = (part, whole = None, *, root = 0))]
    fn scatter(
        &self,
        py: Python<'_>,
        part: &Bound<'_, PyTensor>,
        whole: Option<&Bound<'_, PyTensor>>,
        root: usize,
    ) -> PyResult<()> {
        let (part, whole) = (part.get(), whole.map(|whole| &whole.get().tensor));
        issued!(py, part.engine, |on| self.0.scatter(on, whole, &part.tensor, root).map(drop))
    }

    /// Sends part `r` of `x`, along axis 0, to rank `r`; returns the parts of all ranks, in their order.
    fn all_to_all(&self, py: Python<'_>, x: &Bound<'_, PyTensor>) -> PyResult<PyTensor> {
        let x = x.get();
        issued!(py, x.engine, |on| self.0.all_to_all(on, &x.tensor)).map(|y| x.like(y))
    }

    /// Sends `x` to another rank, which receives it.
    fn send(&self, py: Python<'_>, x: &Bound<'_, PyTensor>, to: usize) -> PyResult<()> {
        let x = x.get();
        issued!(py, x.engine, |on| self.0.send(on, &x.tensor, to).map(drop))
    }

    /// Receives into `x` what another rank has sent.
    fn receive(&self, py: Python<'_>, x: &Bound<'_, PyTensor>, source: usize) -> PyResult<()> {
        let x = x.get();
        issued!(py, x.engine, |on| self.0.receive(on, &x.tensor, source).map(drop))
    }

    /// Blocks until everything that was issued on any rank before its call has passed.
    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        let vm = current_vm(py)?;
        let engine = &vm.get().engine;
        let ticket = waiting::call(py, || self.0.barrier(engine.vm()))?;
        waiting::call(py, || ticket.wait())
    }

    /// The group of some ranks, numbered in this order. Blocks until each of them has called it; the others do not.
    fn subgroup(&self, py: Python<'_>, members: Vec<usize>) -> PyResult<PyGroup> {
        let group = self.0.clone();
        interruptible(py, move || group.subgroup(&members)).map(PyGroup)
    }

    /// The group of the ranks that are left after others were lost. Blocks until each of them has called it.
    fn shrink(&self, py: Python<'_>) -> PyResult<PyGroup> {
        let group = self.0.clone();
        interruptible(py, move || group.shrink()).map(PyGroup)
    }

    /// The group of the same ranks whose collectives run on a GPU of each of them, by NCCL. Blocks until all ranks have called it.
    fn on_device(&self, py: Python<'_>, device: &str) -> PyResult<PyGroup> {
        let (engine, device) = (current_vm(py)?.get().engine.clone(), device_named(py, device)?);
        let group = self.0.clone();
        interruptible(py, move || group.on_device(engine.vm(), device)).map(PyGroup)
    }
}

/// The group of all ranks. Blocks until all have joined.
#[pyfunction]
pub(crate) fn world(py: Python<'_>) -> PyResult<PyGroup> {
    let made = interruptible(py, || {
        let mut ranks = RANKS.lock().unwrap_or_else(PoisonError::into_inner);
        if ranks.is_none() {
            *ranks = Some(Ranks::start()?);
        }
        Ok(ranks.as_ref().map(|ranks| ranks.world().clone()))
    })?;
    made.map(PyGroup).ok_or_else(|| errors::usage(py, "the job has ended on this rank"))
}

/// Ends the job on this rank, if it has begun.
#[pyfunction]
pub(crate) fn finish_ranks(py: Python<'_>) -> PyResult<()> {
    interruptible(py, || match RANKS.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(ranks) => ranks.finish(),
        None => Ok(()),
    })
}

/// The number of this process among the ranks of its machine.
#[pyfunction]
pub(crate) fn local_rank() -> usize {
    Ranks::local_rank()
}

/// Calls `f` on a thread of its own, without the interpreter's lock, while this one sees signals. An interrupt leaves the thread alone.
fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    f: impl FnOnce() -> Result<T, RankError> + Send + 'static,
) -> PyResult<T> {
    let (done, over) = channel();
    std::thread::spawn(move || done.send(f()));
    let over = Mutex::new(over);
    loop {
        let ended = py.detach(|| {
            let over = over.lock().unwrap_or_else(PoisonError::into_inner);
            over.recv_timeout(Duration::from_millis(50))
        });
        match ended {
            Ok(result) => return result.map_err(|error| errors::of_ranks(py, &error.to_string())),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => return Err(errors::of_ranks(py, "it has panicked")),
        }
    }
}

fn current_vm(py: Python<'_>) -> PyResult<Bound<'_, PyVm>> {
    Ok(py.import("streamvm._engine")?.getattr("current_vm")?.call0()?.cast_into::<PyVm>()?)
}

fn reduction(py: Python<'_>, by: &str) -> PyResult<Reduction> {
    by.parse().map_err(|error: RankError| errors::usage(py, &error.to_string()))
}
