//! Draws the tensors of a seed, and instructions over them.

use std::fmt::Write;

use streamvm::instructions::Role;
use streamvm::{Access, DType, DeviceId, Layout, MemoryKind, Op, Place, Shape, StreamKey, StreamType, Tensor};

use crate::support::random::Random;

/// The devices of the engines that run the lists.
pub(super) const DEVICES: [DeviceId; 6] =
    [DeviceId::cpu(0), DeviceId::cpu(1), DeviceId::cuda(0), DeviceId::cuda(1), DeviceId::sim(0), DeviceId::sim(1)];

/// Elements of every view that an instruction uses.
pub(super) const ELEMENTS: usize = 4;

/// Lanes of each type of stream.
const LANES: usize = 2;

/// Number of tensors with their own storage.
const OWNERS: usize = 8;

/// The first owners, on the host, one of each size: sources of copies to memory that only copies can write.
const SOURCES: usize = 2;

/// The name, in texts, of the only resource of critical sections.
const RESOURCE: &str = "c0";

/// Number of instructions after the first writes of the tensors.
const INSTRUCTIONS: usize = 10;

/// A tensor of `f32` with its own storage, or a view of such a tensor.
#[derive(Clone, Debug)]
pub struct Declared {
    /// The place of the storage.
    pub place: Place,
    /// The kind of memory of the storage.
    pub memory: MemoryKind,
    /// The tensor that owns the storage, if this is a view.
    pub owner: Option<usize>,
    /// Elements of the storage, for an owner.
    pub elements: usize,
    /// For a view: the distance between its elements, in elements.
    pub stride: usize,
    /// For a view: the index of its first element in the storage.
    pub offset: usize,
}

/// The operation of an instruction.
#[derive(Clone, PartialEq, Debug)]
pub enum What {
    /// A kernel.
    Call(Op),
    /// A copy.
    Copy,
    /// A fill.
    Fill(f32),
    /// An allocation without values.
    Allocate,
    /// A release of a tensor's memory.
    Release,
    /// A touch, which only gives order.
    Touch,
    /// A function of this role.
    Function(Role),
    /// A barrier, with a callback or without.
    Barrier(bool),
    /// A record of the event of this number.
    Record(usize),
    /// A wait for the event of this number, which an instruction before records on the source stream.
    Wait {
        /// The event.
        event: usize,
        /// The source stream.
        source: StreamKey,
    },
    /// The begin of a critical section over the only resource.
    Begin,
    /// The end of that section.
    End,
    /// A global sync.
    GlobalSync,
}

impl What {
    /// The name of the operation in the text of a list, for the census.
    pub fn word(&self) -> &'static str {
        match self {
            What::Call(_) => "call",
            What::Copy => "copy",
            What::Fill(_) => "fill",
            What::Allocate => "alloc",
            What::Release => "release",
            What::Touch => "touch",
            What::Function(Role::Function) => "fn",
            What::Function(Role::Host) => "host",
            What::Function(Role::Access) => "access",
            What::Function(Role::Cuda) => "cuda",
            What::Function(Role::Program | Role::ProgramWithCode | Role::Blocks) => "program",
            What::Function(Role::Push) => "push",
            What::Barrier(_) => "barrier",
            What::Record(_) => "record",
            What::Wait { .. } => "wait",
            What::Begin => "begin",
            What::End => "end",
            What::GlobalSync => "sync",
        }
    }

    /// Does it run a function, which a text cannot contain?
    pub fn has_code(&self) -> bool {
        matches!(self, What::Function(_) | What::Barrier(true))
    }

    /// Does the parser of lists accept it on such a stream, for any operands?
    fn fits(&self, stream: StreamKey) -> bool {
        let barrier = stream.stream_type == StreamType::Barrier;
        match self {
            What::Barrier(_) | What::GlobalSync => barrier,
            What::Record(_) | What::Wait { .. } => true,
            _ => !barrier,
        }
    }
}

/// One instruction.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// Its stream.
    pub stream: StreamKey,
    /// Its operation.
    pub what: What,
    /// Tensors by number, inputs first, with the access to each.
    pub uses: Vec<(usize, Access)>,
}

/// Tensors, and instructions over them.
#[derive(Clone, Debug)]
pub struct Scene {
    /// Owners, then views.
    pub tensors: Vec<Declared>,
    /// The first writes of the tensors, then all other instructions.
    pub instructions: Vec<Drawn>,
}

