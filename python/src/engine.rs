//! The class `Vm`, and the end of engines before that of the interpreter.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat};
use streamvm::{DeviceId, Error, Generator, Lane, Mode, Place, Scalar, Tensor, TraceConfig, Vm};

use crate::dtypes::AnyDType;
use crate::functions::PythonFunction;
use crate::tensor::PyTensor;
use crate::{callbacks, caller, dlpack_in, elements, errors, programs, waiting};

/// Whether the wait for all engines at the end of the interpreter was interrupted: then nothing waits for them.
static ABANDONED: AtomicBool = AtomicBool::new(false);

/// Engines that have not been dropped.
static LIVE: Mutex<Vec<Weak<Engine>>> = Mutex::new(Vec::new());

/// An engine that `Vm` and tensors share. The last of them ends it.
pub(crate) struct Engine(Option<Vm>);

impl Engine {
    pub(crate) fn vm(&self) -> &Vm {
        self.0.as_ref().unwrap_or_else(|| unreachable!("it is taken when it is dropped"))
    }
}

impl Drop for Engine {
    /// Waits for the work that is pending, which may need the interpreter's lock.
    fn drop(&mut self) {
        let Some(vm) = self.0.take() else { return };
        let mut vm = Some(vm);
        if !ABANDONED.load(Ordering::Relaxed) {
            Python::try_attach(|py| py.detach(|| drop(vm.take())));
        }
        // An interpreter that has ended calls no function any longer, so a wait for one would not end.
        std::mem::forget(vm);
    }
}

/// An engine: streams, threads and memory. Calls are issued in program order; the engine runs them on streams and waits where the data needs it.
///
/// Most programs need none of their own: the functions of the package use the default engine. `with streamvm.use(vm):` makes another one the engine of new tensors.
///
/// Any thread may use it. `mode` is "threaded" (the default), "inline" or "simulated"; `sim_devices` adds simulated devices sim:0, sim:1, ...;
/// `seed` draws the order of threads in simulated mode; `trace` names a file for a trace; `detect_races` checks each access against the order that was issued.
#[pyclass(name = "Vm", module = "streamvm", frozen, weakref)]
pub(crate) struct PyVm {
    pub(crate) engine: Arc<Engine>,
}

