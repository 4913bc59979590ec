//! Shared by the tests of a machine: devices, vectors on them, and short forms of commands.

use std::sync::Arc;

use streamvm_ep::{
    Access, DType, Device, DeviceKind, Error, EventId, InlineFn, Kernel, KernelCall, KernelFn, LateCause, Layout,
    MemoryKind, Op, Operand, Params, Region, Scalar, Shape, Stream,
};

use crate::races::{Detector, Finding, FindingKind};
use crate::sim::{SimConfig, SimMachine};

/// A machine and its devices, with short forms of the commands of a test.
pub(super) struct Bench {
    pub(super) machine: Arc<SimMachine>,
    pub(super) devices: Vec<Arc<dyn Device>>,
}

/// A vector of `i32` on a device.
pub(super) struct Vector {
    pub(super) region: Region,
    pub(super) elements: usize,
}

impl Bench {
    pub(super) fn new(config: SimConfig) -> Bench {
        let machine = SimMachine::new(config, Arc::new(Detector::new()));
        Bench { devices: machine.devices(), machine }
    }

    pub(super) fn seeded(seed: u64) -> Bench {
        Bench::new(SimConfig { seed, devices: 2, ..SimConfig::default() })
    }

    pub(super) fn stream(&self) -> Box<dyn Stream> {
        self.devices[0].create_stream().unwrap()
    }

    pub(super) fn vector(&self, elements: usize) -> Vector {
        self.vector_in(MemoryKind::Device, elements)
    }

    pub(super) fn vector_in(&self, kind: MemoryKind, elements: usize) -> Vector {
        Vector { region: self.devices[0].allocate(kind, elements * 4).unwrap(), elements }
    }

    pub(super) fn recorded(&self, stream: &mut dyn Stream) -> EventId {
        let event = self.machine.events.acquire();
        stream.record(event).unwrap();
        event
    }

    pub(super) fn wait(&self, event: EventId) {
        assert_eq!(self.devices[0].wait(event, None), Ok(true));
    }

    /// The elements as the host sees them after all commands of the stream.
    pub(super) fn read(&self, stream: &mut dyn Stream, vector: &Vector) -> Vec<i32> {
        stream.synchronize().unwrap();
        self.look(vector)
    }

    /// The elements now, without running queued commands.
    pub(super) fn look(&self, vector: &Vector) -> Vec<i32> {
        vector.operand(Access::Read).slice().unwrap().to_vec()
    }

    pub(super) fn kinds(&self) -> Vec<FindingKind> {
        self.machine.detector.findings().iter().map(|finding| finding.kind).collect()
    }

    #[track_caller]
    pub(super) fn one(&self) -> Finding {
        let mut findings = self.machine.detector.take_findings();
        assert_eq!(findings.len(), 1, "{findings:#?}");
        findings.remove(0)
    }

    pub(super) fn causes(&self) -> Vec<LateCause> {
        self.devices[0].take_failures().into_iter().map(|failure| failure.cause).collect()
    }

    pub(super) fn free(&self, vector: Vector) {
        // SAFETY: the vector came from this device; the simulated device handles a free that is too early.
        unsafe { self.devices[0].free(vector.region) };
    }
}

impl Vector {
    pub(super) fn operand(&self, access: Access) -> Operand<'static> {
        self.view(0..self.elements, access)
    }

    pub(super) fn view(&self, part: std::ops::Range<usize>, access: Access) -> Operand<'static> {
        let layout = Layout::contiguous(Shape::new(&[self.elements]).unwrap()).slice(0, part).unwrap();
        // SAFETY: the region holds the elements, and the simulated device keeps it alive while commands are queued.
        unsafe { Operand::new(self.region.base(), DType::I32, layout, access) }
    }
}

pub(super) fn fill(stream: &mut dyn Stream, vector: &Vector, value: i32) {
    stream.fill(&mut vector.operand(Access::Write), Scalar::from(value)).unwrap();
}

pub(super) fn copy(stream: &mut dyn Stream, source: &Vector, target: &Vector) {
    stream.copy(&source.operand(Access::Read), &mut target.operand(Access::Write)).unwrap();
}

/// Adds 1 to each element.
pub(super) fn bump(stream: &mut dyn Stream, vector: &Vector) {
    let mut code = InlineFn::new(|context| {
        context.writes.take::<i32>(0)?.iter_mut().for_each(|element| *element += 1);
        Ok(())
    });
    stream.call(&mut code, &mut [vector.operand(Access::ReadWrite)]).unwrap();
}

/// Runs `code` as a kernel of a unary op.
pub(super) fn launch(stream: &mut dyn Stream, code: KernelFn, operands: &mut [Operand<'static>]) -> Result<(), Error> {
    let kernel = Kernel { op: Op::Neg, device: DeviceKind::SIM, dtype: DType::I32, run: code };
    let inputs = operands.iter().filter(|operand| !operand.access().writes()).count();
    stream.launch(&mut KernelCall::new(kernel, operands, inputs, &Params::default()))
}

/// A pointer to the element at `index` of operand `operand`, which may be out of bounds.
pub(super) fn element(call: &KernelCall<'_, '_>, operand: usize, index: isize) -> *mut i32 {
    call.operands[operand].ptr().cast::<i32>().wrapping_offset(index)
}