impl Scene {
    /// Draws the scene of a seed.
    pub fn draw(seed: u64) -> Scene {
        let mut random = Random::new(seed, 0);
        let tensors = tensors(&mut random);
        let mut scene = Scene { tensors, instructions: Vec::new() };
        for tensor in 0..OWNERS {
            // Sometimes a tensor is left unwritten.
            if tensor < SOURCES || !random.once_in(24) {
                let written = scene.first_write(tensor, &mut random);
                scene.instructions.push(written);
            }
        }
        for _ in 0..INSTRUCTIONS {
            let drawn = scene.instruction(&mut random);
            scene.instructions.push(drawn);
        }
        // Sometimes a section is left open.
        if scene.is_section_open() && !random.once_in(8) {
            let stream = scene.stream(&What::End, &[], &mut random);
            scene.instructions.push(Drawn { stream, what: What::End, uses: Vec::new() });
        }
        scene
    }

    /// Is the last begin or end of a section a begin?
    fn is_section_open(&self) -> bool {
        let mut marks = self.instructions.iter().filter(|drawn| matches!(drawn.what, What::Begin | What::End));
        marks.next_back().is_some_and(|last| last.what == What::Begin)
    }

    /// The events that are recorded so far, with their streams.
    fn recorded(&self) -> Vec<(usize, StreamKey)> {
        let event =
            |drawn: &Drawn| if let What::Record(event) = drawn.what { Some((event, drawn.stream)) } else { None };
        self.instructions.iter().filter_map(event).collect()
    }

    /// The instruction that writes a whole owner: a fill on its own device, or for upload memory a copy from the host.
    fn first_write(&self, tensor: usize, random: &mut Random) -> Drawn {
        let Declared { memory, elements, .. } = self.tensors[tensor];
        if memory == MemoryKind::Upload && !self.home(tensor).kind.is_cpu() {
            let stream = StreamKey::new(DeviceId::cpu(0), StreamType::HostToDevice, 0);
            let source = usize::from(elements > ELEMENTS);
            return Drawn { stream, what: What::Copy, uses: vec![(source, Access::Read), (tensor, Access::Write)] };
        }
        let stream = StreamKey::new(self.home(tensor), StreamType::Compute, 0);
        Drawn { stream, what: What::Fill(random.below(9) as f32), uses: vec![(tensor, Access::Write)] }
    }

    /// The device of a tensor; `cpu:0` for a tensor on the host.
    fn home(&self, tensor: usize) -> DeviceId {
        self.tensors[tensor].place.device().unwrap_or(DeviceId::cpu(0))
    }

    /// The tensor that owns the storage of this one.
    pub fn owner(&self, tensor: usize) -> usize {
        self.tensors[tensor].owner.unwrap_or(tensor)
    }

    /// Number of elements of the tensor, which has one axis.
    pub(super) fn shape(&self, tensor: usize) -> usize {
        let Declared { owner, elements, .. } = self.tensors[tensor];
        if owner.is_some() { ELEMENTS } else { elements }
    }

    fn instruction(&self, random: &mut Random) -> Drawn {
        let recorded = self.recorded();
        let what = match random.below(46) {
            0..6 => What::Call(*random.pick(&[Op::Neg, Op::Relu, Op::Add, Op::Mul])),
            6..15 => What::Copy,
            15..19 => What::Fill(random.below(9) as f32),
            19 => What::Allocate,
            20 => {
                if random.once_in(4) {
                    What::Release
                } else {
                    What::Touch
                }
            }
            21 => What::Touch,
            22..27 => What::Function(Role::Function),
            27..29 => What::Function(Role::Access),
            29..31 => What::Function(Role::Host),
            31..33 => What::Function(Role::Cuda),
            33..35 => What::Function(Role::Push),
            35..38 => What::Barrier(!random.once_in(4)),
            38 => What::Record(recorded.len()),
            39 => What::GlobalSync,
            40 | 41 if recorded.is_empty() => What::Record(0),
            40 | 41 => {
                let &(event, source) = random.pick(&recorded);
                What::Wait { event, source }
            }
            42 | 43 => What::Function(Role::Program),
            _ if self.is_section_open() => What::End,
            _ => What::Begin,
        };
        let mut uses = self.uses(&what, random);
        let stream = self.stream(&what, &uses, random);
        if let What::Function(Role::Access) = what {
            uses.truncate(1);
        }
        Drawn { stream, what, uses }
    }

