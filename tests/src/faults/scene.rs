//! Scenes: the instruction that a fault meets, and the work around it.

use std::sync::Arc;

use streamvm::instructions::LaunchOptions;
use streamvm::program::{CompileOptions, Recorder};
use streamvm::{
    Critical, DType, DeviceId, Error, Executable, Fetches, InstructionsBuilder, Place, StreamKey, StreamType, Tensor,
    Ticket, Vm,
};

/// The elements of every tensor of a scene.
pub(super) const ELEMENTS: usize = 8;

/// An instruction kind on one type of stream.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// An op on the compute stream.
    Call,
    /// A fill on the compute stream.
    Fill,
    /// A caller's function that updates a tensor.
    Function,
    /// A caller's function without tensors.
    HostFunction,
    /// A caller's access to one tensor.
    Access,
    /// An op on the pinned compute stream.
    PinnedCall,
    /// A copy from the host.
    CopyIn,
    /// A copy to the host.
    CopyOut,
    /// An explicit record on the compute stream, and a wait for it on another lane.
    RecordAndWait,
    /// A touch, which only gives order.
    Touch,
    /// Memory that is allocated, written and released in one list.
    AllocateAndRelease,
    /// A barrier with a callback.
    Barrier,
    /// A global sync.
    GlobalSync,
    /// A caller's function on workers that updates a tensor.
    WorkerFunction,
    /// A function that is pushed to workers.
    Push,
    /// A function that is pushed to workers as a clean-up.
    CleanUp,
    /// A caller's own commands on a CUDA stream.
    RawCall,
    /// An op within a critical section.
    InSection,
    /// The begin of a critical section around an op.
    SectionBegin,
    /// The end of a critical section around an op.
    SectionEnd,
    /// A run of a compiled program.
    Run,
    /// A run of a program, in a round of its loop.
    Loop,
    /// A run of a program, in its branch.
    Branch,
}

/// All kinds.
pub fn kinds() -> [Kind; 23] {
    use Kind::*;
    [
        Call,
        Fill,
        Function,
        HostFunction,
        Access,
        PinnedCall,
        CopyIn,
        CopyOut,
        RecordAndWait,
        Touch,
        AllocateAndRelease,
        Barrier,
        GlobalSync,
        WorkerFunction,
        Push,
        CleanUp,
        RawCall,
        InSection,
        SectionBegin,
        SectionEnd,
        Run,
        Loop,
        Branch,
    ]
}

impl Kind {
    /// The name of the instruction that the fault is meant for.
    pub(super) fn called(self) -> &'static str {
        match self {
            Kind::Call | Kind::PinnedCall | Kind::InSection => "add",
            Kind::Fill | Kind::RecordAndWait | Kind::AllocateAndRelease => "fill",
            Kind::Function
            | Kind::HostFunction
            | Kind::Access
            | Kind::Barrier
            | Kind::WorkerFunction
            | Kind::Push
            | Kind::CleanUp
            | Kind::RawCall
            | Kind::Run
            | Kind::Loop
            | Kind::Branch => "subject",
            Kind::SectionBegin => "begin",
            Kind::SectionEnd => "end",
            Kind::CopyIn | Kind::CopyOut => "copy",
            Kind::Touch => "touch",
            Kind::GlobalSync => "global_sync",
        }
    }

    /// The type of stream that it runs on.
    pub fn stream_type(self) -> StreamType {
        match self {
            Kind::PinnedCall => StreamType::PinnedCompute,
            Kind::CopyIn => StreamType::HostToDevice,
            Kind::CopyOut => StreamType::DeviceToHost,
            Kind::Barrier | Kind::GlobalSync => StreamType::Barrier,
            Kind::WorkerFunction | Kind::Push | Kind::CleanUp => StreamType::Workers,
            Kind::SectionBegin | Kind::SectionEnd => StreamType::Critical,
            _ => StreamType::Compute,
        }
    }

    /// Is it the run of a program?
    pub(super) fn is_run(self) -> bool {
        matches!(self, Kind::Run | Kind::Loop | Kind::Branch)
    }

    /// Is it the run of a program whose fault lies in a block?
    pub(super) fn has_block(self) -> bool {
        matches!(self, Kind::Loop | Kind::Branch)
    }

    /// Records the program of a kind that is a run, over `x`, eight ones.
    fn record(self, r: &Recorder, device: DeviceId) -> Result<(), Error> {
        let x = r.feed("x", device, DType::F32, &[ELEMENTS])?;
        let y = r.full(device, DType::F32, &[ELEMENTS], 0.0f32)?;
        let more = || y.copy_from(&(&y + &x)?);
        match self {
            Kind::Loop => {
                let (round, most) = (r.full(device, DType::I32, &[], 0)?, r.full(device, DType::I32, &[], 3)?);
                let goes_on = round.lt(&most)?;
                r.while_true(&goes_on, || {
                    more()?;
                    round.copy_from(&(&round + 1)?)?;
                    goes_on.copy_from(&round.lt(&most)?)
                })?;
            }
            Kind::Branch => {
                let taken = r.full(device, DType::Bool, &[], true)?;
                r.if_else(&taken, more, || y.copy_from(&x.neg()?))?;
            }
            _ => more()?,
        }
        r.fetch("y", &y)
    }
}