#[pymethods]
impl PyVm {
    #[new]
    #[pyo3(signature = (*, mode = None, seed = 0, sim_devices = 0, cpu_threads = None, memory_limit = None, trace = None, detect_races = false))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn new(
        py: Python<'_>,
        mode: Option<&str>,
        seed: u64,
        sim_devices: u32,
        cpu_threads: Option<usize>,
        memory_limit: Option<u64>,
        trace: Option<std::path::PathBuf>,
        detect_races: bool,
    ) -> PyResult<PyVm> {
        let mut builder = Vm::builder().sim_devices(sim_devices);
        builder = match mode {
            None => builder,
            Some("threaded") => builder.mode(Mode::Threaded),
            Some("inline") => builder.mode(Mode::Inline),
            Some("simulated") => builder.mode(Mode::Simulated { seed }),
            Some(other) => {
                return Err(PyValueError::new_err(format!(
                    "there is no mode {other:?}; there are threaded, inline and simulated"
                )));
            }
        };
        if detect_races {
            builder = builder.detect_races(true);
        }
        if let Some(threads) = cpu_threads {
            builder = builder.cpu_threads(threads).kernel_threads(threads);
        }
        if let Some(bytes) = memory_limit {
            builder = builder.cpu_memory_limit(bytes);
        }
        if let Some(file) = trace {
            builder = builder.trace(TraceConfig::to_file(file));
        }
        let site = caller::site(py)?;
        let vm = py.detach(|| builder.build()).map_err(|error| errors::exception(py, &error, site))?;
        let engine = Arc::new(Engine(Some(vm)));
        let mut live = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
        live.retain(|known| known.strong_count() > 0);
        live.push(Arc::downgrade(&engine));
        Ok(PyVm { engine })
    }

    /// Two are equal if they are the same engine.
    fn __eq__(&self, other: &PyVm) -> bool {
        Arc::ptr_eq(&self.engine, &other.engine)
    }

    fn __hash__(&self) -> usize {
        Arc::as_ptr(&self.engine).addr()
    }

    /// The names of the devices, such as "cpu:0" and "cuda:0".
    fn devices(&self) -> Vec<String> {
        self.engine.vm().devices().iter().map(|info| info.id.to_string()).collect()
    }

    /// Blocks until everything that was issued has passed. Raises the first failure that nobody has seen.
    #[pyo3(signature = (timeout = None))]
    fn wait_all(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        waiting::call_within(py, seconds(timeout)?, || self.engine.vm().wait_all())
    }

    /// Refuses further work from now on. What was issued still runs. A trace is whole once the engine is gone: nothing refers to it, or the program has ended.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.engine.vm().close());
    }

    /// Whether `close` was called.
    #[getter]
    fn closed(&self) -> bool {
        self.engine.vm().is_closed()
    }

    /// The races that the detector has found, a text for each; it is on with `detect_races` and with simulated devices.
    fn races(&self, py: Python<'_>) -> Vec<String> {
        py.detach(|| self.engine.vm().races().iter().map(ToString::to_string).collect())
    }

    /// Writes what the trace has until now, so that it can be read; the last seconds where STREAMVM_TRACE_LAST says how many the engine keeps. Blocks until it is written.
    fn write_trace(&self, py: Python<'_>) -> PyResult<()> {
        waiting::call(py, || self.engine.vm().write_trace())
    }

    /// The counters of the engine, as a text that people read.
    fn stats(&self, py: Python<'_>) -> String {
        py.detach(|| format!("{:#?}", self.engine.vm().stats()))
    }

    /// Calls a Python function as an instruction, once what it uses is ready, and returns at once.
    ///
    /// `function` gets a NumPy array with a copy of each tensor of `reads`, and returns None, or an array for the tensor of `writes`, or a tuple of arrays for several, of
    /// their shapes. It runs on another thread, with the interpreter's lock. What it raises is the cause of the failure that those get who wait for what it
    /// writes. `device` names the CPU on whose compute stream it is called; `on_workers` calls it as soon as its reads are ready, whatever was
    /// issued before it, so that it may block.
    #[pyo3(signature = (function, /, reads = Vec::new(), writes = Vec::new(), *, name = None, device = "cpu:0", on_workers = false))]
    #[expect(clippy::too_many_arguments, reason = "most are keywords")]
    fn call(
        &self,
        py: Python<'_>,
        function: Py<PyAny>,
        reads: Vec<Py<PyTensor>>,
        writes: Vec<Py<PyTensor>>,
        name: Option<String>,
        device: &str,
        on_workers: bool,
    ) -> PyResult<()> {
        if !function.bind(py).is_callable() {
            return Err(PyTypeError::new_err(format!(
                "call takes a function, and no {}",
                function.bind(py).get_type().name()?
            )));
        }
        let device = device_named(py, device)?;
        let name = match name {
            Some(name) => name,
            None => function
                .getattr(py, "__name__")
                .and_then(|name| name.extract(py))
                .unwrap_or_else(|_| "function".to_owned()),
        };
        let site = caller::site(py)?;
        let writes: Vec<&Tensor> = writes.iter().map(|it| &it.get().tensor).collect();
        if let Some(place) = writes.iter().position(|it| !it.layout().is_contiguous()) {
            let text = format!(
                "tensor {place} of `writes` has gaps between its elements; let the function write an `empty` tensor, and assign that"
            );
            return Err(errors::usage(py, &text));
        }
        let mut read = Vec::with_capacity(reads.len());
        for (place, given) in reads.iter().map(|it| &it.get().tensor).enumerate() {
            if writes.iter().any(|it| it.overlaps(given)) {
                let text = format!(
                    "tensor {place} of `reads` has memory of one of `writes`; let the function write another tensor, and assign that"
                );
                return Err(errors::usage(py, &text));
            }
            // A function gets elements without gaps.
            read.push(if given.layout().is_contiguous() {
                given.clone()
            } else {
                waiting::call(py, || given.contiguous())?
            });
        }
        let function = PythonFunction::new(function, site, writes.len());
        waiting::call(py, || {
            let uses = read.iter().map(|it| it.read()).chain(writes.iter().map(|it| it.write()));
            let vm = self.engine.vm();
            // A try that gave up has dropped its code without a call, so the next one needs the function again.
            let function = function.again();
            let code = move |context: &mut streamvm::FnContext<'_>| function.call(context);
            match on_workers {
                true => vm.call_fn_on_workers(name.clone(), device, uses, code).map(drop),
                false => vm.call_fn(name.clone(), device, uses, code).map(drop),
            }
        })
    }

    fn _from_array(
        slf: &Bound<'_, PyVm>,
        array: &Bound<'_, PyAny>,
        dtype: AnyDType,
        shape: Vec<usize>,
        device: &str,
    ) -> PyResult<PyTensor> {
        let (py, engine) = (slf.py(), &slf.get().engine);
        programs::refuse_while_recording(py)?;
        let place = place_named(py, device)?;
        let tensor = elements::tensor_of(engine.vm(), array, dtype.0, &shape, place)?;
        Ok(PyTensor::new(engine, tensor))
    }

    /// A tensor over the memory of an array of another library. None if the elements must be copied; with `never_written` that is an exception.
    fn _adopt(
        slf: &Bound<'_, PyVm>,
        x: &Bound<'_, PyAny>,
        device: &str,
        never_written: bool,
    ) -> PyResult<Option<PyTensor>> {
        let (py, engine) = (slf.py(), &slf.get().engine);
        programs::refuse_while_recording(py)?;
        let tensor = dlpack_in::shared(py, engine.vm(), x, place_named(py, device)?, never_written)?;
        Ok(tensor.map(|tensor| PyTensor::new(engine, tensor)))
    }

    fn _full(
        &self,
        py: Python<'_>,
        shape: Vec<usize>,
        value: Number,
        dtype: AnyDType,
        device: &str,
    ) -> PyResult<PyTensor> {
        let place = place_named(py, device)?;
        self.made(py, |vm| vm.full(place, dtype.0, &shape, value.scalar()))
    }

    fn _empty(&self, py: Python<'_>, shape: Vec<usize>, dtype: AnyDType, device: &str) -> PyResult<PyTensor> {
        let place = place_named(py, device)?;
        self.made(py, |vm| vm.empty(place, dtype.0, &shape))
    }

    fn _arange(
        &self,
        py: Python<'_>,
        numbers: (Number, Number, Number),
        dtype: AnyDType,
        device: &str,
    ) -> PyResult<PyTensor> {
        let device = device_named(py, device)?;
        let (first, end, step) = numbers;
        self.made(py, |vm| vm.arange(device, dtype.0, first.scalar(), end.scalar(), step.scalar()))
    }

    fn _linspace(
        &self,
        py: Python<'_>,
        numbers: (f64, f64, usize),
        dtype: AnyDType,
        device: &str,
    ) -> PyResult<PyTensor> {
        let device = device_named(py, device)?;
        let (first, last, count) = numbers;
        self.made(py, |vm| vm.linspace(device, dtype.0, first, last, count))
    }

    fn _eye(&self, py: Python<'_>, sizes: (usize, usize), dtype: AnyDType, device: &str) -> PyResult<PyTensor> {
        let place = place_named(py, device)?;
        self.made(py, |vm| vm.eye(place, dtype.0, sizes.0, sizes.1))
    }

    /// Random numbers: uniform from 0 to 1, or normal, those of `seed`.
    fn _random(
        &self,
        py: Python<'_>,
        shape: Vec<usize>,
        numbers: (u64, bool),
        dtype: AnyDType,
        device: &str,
    ) -> PyResult<PyTensor> {
        let (seed, normal) = numbers;
        let (device, generator) = (device_named(py, device)?, Generator::new(seed));
        self.made(py, |vm| match normal {
            true => vm.randn(&generator, device, dtype.0, &shape),
            false => vm.rand(&generator, device, dtype.0, &shape),
        })
    }
}

