//! What the tests of a world share: a bench of devices, vectors on them, and commands in few words.

use std::sync::Arc;

use crate::closure::InlineFn;
use crate::device::{Device, DeviceKind, LateCause};
use crate::dtype::DType;
use crate::error::Error;
use crate::event::EventId;
use crate::kernel::{Kernel, KernelCall, KernelFn};
use crate::layout::Layout;
use crate::memory::{MemoryKind, Region};
use crate::op::Op;
use crate::operand::{Access, Operand};
use crate::params::Params;
use crate::races::{Detector, Finding, FindingKind};
use crate::scalar::Scalar;
use crate::shape::Shape;
use crate::sim::{SimConfig, SimWorld};
use crate::stream::Stream;

/// A world and its devices, with what a test does to them in few words.
pub(super) struct Bench {
    pub(super) world: Arc<SimWorld>,
    pub(super) devices: Vec<Arc<dyn Device>>,
}

/// A vector of `i32` on a device.
pub(super) struct Vector {
    pub(super) region: Region,
    pub(super) elements: usize,
}

impl Bench {
    pub(super) fn new(config: SimConfig) -> Bench {
        let world = SimWorld::new(config, Arc::new(Detector::new()));
        Bench { devices: world.devices(), world }
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
        let event = self.world.events.acquire();
        stream.record(event).unwrap();
        event
    }

    pub(super) fn wait(&self, event: EventId) {
        assert_eq!(self.devices[0].wait(event, None), Ok(true));
    }

    /// The elements as the host sees them, once the stream has passed everything.
    pub(super) fn read(&self, stream: &mut dyn Stream, vector: &Vector) -> Vec<i32> {
        stream.synchronize().unwrap();
        self.look(vector)
    }

    /// The elements, whatever is queued.
    pub(super) fn look(&self, vector: &Vector) -> Vec<i32> {
        vector.operand(Access::Read).slice().unwrap().to_vec()
    }

    pub(super) fn kinds(&self) -> Vec<FindingKind> {
        self.world.detector.findings().iter().map(|finding| finding.kind).collect()
    }

    #[track_caller]
    pub(super) fn one(&self) -> Finding {
        let mut findings = self.world.detector.take_findings();
        assert_eq!(findings.len(), 1, "{findings:#?}");
        findings.remove(0)
    }

    pub(super) fn causes(&self) -> Vec<LateCause> {
        self.devices[0].take_failures().into_iter().map(|failure| failure.cause).collect()
    }

    pub(super) fn free(&self, vector: Vector) {
        // SAFETY: the vector came from this device; the simulated device bears it to be freed too early.
        unsafe { self.devices[0].free(vector.region) };
    }
}

impl Vector {
    pub(super) fn operand(&self, access: Access) -> Operand {
        self.view(0..self.elements, access)
    }

    pub(super) fn view(&self, part: std::ops::Range<usize>, access: Access) -> Operand {
        let layout = Layout::contiguous(Shape::new(&[self.elements]).unwrap()).slice(0, part).unwrap();
        // SAFETY: the region holds the elements; the simulated device keeps it while commands are queued.
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
pub(super) fn launch(stream: &mut dyn Stream, code: KernelFn, operands: &mut [Operand]) -> Result<(), Error> {
    let kernel = Kernel { op: Op::Neg, device: DeviceKind::Sim, dtype: DType::I32, run: code };
    let inputs = operands.iter().filter(|operand| !operand.access().writes()).count();
    stream.launch(&mut KernelCall { kernel, operands, inputs, params: &Params::default() })
}

/// The element at `index` of operand `operand`, wherever that lies.
pub(super) fn element(call: &KernelCall<'_>, operand: usize, index: isize) -> *mut i32 {
    call.operands[operand].ptr().cast::<i32>().wrapping_offset(index)
}
