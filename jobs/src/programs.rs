//! What a job plan knows of a compiled program.

use streamvm::Place;
use streamvm::StreamType;
use streamvm::{DType, DeviceId, MemoryKind, Shape};

use streamvm::program::{BufferRole, Compiled, Port, Program, ValueId};

/// A feed or a fetch of a program.
#[derive(Clone, PartialEq, Debug)]
pub struct JobPort {
    /// Its name.
    pub name: String,
    /// The dtype of its elements.
    pub dtype: DType,
    /// Its shape.
    pub shape: Shape,
    /// Where it lives.
    pub place: Place,
}

/// Bytes of memory in one place; of a device, its own memory, and not the page-locked memory of the host that belongs to it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct PlaceBytes {
    /// The device, or the host.
    pub place: Place,
    /// How many bytes.
    pub bytes: usize,
}

impl PlaceBytes {
    /// The memory of a tensor or value; none if it is page-locked memory that belongs to a device.
    pub(crate) fn of(place: Place, memory: MemoryKind, bytes: usize) -> PlaceBytes {
        let counts = place == Place::Host || memory == MemoryKind::Device;
        PlaceBytes { place, bytes: if counts { bytes } else { 0 } }
    }

    /// Adds these bytes to those of the same place.
    pub(crate) fn add_to(self, places: &mut Vec<PlaceBytes>) {
        match places.iter_mut().find(|known| known.place == self.place) {
            Some(known) => known.bytes += self.bytes,
            None if self.bytes == 0 => {}
            None => places.push(self),
        }
    }
}

/// A program of a job plan: what its jobs are called, and what they need, make and take in memory.
#[derive(Clone, PartialEq, Debug)]
pub struct JobProgram {
    /// A short name for its jobs in the printed plan, such as `F`.
    pub label: String,
    /// The name of the program.
    pub name: String,
    /// The device that runs it; of a program over several devices the first that computes.
    pub device: DeviceId,
    /// How many lanes of its devices a run uses.
    pub(crate) lanes: u32,
    /// What a run is given.
    pub feeds: Vec<JobPort>,
    /// What a run makes.
    pub fetches: Vec<JobPort>,
    /// The parameters that a run writes.
    pub written: Vec<String>,
    /// The memory of a run while it is submitted and runs, without its fetches.
    pub arena_bytes: usize,
    /// Where the memory of `arena_bytes` is; each place once. Page-locked memory of devices is left out.
    pub(crate) arenas: Vec<PlaceBytes>,
    /// The buffers that a run has for its fetches, with their sizes; several fetches may be views of one buffer.
    pub(crate) fetched: Vec<(usize, PlaceBytes)>,
    /// For each fetch, its buffer.
    pub(crate) buffer_of: Vec<usize>,
}

impl JobProgram {
    /// What a plan knows of `compiled`, with `label` as the short name of its jobs.
    pub fn new(label: impl Into<String>, compiled: &Compiled) -> JobProgram {
        let program = compiled.program();
        let ports = |ports: &[Port]| ports.iter().map(|port| job_port(program, port)).collect();
        let (mut values, mut fetched, mut written, mut arenas) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut arena_bytes = 0;
        let of_value = |value: ValueId, bytes: usize| {
            let value = program.value(value);
            PlaceBytes::of(value.place, value.memory, bytes)
        };
        for buffer in compiled.buffers() {
            let bytes = buffer.bytes;
            match buffer.role {
                // A flag is not in the memory of the device.
                BufferRole::Feed(_) | BufferRole::Flag(_) => {}
                BufferRole::Parameter(place) if buffer.access.writes() => {
                    written.push(program.parameters[place].name.clone());
                }
                BufferRole::Parameter(_) => {}
                BufferRole::Fetched(value) => {
                    values.push(value);
                    fetched.push((bytes, of_value(value, bytes)));
                }
                BufferRole::Own(value) => {
                    arena_bytes += bytes;
                    of_value(value, bytes).add_to(&mut arenas);
                }
                BufferRole::Arena(arena) => {
                    arena_bytes += bytes;
                    PlaceBytes { place: Place::Device(compiled.arenas()[arena].device), bytes }.add_to(&mut arenas);
                }
            }
        }
        let segments = compiled.segments();
        let computes = segments.iter().find(|segment| segment.stream.stream_type == StreamType::Compute);
        let computes = computes.or(segments.first());
        let device = computes.map_or(DeviceId::cpu(0), |segment| segment.stream.device);
        let buffer = |port: &Port| values.iter().position(|value| *value == port.value);
        let buffer_of = program
            .fetches
            .iter()
            .map(|port| buffer(port).unwrap_or_else(|| unreachable!("the compiler gives each fetch a buffer")));
        JobProgram {
            label: label.into(),
            name: program.name.clone(),
            device,
            lanes: segments.iter().map(|segment| segment.stream.lane + 1).max().unwrap_or(1),
            feeds: ports(&program.feeds),
            fetches: ports(&program.fetches),
            written,
            arena_bytes,
            arenas,
            buffer_of: buffer_of.collect(),
            fetched,
        }
    }
}

fn job_port(program: &Program, port: &Port) -> JobPort {
    let value = program.value(port.value);
    JobPort { name: port.name.clone(), dtype: value.dtype, shape: *port.layout.shape(), place: value.place }
}