    fn uses(&self, what: &What, random: &mut Random) -> Vec<(usize, Access)> {
        let tensor = |random: &mut Random| random.below(self.tensors.len());
        // Kernels over tensors of one device are drawn more often than by chance, since an engine mostly runs those.
        let first = tensor(random);
        let kind = |tensor: usize| (self.tensors[tensor].place, self.shape(tensor));
        let alike = |random: &mut Random| {
            let like: Vec<usize> = (0..self.tensors.len()).filter(|other| kind(*other) == kind(first)).collect();
            if random.once_in(6) { tensor(random) } else { *random.pick(&like) }
        };
        let mut some = |most: usize, accesses: &[Access]| -> Vec<(usize, Access)> {
            (0..random.below(most + 1)).map(|_| (tensor(random), *random.pick(accesses))).collect()
        };
        match what {
            What::Call(op) => {
                let mut uses: Vec<_> = (0..op.arity()).map(|_| (alike(random), Access::Read)).collect();
                uses.push((alike(random), Access::Write));
                uses
            }
            What::Copy => vec![(tensor(random), Access::Read), (tensor(random), Access::Write)],
            What::Fill(_) => vec![(first, Access::Write)],
            What::Allocate | What::Release => vec![(self.owner(first), Access::Write)],
            What::Touch => some(2, &[Access::Read]),
            What::Barrier(code) => {
                if *code {
                    some(2, &[Access::Read])
                } else {
                    Vec::new()
                }
            }
            What::Function(Role::Access) => {
                vec![(first, *random.pick(&[Access::Read, Access::Write, Access::ReadWrite]))]
            }
            What::Function(Role::Function | Role::Host | Role::Program | Role::ProgramWithCode | Role::Blocks) => {
                let mut uses = some(2, &[Access::Read, Access::Read, Access::Write, Access::ReadWrite]);
                uses.push((first, Access::Read));
                uses
            }
            What::Function(Role::Cuda | Role::Push) => some(3, &[Access::Read, Access::ReadWrite]),
            What::Record(_) | What::Wait { .. } | What::Begin | What::End | What::GlobalSync => Vec::new(),
        }
    }

    /// Draws a stream: mostly one on the device of a tensor that the instruction uses, and of a type that fits the operation.
    fn stream(&self, what: &What, uses: &[(usize, Access)], random: &mut Random) -> StreamKey {
        let used = (!uses.is_empty() && !random.once_in(4)).then(|| self.home(random.pick(uses).0));
        let device = used.unwrap_or_else(|| *random.pick(&DEVICES));
        let of = match what {
            What::Barrier(_) | What::GlobalSync if !random.once_in(5) => StreamType::Barrier,
            What::Call(_) if !random.once_in(3) => StreamType::Compute,
            What::Begin | What::End if !random.once_in(10) => StreamType::Critical,
            _ => *random.pick(&StreamType::ALL),
        };
        StreamKey::new(device, of, random.below(LANES) as u32)
    }

    /// Handles of the tensors.
    pub fn handles(&self) -> Vec<Tensor> {
        let mut handles: Vec<Tensor> = Vec::new();
        for declared in &self.tensors {
            handles.push(match declared.owner {
                None => {
                    let shape = Shape::new(&[declared.elements]).expect("a small shape");
                    Tensor::unbound(declared.place, declared.memory, DType::F32, shape)
                }
                Some(owner) => {
                    let shape = Shape::new(&[ELEMENTS]).expect("a small shape");
                    let layout = Layout::with_strides(shape, &[declared.stride], declared.offset);
                    handles[owner].view(layout.expect("one axis")).expect("it lies within its storage")
                }
            });
        }
        handles
    }

    /// The declarations of all tensors, as a text.
    pub fn declarations(&self) -> String {
        let mut text = String::new();
        for (number, declared) in self.tensors.iter().enumerate() {
            let Declared { place, memory, owner, elements, stride, offset } = declared;
            let memory = if memory.is_page_locked() { format!(" {memory}") } else { String::new() };
            let _ = match owner {
                None => writeln!(text, "t{number} = tensor {place}{memory} f32[{elements}]"),
                Some(owner) => {
                    writeln!(text, "t{number} = view t{owner} f32[{ELEMENTS}] strides {stride} offset {offset}")
                }
            };
        }
        let _ = writeln!(text, "{RESOURCE} = critical \"port\"");
        text
    }

