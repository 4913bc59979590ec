//! The driver: all state that lives until the process ends or the driver is set up again.
//!
//! The checks that driver calls share are here: the object of a handle, the current context, the allocation of an address. Each check
//! reports a finding before it returns the code of the CUDA driver, so that a program which ignores the code is caught too.
//!
//! Locks are taken in this order: `tables`, then `memory`, then the queue of a stream. The locks of the race detector and of the findings
//! are leaves. A thread holds none of them while it waits for a stream.

use std::fmt::Display;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use streamvm_cuda::FUSED_NAME;

use crate::kernels::{FusedViews, Kernel, PtxCode};
use crate::memory::order::Order;
use crate::memory::{Heap, Home, Missing, Span};
use crate::objects::capture::Captures;
use crate::objects::collective::Comm;
use crate::objects::context::{self, Context};
use crate::objects::cublas::Cublas;
use crate::objects::event::Event;
use crate::objects::graph::{Exec, Graph};
use crate::objects::stream::{Gate, Stream};
use crate::values::code::{Code, Outcome};
use crate::values::config::Config;
use crate::values::faults::Faults;
use crate::values::findings::{FILE, Findings, Kind};
use crate::values::handles::{Handles, NoHandle};

/// The state of the driver; see the module.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) config: Config,
    /// Has `cuInit` succeeded?
    pub(crate) ready: AtomicBool,
    pub(crate) faults: Faults,
    pub(crate) findings: Findings,
    pub(crate) order: Order,
    pub(crate) gate: Gate,
    pub(crate) captures: Captures,
    tables: Mutex<Tables>,
    memory: Mutex<Memory>,
    moving: Mutex<()>,
}

/// The objects of all handles.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) contexts: Handles<Context>,
    /// The primary context of each device, and how often it is retained.
    pub(crate) primary: Vec<Option<(usize, u64)>>,
    pub(crate) streams: Handles<Stream>,
    pub(crate) streams_ever: u32,
    pub(crate) events: Handles<Event>,
    pub(crate) modules: Handles<Module>,
    pub(crate) functions: Handles<Function>,
    pub(crate) cublas: Handles<Cublas>,
    pub(crate) comms: Handles<Comm>,
    pub(crate) graphs: Handles<Graph>,
    pub(crate) execs: Handles<Exec>,
    /// How many conditions of conditional nodes there were so far.
    pub(crate) conditions_ever: u64,
}

/// A loaded module.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) context: Arc<Context>,
    pub(crate) code: Arc<PtxCode>,
    /// The views of the fused kernel that it has, if it has one.
    pub(crate) fused: Option<Arc<FusedViews>>,
}

impl Module {
    /// The kernel of this name, if the module has it and the stand-in knows its parameter.
    pub(crate) fn kernel(&self, name: &str) -> Option<Kernel> {
        let fused = self.fused.as_ref().filter(|_| name == FUSED_NAME).cloned().map(Kernel::Fused);
        let own = || self.code.own(name).map(|kernel| Kernel::Own(Arc::new(kernel)));
        fused.or_else(|| Kernel::named(name)).filter(|_| self.code.has(name)).or_else(own)
    }
}

/// A kernel of a module.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) module: usize,
    pub(crate) kernel: Kernel,
}

/// All memory, and the bytes in use.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) heap: Heap,
    pub(crate) in_use: Vec<u64>,
    pub(crate) pinned_in_use: u64,
}

/// Number of drivers so far; it makes the handles of different drivers differ.
static SET_UP: AtomicU64 = AtomicU64::new(0);

impl Driver {
    /// A new driver; `None` if the system cannot reserve addresses for its memory.
    pub(crate) fn new(config: Config) -> Option<Driver> {
        let devices = config.devices;
        let turn = SET_UP.fetch_add(1, Ordering::Relaxed);
        let tables = Tables {
            contexts: Handles::new(1, turn),
            primary: vec![None; devices],
            streams: Handles::new(2, turn),
            streams_ever: 0,
            events: Handles::new(3, turn),
            modules: Handles::new(4, turn),
            functions: Handles::new(5, turn),
            cublas: Handles::new(6, turn),
            graphs: Handles::new(7, turn),
            execs: Handles::new(8, turn),
            comms: Handles::new(9, turn),
            conditions_ever: 0,
        };
        let memory = Memory { heap: Heap::new(devices, config.unwritten)?, in_use: vec![0; devices], pinned_in_use: 0 };
        Some(Driver {
            ready: AtomicBool::new(false),
            faults: Faults::new(&config.faults),
            findings: Findings::new(std::env::var_os(FILE).map(PathBuf::from)),
            order: Order::new(config.order, config.unwritten),
            gate: Gate::default(),
            captures: Captures::default(),
            tables: Mutex::new(tables),
            memory: Mutex::new(memory),
            moving: Mutex::new(()),
            config,
        })
    }

