//! Runs a program on simulated devices and collects the findings of their race detector.

use std::sync::Arc;

use streamvm::ep::races::{Detector, Finding, Touch, act_as};
use streamvm::ep::sim::{SimConfig, SimMachine};
use streamvm::ep::{
    DType, Device, Error, EventId, InlineFn, Kernel, KernelCall, KernelError, KernelRegistry, Label, Layout,
    MemoryKind, Op, Operand, Params, Region, Scalar, Shape, Stream, builtin_kernels,
};
use streamvm::{DeviceKind, FnContext};

use super::program::{Command, DEVICES, ELEMENTS, Id, Program, RegionKind, Use, Work, Wrong};

/// Bytes of a region.
const BYTES: usize = ELEMENTS * 4;

/// The name of an access in findings.
pub(crate) fn name(id: Id) -> String {
    format!("access {id}")
}

/// The outcome of a program.
pub(crate) struct Played {
    pub(crate) findings: Vec<Finding>,
    /// Errors of commands that were refused when they were issued.
    pub(crate) errors: Vec<Error>,
}

/// Issues a program to new devices, runs it to its end in an order drawn from `seed`, and frees everything.
///
/// # Panics
/// If a device gives no memory or stream.
pub(crate) fn play(program: &Program, seed: u64, strict_pinned: bool) -> Played {
    let detector = Arc::new(Detector::new());
    let config = SimConfig { devices: DEVICES as u32, seed, memory_limit: None, strict_pinned };
    let machine = SimMachine::new(config, detector.clone());
    let devices = machine.devices();
    let stream = |device: &usize| devices[*device].create_stream().expect("a stream");
    let memory: Vec<Memory> =
        program.regions.iter().map(|region| Memory::new(region.kind, &devices[region.device])).collect();
    let mut player = Player {
        program,
        bases: memory.iter().map(Memory::base).collect(),
        memory,
        streams: program.streams.iter().map(stream).collect(),
        seqs: vec![0; program.streams.len()],
        lives: vec![0; program.lives.len()],
        events: (0..program.events).map(|_| devices[0].events().acquire()).collect(),
        kernels: builtin_kernels(),
        devices,
        detector,
        errors: Vec::new(),
    };
    program.commands.iter().for_each(|command| player.issue(command));
    player.end()
}

/// The memory of one region.
enum Memory {
    Given(Region),
    /// Memory that no driver allocated, as far as the detector knows.
    Own(Box<[u64; BYTES / 8]>),
    Back,
}

impl Memory {
    fn new(kind: RegionKind, device: &Arc<dyn Device>) -> Memory {
        let kind = match kind {
            RegionKind::Device => MemoryKind::Device,
            RegionKind::Pinned => MemoryKind::Pinned,
            RegionKind::Pageable => MemoryKind::Pageable,
            RegionKind::Unknown => return Memory::Own(Box::new([0; BYTES / 8])),
        };
        Memory::Given(device.allocate(kind, BYTES).expect("memory without a limit"))
    }

    fn base(&self) -> *mut u8 {
        match self {
            Memory::Given(region) => region.base(),
            Memory::Own(memory) => memory.as_ptr().cast::<u8>().cast_mut(),
            Memory::Back => std::ptr::null_mut(),
        }
    }
}

struct Player<'a> {
    program: &'a Program,
    devices: Vec<Arc<dyn Device>>,
    detector: Arc<Detector>,
    streams: Vec<Box<dyn Stream>>,
    seqs: Vec<u64>,
    memory: Vec<Memory>,
    /// The address of each region, which stays known after the region is freed.
    bases: Vec<*mut u8>,
    lives: Vec<u64>,
    events: Vec<EventId>,
    kernels: KernelRegistry,
    errors: Vec<Error>,
}