impl PyVm {
    fn made(&self, py: Python<'_>, make: impl Fn(&Vm) -> Result<Tensor, Error> + Sync) -> PyResult<PyTensor> {
        programs::refuse_while_recording(py)?;
        let tensor = waiting::call(py, || make(self.engine.vm()))?;
        Ok(PyTensor::new(&self.engine, tensor))
    }
}

/// A number of Python.
#[derive(Clone, Copy)]
pub(crate) enum Number {
    Bool(bool),
    Int(i64),
    Large(u64),
    Float(f64),
}

impl<'a, 'py> FromPyObject<'a, 'py> for Number {
    type Error = PyErr;

    /// By its type: a conversion that fails makes an exception, which takes longer than the rest of a call.
    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Number> {
        if given.is_instance_of::<PyFloat>() {
            return Ok(Number::Float(given.extract()?));
        }
        if given.is_instance_of::<PyBool>() {
            return Ok(Number::Bool(given.extract()?));
        }
        match given.extract::<i64>() {
            Ok(value) => Ok(Number::Int(value)),
            // Above the range of one is that of the other; what is neither is a float, or nothing.
            Err(_) => given.extract().map(Number::Large).or_else(|_| given.extract().map(Number::Float)),
        }
    }
}

impl Number {
    pub(crate) fn scalar(self) -> Scalar {
        match self {
            Number::Bool(value) => value.into(),
            Number::Int(value) => value.into(),
            Number::Large(value) => value.into(),
            Number::Float(value) => value.into(),
        }
    }
}