    pub(crate) fn tables(&self) -> MutexGuard<'_, Tables> {
        // A panic in a driver call ends the process, so the state is consistent.
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock that is held while bytes move. If a kernel panics under it, only the kernel's output is undefined, so poison is ignored.
    pub(crate) fn moving(&self) -> MutexGuard<'_, ()> {
        self.moving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device of this number.
    pub(crate) fn device(&self, number: i32) -> Outcome<usize> {
        usize::try_from(number).ok().filter(|&number| number < self.config.devices).ok_or(Code::INVALID_DEVICE)
    }

    /// The current context, which must not have ended.
    pub(crate) fn current(&self, call: &str) -> Outcome<Arc<Context>> {
        let handle = context::current();
        let found = self.tables().contexts.get(handle).cloned();
        match found {
            Ok(context) => context.check().map(|()| context),
            Err(NoHandle::Destroyed) => {
                let text = format!("{call} while a context is current that was released for good");
                self.findings.add(Kind::Destroyed, text);
                Err(Code::CONTEXT_IS_DESTROYED)
            }
            Err(_) => {
                self.findings.add(Kind::NoContext, format!("{call}; make a context current on this thread first"));
                Err(Code::INVALID_CONTEXT)
            }
        }
    }

    /// The context of `handle`.
    pub(crate) fn context(&self, call: &str, handle: usize) -> Outcome<Arc<Context>> {
        let found = self.tables().contexts.get(handle).cloned();
        found.map_err(|why| self.bad_handle(call, "context", handle, why, Code::INVALID_CONTEXT))
    }

    /// The stream of `handle`, whose context must not have ended.
    pub(crate) fn stream(&self, call: &str, handle: usize) -> Outcome<Arc<Stream>> {
        // 1 and 2 are the handles of the legacy and the per-thread default stream.
        if handle <= 2 {
            let text = format!("{call}; make a stream that does not wait for the null stream, and use that");
            self.findings.add(Kind::NullStream, text);
            return Err(Code::NOT_SUPPORTED);
        }
        let found = self.tables().streams.get(handle).cloned();
        let stream = found.map_err(|why| self.bad_handle(call, "stream", handle, why, Code::INVALID_HANDLE))?;
        stream.context.check()?;
        Ok(stream)
    }

    /// The stream of `handle`, for a command: its context must be current.
    pub(crate) fn stream_here(&self, call: &str, handle: usize) -> Outcome<Arc<Stream>> {
        let current = self.current(call)?;
        let stream = self.stream(call, handle)?;
        if stream.context.handle != current.handle {
            let text = format!("{call} on {} while a context of cuda:{} is current", stream.name, current.device);
            self.findings.add(Kind::WrongContext, text);
            return Err(Code::INVALID_HANDLE);
        }
        Ok(stream)
    }

    /// The event of `handle`, whose context must not have ended.
    pub(crate) fn event(&self, call: &str, handle: usize) -> Outcome<Arc<Event>> {
        let found = self.tables().events.get(handle).cloned();
        let event = found.map_err(|why| self.bad_handle(call, "event", handle, why, Code::INVALID_HANDLE))?;
        event.context.check()?;
        Ok(event)
    }

    /// The instantiated graph of `handle`, whose context must not have ended.
    pub(crate) fn exec(&self, call: &str, handle: usize) -> Outcome<Arc<Exec>> {
        let found = self.tables().execs.get(handle).cloned();
        let exec =
            found.map_err(|why| self.bad_handle(call, "instantiated graph", handle, why, Code::INVALID_VALUE))?;
        exec.context.check()?;
        Ok(exec)
    }

    /// Reports an invalid handle.
    pub(crate) fn bad_handle(&self, call: &str, what: &str, handle: usize, why: NoHandle, code: Code) -> Code {
        let (kind, text) = match why {
            NoHandle::Null => (Kind::UnknownHandle, format!("{call} of the {what} 0")),
            NoHandle::Destroyed => (Kind::Destroyed, format!("{call} of the {what} {handle:#x}")),
            NoHandle::Unknown => {
                (Kind::UnknownHandle, format!("{call} of {handle:#x}, which is no {what} and never was"))
            }
        };
        self.findings.add(kind, text);
        code
    }

    /// The kernel of `handle`, whose module must be loaded, and the module.
    pub(crate) fn function(&self, call: &str, handle: usize) -> Outcome<(Kernel, Arc<Module>)> {
        let tables = self.tables();
        let found = tables.functions.get(handle).and_then(|function| {
            let module = tables.modules.get(function.module)?;
            Ok((function.kernel.clone(), Arc::clone(module)))
        });
        drop(tables);
        found.map_err(|why| self.bad_handle(call, "kernel", handle, why, Code::INVALID_HANDLE))
    }