impl Player<'_> {
    fn issue(&mut self, command: &Command) {
        let result = match command {
            Command::Run { id, stream, work, uses } => self.run(*id, *stream, *work, uses),
            Command::Record { stream, event } => {
                self.begin(*stream, "record", &[]);
                self.streams[*stream].record(self.events[*event])
            }
            Command::Wait { stream, event } => {
                self.begin(*stream, "wait", &[]);
                self.streams[*stream].wait(self.events[*event])
            }
            Command::HostWait { thread: 0, event } => self.devices[0].wait(self.events[*event], None).map(drop),
            Command::HostWait { event, .. } => {
                let _other = act_as(self.detector.thread_actor("another thread"));
                self.devices[0].wait(self.events[*event], None).map(drop)
            }
            Command::Synchronize { stream } => self.streams[*stream].synchronize(),
            Command::Host { id, touched } => {
                let label = self.label(u32::MAX, 0, &name(*id), &[*touched]);
                let life = label.allocations.first().copied();
                let touch = Touch::of(&self.operand(*touched), life);
                self.detector.access(self.detector.this_thread(), &label, &[touch]);
                Ok(())
            }
            Command::Begin { life } => {
                let of = self.program.lives[*life];
                let start = self.bases[of.region].addr() + of.start * 4;
                let label = self.label(u32::MAX, 0, &format!("begin of life {life}"), &[]);
                self.lives[*life] = self.detector.begin_allocation(start..start + of.elements * 4, &label);
                Ok(())
            }
            Command::End { life } => {
                let label = self.label(u32::MAX, 0, &format!("end of life {life}"), &[]);
                self.detector.end_allocation(self.lives[*life], &label);
                Ok(())
            }
            Command::Free { region, .. } => {
                self.free(*region);
                Ok(())
            }
            Command::ReleaseEvent { event } => self.devices[0].events().release(self.events[*event]),
        };
        self.errors.extend(result.err());
    }

    fn label(&self, stream: u32, seq: u64, what: &str, uses: &[Use]) -> Label {
        let lives = uses.iter().map(|touched| self.lives[touched.life]);
        let lives = if self.program.names_lives { lives.collect() } else { Arc::from([]) };
        Label { allocations: lives, ..Label::new(stream, seq, what) }
    }

    fn begin(&mut self, stream: usize, what: &str, uses: &[Use]) {
        self.seqs[stream] += 1;
        let label = self.label(stream as u32, self.seqs[stream], what, uses);
        self.streams[stream].begin(&label);
    }

    fn operand(&self, touched: Use) -> Operand<'static> {
        let life = self.program.lives[touched.life];
        let shape = Shape::new(&[touched.view.rows, touched.view.columns]).expect("a matrix");
        let layout = Layout::with_strides(shape, &[4, 1], life.start + touched.view.offset).expect("within a region");
        // SAFETY: views lie inside the 32 elements of their region, and the devices read no uninitialised bytes. Simulated devices run
        // commands one at a time, and do not access memory that was freed.
        unsafe { Operand::new(self.bases[life.region], DType::F32, layout, touched.access) }
    }

    fn run(&mut self, id: Id, stream: usize, work: Work, uses: &[Use]) -> Result<(), Error> {
        self.begin(stream, &name(id), uses);
        let mut operands: Vec<Operand> = uses.iter().map(|touched| self.operand(*touched)).collect();
        let inputs = operands.len() - 1;
        let kernel = match work {
            Work::Fill => return self.streams[stream].fill(&mut operands[0], Scalar::from(id as f32)),
            Work::Copy => {
                let (target, sources) = operands.split_last_mut().expect("a copy has two ends");
                return self.streams[stream].copy(&sources[0], target);
            }
            Work::Call => {
                let result = self.streams[stream].call(&mut InlineFn::new(write_some), &mut operands);
                return result.map_err(|error| match error {
                    streamvm::ep::CallError::Device(error) => error,
                    streamvm::ep::CallError::Function(error) => Error::Injected(error.to_string()),
                });
            }
            Work::Kernel => {
                let op = if inputs == 1 { Op::Neg } else { Op::Add };
                self.kernels.get(op, DeviceKind::SIM, DType::F32)?
            }
            Work::Wrong(wrong) => {
                Kernel { op: Op::Neg, device: DeviceKind::SIM, dtype: DType::F32, run: kernel(wrong) }
            }
        };
        let params = Params::default();
        self.streams[stream].launch(&mut KernelCall::new(kernel, &mut operands, inputs, &params))
    }

    fn free(&mut self, region: usize) {
        let device = self.program.regions[region].device;
        if let Memory::Given(memory) = std::mem::replace(&mut self.memory[region], Memory::Back) {
            // SAFETY: the region came from this device. A hazard frees it while commands may use it; simulated devices keep the memory
            // until those commands have passed.
            unsafe { self.devices[device].free(memory) };
        }
    }

    /// Waits for all commands and frees everything.
    fn end(mut self) -> Played {
        for stream in &mut self.streams {
            self.errors.extend(stream.synchronize().err());
        }
        (0..self.memory.len()).for_each(|region| self.free(region));
        Played { findings: self.detector.take_findings(), errors: self.errors }
    }
}