    /// The line of an instruction as a text of its own, after the line that it refers to: the record that a wait names, and the begin of the
    /// section that an end names. `None` as for [`line`](Scene::line).
    pub fn alone(&self, drawn: &Drawn) -> Option<String> {
        let before = match drawn.what {
            What::Wait { event, source } => Some((What::Record(event), source)),
            What::End => Some((What::Begin, StreamKey::new(DeviceId::cpu(0), StreamType::Critical, 0))),
            _ => None,
        };
        let before = before.map(|(what, stream)| Drawn { stream, what, uses: Vec::new() });
        let lines = before.iter().chain([drawn]).enumerate().map(|(number, drawn)| self.line(number, drawn));
        Some(self.declarations() + &lines.collect::<Option<String>>()?)
    }

    /// The line of an instruction; `None` if a text cannot express it.
    pub fn line(&self, number: usize, drawn: &Drawn) -> Option<String> {
        let Drawn { stream, what, uses } = drawn;
        let names: Vec<String> = uses.iter().map(|(tensor, _)| format!("t{tensor}")).collect();
        let inputs = names[..names.len().saturating_sub(1)].join(" ");
        let output = uses.last().map(|(tensor, _)| format!("{inputs} -> t{tensor} f32[{}]", self.shape(*tensor)));
        let declared = |role: &str| {
            let uses = uses.iter().map(|(tensor, access)| match access {
                Access::Read => format!(" read t{tensor}"),
                Access::Write => format!(" write t{tensor}"),
                Access::ReadWrite => format!(" update t{tensor}"),
            });
            format!("\"{role}\"{}", uses.collect::<String>())
        };
        let rest = match what {
            What::Call(op) => format!("{op} {}", output?),
            What::Copy => output?,
            What::Fill(value) => format!("{value:?} {}", output?),
            What::Allocate => output?,
            What::Release | What::Touch => names.join(" "),
            What::Function(Role::Host) | What::Barrier(true) if !uses.is_empty() => return None,
            What::Function(_) => declared(what.word()),
            What::Barrier(true) => "\"barrier\"".to_owned(),
            What::Record(event) => format!("e{event}"),
            What::Wait { event, source } => format!("{source} by e{event}"),
            What::Begin | What::End => RESOURCE.to_owned(),
            What::Barrier(false) | What::GlobalSync => String::new(),
        };
        Some(format!("%{number} {} {stream} {rest}\n", what.word()))
    }

    /// Does the parser of lists accept such an instruction on its stream, for any operands?
    pub fn fits(&self, drawn: &Drawn) -> bool {
        drawn.what.fits(drawn.stream)
    }
}

fn tensors(random: &mut Random) -> Vec<Declared> {
    let mut tensors = Vec::new();
    for source in 0..SOURCES {
        let (place, memory) = (Place::Host, MemoryKind::Device);
        tensors.push(Declared { place, memory, owner: None, elements: (source + 1) * ELEMENTS, stride: 1, offset: 0 });
    }
    for _ in SOURCES..OWNERS {
        let (place, memory) = match random.below(DEVICES.len() + 2) {
            0 | 1 => (Place::Host, MemoryKind::Device),
            device => {
                let memory = *random.pick(&[
                    MemoryKind::Device,
                    MemoryKind::Device,
                    MemoryKind::Device,
                    MemoryKind::Pinned,
                    MemoryKind::Upload,
                ]);
                (DEVICES[device - 2].into(), memory)
            }
        };
        let elements = if random.once_in(3) { 2 * ELEMENTS } else { ELEMENTS };
        tensors.push(Declared { place, memory, owner: None, elements, stride: 1, offset: 0 });
    }
    for owner in 0..OWNERS {
        let Declared { place, memory, elements, .. } = tensors[owner];
        if elements > ELEMENTS {
            let (stride, offset) = if random.once_in(2) { (2, random.below(2)) } else { (1, random.below(5)) };
            tensors.push(Declared { place, memory, owner: Some(owner), elements, stride, offset });
        } else if random.once_in(6) {
            // A view that repeats one element, which can be read but not written.
            tensors.push(Declared { place, memory, owner: Some(owner), elements, stride: 0, offset: random.below(4) });
        }
    }
    tensors
}