/// The subject, submitted.
pub(super) enum Submitted<'vm> {
    List(Ticket<'vm>),
    Run(Fetches),
}

impl Submitted<'_> {
    pub(super) fn wait(&self) -> Result<(), Error> {
        match self {
            Submitted::List(ticket) => ticket.wait(),
            Submitted::Run(run) => run.wait(),
        }
    }
}

/// A tensor that the subject makes, and the expected value of its elements.
pub(super) type Made = Option<(Tensor, f32)>;

/// The state before a subject: made by healthy work that has passed before the fault.
#[derive(Debug)]
pub struct Scene {
    /// The device of the subject.
    pub device: DeviceId,
    /// Ones, on the device.
    pub ones: Tensor,
    /// Ones, on the device. Only the subject uses them, so that its writes do not wait for other readers.
    pub subject: Tensor,
    /// Twos, on the device. The subject does not use them.
    pub apart: Tensor,
    /// Fives, on the host.
    pub host: Tensor,
    /// Held by the captures of the subject's function.
    pub held: Arc<()>,
    /// What critical sections are over.
    resource: Critical,
    /// The program of a kind that is a run.
    program: Option<Executable>,
}

impl Scene {
    /// Makes the state.
    ///
    /// # Panics
    /// If healthy work fails.
    pub fn new(vm: &Vm, device: DeviceId, kind: Kind) -> Scene {
        let fill = |value: f32| vm.full(device, DType::F32, &[ELEMENTS], value).expect("a fill");
        let (ones, subject, apart) = (fill(1.0), fill(1.0), fill(2.0));
        let host = vm.from_slice(&[5.0f32; ELEMENTS], &[ELEMENTS]).expect("a host tensor");
        // Opens the streams that work beside the subject before the fault.
        assert_eq!(ones.to_vec::<f32>().expect("a look at it"), [1.0; ELEMENTS]);
        for lane in 1..3 {
            let _lane = streamvm::Lane(lane).enter();
            fill(0.0);
        }
        let program = kind.is_run().then(|| {
            let program = vm.record("subject", |r| kind.record(r, device)).expect("it can be recorded");
            vm.compile(&program, &[], &CompileOptions::default()).expect("it compiles")
        });
        vm.wait_all().expect("a healthy start");
        Scene { device, ones, subject, apart, host, held: Arc::new(()), resource: vm.critical("port"), program }
    }

    /// The same state for later work, over the same resource.
    pub(super) fn again(&self, vm: &Vm, kind: Kind) -> Scene {
        Scene { resource: self.resource.clone(), ..Scene::new(vm, self.device, kind) }
    }