    /// The bytes at these addresses, which must lie in one live allocation of the driver.
    pub(crate) fn span(&self, call: &str, what: &str, address: usize, bytes: usize) -> Outcome<Span> {
        let range: Range<usize> = address..address.saturating_add(bytes);
        let found = self.memory().heap.find(range.clone());
        found.map_err(|missing| {
            let kind = match &missing {
                Missing::Freed(_) => Kind::AfterFree,
                Missing::OutOfBounds(_) => Kind::OutOfBounds,
                Missing::NeverGiven => Kind::UnknownMemory,
                Missing::Host => Kind::Pageable,
            };
            let Range { start, end } = range;
            self.findings.add(kind, format!("{call}: {what} {start:#x}..{end:#x}: {missing}"));
            Code::INVALID_VALUE
        })
    }

    /// Checks the memory that a command will write: write-combined memory is a finding, since the host reads it very slowly.
    pub(crate) fn check_written(&self, call: &str, target: &Span) {
        if !self.config.combined && matches!(target.allocation.home, Home::Combined(_)) {
            let text = format!("{call} to {}; write-combined memory is for copies to a device", target.allocation);
            self.findings.add(Kind::WriteCombined, text);
        }
    }

    /// Reports a finding about a call and returns `code`.
    pub(crate) fn refuse(&self, kind: Kind, text: impl Display, code: Code) -> Code {
        self.findings.add(kind, text);
        code
    }

    /// The objects that are alive, one a line: contexts, streams, events, modules, graphs, memory. With `of`, only those in this context, without
    /// the context itself.
    pub(crate) fn leaks(&self, of: Option<usize>) -> Vec<String> {
        let tables = self.tables();
        let memory = self.memory();
        // After an error has ended a context, nothing in it can be freed, so its objects are not leaks.
        let here = |context: usize| match of {
            Some(of) => of == context,
            None => tables.contexts.get(context).is_ok_and(|context| context.check().is_ok()),
        };
        let mut leaks: Vec<String> = Vec::new();
        for (_, context) in tables.contexts.live().filter(|_| of.is_none()) {
            leaks.push(format!("the primary context of cuda:{}", context.device));
        }
        let streams = tables.streams.live().filter(|(_, stream)| here(stream.context.handle));
        leaks.extend(streams.map(|(_, stream)| stream.name.clone()));
        let events = tables.events.live().filter(|(_, event)| here(event.context.handle));
        leaks.extend(events.map(|(handle, event)| format!("event {handle:#x} of cuda:{}", event.context.device)));
        let modules = tables.modules.live().filter(|(_, module)| here(module.context.handle));
        leaks.extend(modules.map(|(handle, module)| format!("module {handle:#x} of cuda:{}", module.context.device)));
        let handles = tables.cublas.live().filter(|(_, cublas)| here(cublas.context.handle));
        leaks.extend(handles.map(|(handle, cublas)| format!("cuBLAS {handle:#x} of cuda:{}", cublas.context.device)));
        let graphs = tables.graphs.live().filter(|(_, graph)| !graph.is_body && here(graph.context.handle));
        leaks.extend(graphs.map(|(handle, graph)| format!("graph {handle:#x} of cuda:{}", graph.context.device)));
        let execs = tables.execs.live().filter(|(_, exec)| here(exec.context.handle));
        leaks.extend(
            execs.map(|(handle, exec)| format!("instantiated graph {handle:#x} of cuda:{}", exec.context.device)),
        );
        let allocations = memory.heap.live().filter(|allocation| here(allocation.context as usize));
        leaks.extend(allocations.map(|allocation| allocation.to_string()));
        leaks
    }

    /// Removes a destroyed context and everything in it.
    pub(crate) fn forget(&self, context: usize) {
        let mut tables = self.tables();
        let _ = tables.contexts.remove(context);
        tables.streams.retain(|stream| stream.context.handle != context);
        tables.events.retain(|event| event.context.handle != context);
        tables.modules.retain(|module| module.context.handle != context);
        tables.cublas.retain(|cublas| cublas.context.handle != context);
        tables.graphs.retain(|graph| graph.context.handle != context);
        tables.execs.retain(|exec| exec.context.handle != context);
        let mut memory = self.memory();
        let memory = &mut *memory;
        let gone: Vec<usize> =
            memory.heap.live().filter(|one| one.context as usize == context).map(|one| one.range.start).collect();
        for start in gone {
            let Some(gone) = memory.heap.free(start) else { continue };
            match gone.home {
                Home::Device(device) => memory.in_use[device] -= gone.range.len() as u64,
                Home::Pinned(_) | Home::Combined(_) | Home::Host => memory.pinned_in_use -= gone.range.len() as u64,
            }
            if Arc::strong_count(&gone) > 1 {
                let text =
                    format!("{gone} goes with its context while a command is queued that uses it; wait for that first");
                self.findings.add(Kind::AfterFree, text);
            }
            memory.heap.close(&gone);
        }
    }

    /// Ends every stream, once its queued commands have run; afterwards nothing of this driver is in use.
    pub(crate) fn close(&self) {
        self.gate.set(false);
        let contexts: Vec<Arc<Context>> =
            self.tables().contexts.live().map(|(_, context)| Arc::clone(context)).collect();
        for stream in contexts.iter().flat_map(|context| context.streams()) {
            stream.close();
            stream.drain();
        }
    }
}