/// A function that writes its operand, if it gets a slice of it.
fn write_some(context: &mut FnContext<'_>) -> Result<(), streamvm::FnError> {
    if let Ok(elements) = context.writes.take::<f32>(0) {
        elements.fill(1.0);
    }
    Ok(())
}

fn kernel(wrong: Wrong) -> streamvm::ep::KernelFn {
    match wrong {
        Wrong::ReadsOutput => |call| {
            let output = call.operands.last().expect("an output");
            each(output, |element| {
                // SAFETY: an element of the operand, which is allocated and aligned.
                let bits = unsafe { element.read() };
                // SAFETY: an element of the operand, which is allocated, aligned and declared as written.
                unsafe { element.write(!bits) };
            });
            Ok(())
        },
        Wrong::WritesInput => |call| write_all(call, |call| call.operands[0].ptr().cast()),
        Wrong::WritesPast => |call| write_all(call, |call| end_of(call.operands.last().expect("an output"))),
        Wrong::WritesBefore => {
            |call| write_all(call, |call| call.operands.last().expect("an output").ptr().cast::<u32>().wrapping_sub(1))
        }
        Wrong::ReadsPast => |call| {
            // SAFETY: a simulated device runs kernels over copies of the operands with a band of known bytes on both sides, so the element
            // after the end can be read.
            let bits = unsafe { end_of(&call.operands[0]).read() };
            let output = call.operands.last().expect("an output");
            // SAFETY: an element of the operand, which is allocated, aligned and declared as written.
            each(output, |element| unsafe { element.write(bits) });
            Ok(())
        },
    }
}

/// Writes the whole output, and also the element that `also` returns.
fn write_all(call: &mut KernelCall<'_, '_>, also: fn(&KernelCall<'_, '_>) -> *mut u32) -> Result<(), KernelError> {
    let output = call.operands.last().expect("an output");
    // SAFETY: an element of the operand, which is allocated, aligned and declared as written.
    each(output, |element| unsafe { element.write(7) });
    // SAFETY: an element of another operand, or one beside an operand: a simulated device runs kernels over copies with a band of known
    // bytes on both sides. No reference to it exists.
    unsafe { also(call).write(0x1357_9BDF) };
    Ok(())
}

/// Calls `f` for each element of a matrix whose rows are four elements apart.
fn each(operand: &Operand, mut f: impl FnMut(*mut u32)) {
    let dims = operand.layout().shape();
    for row in 0..dims.dims()[0] {
        (0..dims.dims()[1]).for_each(|column| f(operand.ptr().cast::<u32>().wrapping_add(row * 4 + column)));
    }
}

/// The element after the last one of an operand.
fn end_of(operand: &Operand) -> *mut u32 {
    let dims = operand.layout().shape();
    operand.ptr().cast::<u32>().wrapping_add((dims.dims()[0] - 1) * 4 + dims.dims()[1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hazards::draw::draw;
    use crate::support::random::Random;

    #[test]
    fn nothing_is_found_in_valid_programs() {
        for seed in 0..500 {
            let program = draw(&mut Random::new(seed, 0));
            let Played { findings, errors } = play(&program, seed, false);
            assert!(errors.is_empty(), "seed {seed}: {errors:?}\n{program:#?}");
            assert!(findings.is_empty(), "seed {seed}: {}\n{program:#?}", findings[0]);
        }
    }
}