    /// Submits the subject.
    pub(super) fn submit<'vm>(&self, kind: Kind, vm: &'vm Vm) -> Result<(Submitted<'vm>, Made), Error> {
        let Some(program) = &self.program else {
            let mut builder = InstructionsBuilder::new();
            let made = self.emit(kind, &mut builder)?;
            return Ok((Submitted::List(vm.submit(builder.finish())?), made));
        };
        let run = program.run(&[("x", &self.subject)])?;
        let y = run["y"].clone();
        Ok((Submitted::Run(run), Some((y, if kind == Kind::Loop { 3.0 } else { 1.0 }))))
    }

    /// Emits the subject of a kind that is no run.
    fn emit(&self, kind: Kind, b: &mut InstructionsBuilder) -> Result<Made, Error> {
        let held = self.held.clone();
        let device = self.device;
        Ok(match kind {
            Kind::Call => Some((b.add(&self.ones, &self.subject)?, 2.0)),
            Kind::PinnedCall => Some((b.on_pinned().add(&self.ones, &self.subject)?, 2.0)),
            Kind::Fill => Some((b.full(device, DType::F32, &[ELEMENTS], 7.0)?, 7.0)),
            Kind::Function | Kind::WorkerFunction => {
                let mut b = if kind == Kind::WorkerFunction { b.on_workers() } else { b.on_compute() };
                b.call_fn("subject", device, [self.subject.update()], move |context| {
                    let _held = held;
                    context.writes.take::<f32>(0)?.fill(3.0);
                    Ok(())
                })?;
                Some((self.subject.clone(), 3.0))
            }
            Kind::Access => {
                b.access("subject", self.subject.write(), move |context| {
                    let _held = held;
                    context.writes.take::<f32>(0)?.fill(4.0);
                    Ok(())
                })?;
                Some((self.subject.clone(), 4.0))
            }
            Kind::HostFunction => {
                b.host_fn("subject", device, move || {
                    let _held = held;
                    Ok(())
                });
                None
            }
            Kind::CopyIn => Some((b.copy(&self.host, device)?, 5.0)),
            Kind::CopyOut => Some((b.copy(&self.subject, Place::Host)?, 1.0)),
            Kind::RecordAndWait => {
                let source = StreamKey::new(device, StreamType::Compute, 0);
                let target = StreamKey::new(device, StreamType::Compute, 1);
                b.fill(&self.subject, 6.0f32)?;
                let event = b.record(source);
                b.wait(target, source, &event);
                Some((self.subject.clone(), 6.0))
            }
            Kind::Touch => {
                b.touch(device, &[&self.subject]);
                None
            }
            Kind::AllocateAndRelease => {
                let scratch = b.allocate(device, DType::F32, &[ELEMENTS])?;
                b.fill(&scratch, 8.0f32)?;
                let out = b.add(&scratch, &self.ones)?;
                b.release(&scratch);
                Some((out, 9.0))
            }
            Kind::Barrier => {
                b.barrier_with("subject", move || {
                    let _held = held;
                    Ok(())
                });
                None
            }
            Kind::GlobalSync => {
                b.global_sync();
                None
            }
            Kind::Push | Kind::CleanUp => {
                let launch = LaunchOptions { clean_up: kind == Kind::CleanUp, ..LaunchOptions::default() };
                b.on_workers().with_launch_options(launch).push(
                    "subject",
                    device,
                    [self.subject.update()],
                    move || {
                        drop(held);
                        Ok(())
                    },
                );
                Some((self.subject.clone(), 1.0))
            }
            Kind::RawCall => {
                b.call_cuda("subject", device, [self.subject.update()], move |_| {
                    drop(held);
                    Ok(())
                })?;
                Some((self.subject.clone(), 1.0))
            }
            Kind::InSection | Kind::SectionBegin | Kind::SectionEnd => {
                let section = b.begin_section(&[&self.resource], &[])?;
                let out = b.add(&self.ones, &self.subject)?;
                b.end_section(section, &[&out]);
                Some((out, 2.0))
            }
            // Submitted by the program.
            Kind::Run | Kind::Loop | Kind::Branch => None,
        })
    }
}