pub(crate) fn place_named(py: Python<'_>, name: &str) -> PyResult<Place> {
    name.parse().map_err(|error: streamvm::instructions::ParsePlaceError| errors::usage(py, &error.to_string()))
}

pub(crate) fn device_named(py: Python<'_>, name: &str) -> PyResult<DeviceId> {
    let wrong = || errors::usage(py, &format!("{name:?} is no device; there are names such as cpu:0 and cuda:1"));
    place_named(py, name)?.device().ok_or_else(wrong)
}

/// A time limit in seconds, as Python gives it.
pub(crate) fn seconds(timeout: Option<f64>) -> PyResult<Option<Duration>> {
    let of = |seconds: f64| {
        Duration::try_from_secs_f64(seconds)
            .map_err(|error| PyValueError::new_err(format!("a timeout of {seconds} seconds cannot be: {error}")))
    };
    // A time that no duration can hold is longer than any wait.
    timeout.filter(|seconds| seconds.is_nan() || *seconds < 1e15).map(of).transpose()
}

/// Closes all engines and waits for what they have been given. The package calls it when the interpreter ends: until then Python functions can run.
#[pyfunction]
pub(crate) fn close_all(py: Python<'_>) -> PyResult<()> {
    errors::forget();
    let live: Vec<Arc<Engine>> = {
        let live = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
        live.iter().filter_map(Weak::upgrade).collect()
    };
    for engine in &live {
        py.detach(|| engine.vm().close());
        match waiting::call(py, || engine.vm().wait_all()) {
            Ok(()) => {}
            // An engine of the process that this one was forked from: that has it.
            Err(error) if error.get_type(py).name().is_ok_and(|name| name == "ClosedError") => {}
            Err(error) if error.is_instance_of::<pyo3::exceptions::PyException>(py) => {
                // The program has not waited for the failure, so Python prints it.
                error.write_unraisable(py, None);
            }
            Err(interrupt) => {
                ABANDONED.store(true, Ordering::Relaxed);
                return Err(interrupt);
            }
        }
    }
    callbacks::end(py).inspect_err(|_| ABANDONED.store(true, Ordering::Relaxed))
}

thread_local! {
    /// The lanes that this thread has entered, with what leaves them.
    static ENTERED: RefCell<Vec<streamvm::instructions::LaneGuard>> = const { RefCell::new(Vec::new()) };
}

/// A lane: `with Lane(1):` issues the calls of this thread on streams of their own, beside those of other lanes. Calls on several lanes run at once where the data
/// allows it.
///
/// It belongs to the thread, so a coroutine must leave it before it awaits.
#[pyclass(name = "Lane", module = "streamvm", frozen, eq, hash)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PyLane {
    /// Its number.
    #[pyo3(get)]
    number: u32,
}

#[pymethods]
impl PyLane {
    #[new]
    fn new(number: u32) -> PyLane {
        PyLane { number }
    }

    fn __enter__(slf: Bound<'_, PyLane>) -> Bound<'_, PyLane> {
        let guard = Lane(slf.get().number).enter();
        ENTERED.with_borrow_mut(|entered| entered.push(guard));
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        match ENTERED.with_borrow_mut(Vec::pop) {
            Some(_) => Ok(()),
            None => Err(PyRuntimeError::new_err(
                "this thread has entered no lane; leave a lane on the thread that has entered it",
            )),
        }
    }

    fn __repr__(&self) -> String {
        format!("Lane({})", self.number)
    }
}
