//! Rules: a fault, and the calls at which it is injected.

use std::fmt;

use streamvm_ep::{DeviceId, Error, Label, MemoryKind};

use crate::faults::gate::Gate;

/// A call of a device or of a stream at which a fault can be injected.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Point {
    /// [`Device::allocate`](streamvm_ep::Device::allocate).
    Allocate,
    /// [`Device::create_stream`](streamvm_ep::Device::create_stream).
    CreateStream,
    /// [`Device::query`](streamvm_ep::Device::query).
    Query,
    /// [`Device::wait`](streamvm_ep::Device::wait).
    HostWait,
    /// [`Stream::begin`](streamvm_ep::Stream::begin).
    Begin,
    /// [`Stream::launch`](streamvm_ep::Stream::launch).
    Launch,
    /// [`Stream::copy`](streamvm_ep::Stream::copy).
    Copy,
    /// [`Stream::fill`](streamvm_ep::Stream::fill).
    Fill,
    /// [`Stream::call`](streamvm_ep::Stream::call).
    Call,
    /// [`Stream::record`](streamvm_ep::Stream::record).
    Record,
    /// [`Stream::wait`](streamvm_ep::Stream::wait).
    Wait,
    /// [`Stream::synchronize`](streamvm_ep::Stream::synchronize).
    Synchronize,
}

impl Point {
    /// Every point, in the order of the enum.
    pub const ALL: [Point; 12] = [
        Point::Allocate,
        Point::CreateStream,
        Point::Query,
        Point::HostWait,
        Point::Begin,
        Point::Launch,
        Point::Copy,
        Point::Fill,
        Point::Call,
        Point::Record,
        Point::Wait,
        Point::Synchronize,
    ];

    /// The name, such as `"launch"`.
    pub const fn name(self) -> &'static str {
        match self {
            Point::Allocate => "allocate",
            Point::CreateStream => "create_stream",
            Point::Query => "query",
            Point::HostWait => "host_wait",
            Point::Begin => "begin",
            Point::Launch => "launch",
            Point::Copy => "copy",
            Point::Fill => "fill",
            Point::Call => "call",
            Point::Record => "record",
            Point::Wait => "wait",
            Point::Synchronize => "synchronize",
        }
    }

    /// Whether it is a call of a stream.
    pub const fn is_of_stream(self) -> bool {
        !matches!(self, Point::Allocate | Point::CreateStream | Point::Query | Point::HostWait)
    }

    /// Whether it is a call of a stream that works on memory.
    pub const fn is_work(self) -> bool {
        matches!(self, Point::Launch | Point::Copy | Point::Fill | Point::Call)
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A fault. The [module](crate::faults) has a table of their effects.
#[derive(Clone, Debug)]
pub enum Fault {
    /// [`Error::Injected`](streamvm_ep::Error::Injected), which names the point.
    Error,
    /// The given error.
    With(Error),
    /// [`Error::OutOfMemory`](streamvm_ep::Error::OutOfMemory), as if the machine had no more memory.
    OutOfMemory,
    /// A failure that is reported later.
    Late,
    /// A panic. It bypasses the panic hook, so that nothing is printed.
    Panic,
    /// The device stops working.
    Lost,
    /// The calling thread blocks until the gate opens.
    Stall(Gate),
    /// No command from this one on passes until the gate opens.
    Hold(Gate),
}

impl Fault {
    /// The name, such as `"late"`.
    pub const fn name(&self) -> &'static str {
        match self {
            Fault::Error => "error",
            Fault::With(_) => "with",
            Fault::OutOfMemory => "out_of_memory",
            Fault::Late => "late",
            Fault::Panic => "panic",
            Fault::Lost => "lost",
            Fault::Stall(_) => "stall",
            Fault::Hold(_) => "hold",
        }
    }

    /// Whether it can be injected at `point`.
    pub const fn fits(&self, point: Point) -> bool {
        match self {
            Fault::Error | Fault::With(_) => !matches!(point, Point::Begin),
            Fault::OutOfMemory => matches!(point, Point::Allocate),
            Fault::Late => point.is_work(),
            Fault::Panic | Fault::Lost | Fault::Stall(_) => true,
            Fault::Hold(_) => point.is_of_stream(),
        }
    }
}

/// A rule that can never have its effect.
#[derive(Clone, PartialEq, thiserror::Error)]
pub enum RuleError {
    /// A fault that the call does not support.
    #[error("{fault} cannot be injected at {point}; the documentation of `faults` has the table of what can")]
    Unfit {
        /// The [name](Fault::name) of the fault.
        fault: &'static str,
        /// The call.
        point: Point,
    },
    /// A filter for instructions, for a call that belongs to none.
    #[error("{point} belongs to no instruction: a rule for it cannot ask for a stream, a number or a name")]
    Unlabelled {
        /// The call.
        point: Point,
    },
    /// A chance that is not a probability.
    #[error("a chance must be between 0 and 1, found {chance}")]
    Chance {
        /// The given chance.
        chance: f64,
    },
}

streamvm_ep::debug_as_display!(RuleError);

/// A fault and the calls at which it is injected: of the calls that match every filter, those that the frequency selects.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(super) point: Point,
    pub(super) fault: Fault,
    pub(super) frequency: Frequency,
    device: Option<DeviceId>,
    kind: Option<MemoryKind>,
    stream: Option<u32>,
    seq: Option<u64>,
    named: Option<String>,
}

/// The selection among the matching calls.
#[derive(Copy, Clone, Debug)]
pub(super) enum Frequency {
    Each,
    Nth(u64),
    From(u64),
    Every(u64),
    Chance(f64),
}

impl Rule {
    /// Injects `fault` at each call at `point`.
    pub fn new(point: Point, fault: Fault) -> Rule {
        let frequency = Frequency::Each;
        Rule { point, fault, frequency, device: None, kind: None, stream: None, seq: None, named: None }
    }

    /// Only at the `n`-th matching call, counted from 0.
    pub fn nth(self, n: u64) -> Rule {
        Rule { frequency: Frequency::Nth(n), ..self }
    }

    /// Only at the `n`-th matching call, counted from 0, and at those after it.
    pub fn from(self, n: u64) -> Rule {
        Rule { frequency: Frequency::From(n), ..self }
    }

    /// Only at every `n`-th matching call: the last of each `n`. 0 is taken as 1.
    pub fn every(self, n: u64) -> Rule {
        Rule { frequency: Frequency::Every(n.max(1)), ..self }
    }

    /// Only with this probability, drawn by the seed of the plan.
    pub fn chance(self, chance: f64) -> Rule {
        Rule { frequency: Frequency::Chance(chance), ..self }
    }

    /// Only on this device.
    pub fn device(self, device: DeviceId) -> Rule {
        Rule { device: Some(device), ..self }
    }

    /// Only for memory of this kind; for [`Point::Allocate`].
    pub fn kind(self, kind: MemoryKind) -> Rule {
        Rule { kind: Some(kind), ..self }
    }

    /// Only for instructions of this stream, by [`Label::stream`](streamvm_ep::Label).
    pub fn stream(self, stream: u32) -> Rule {
        Rule { stream: Some(stream), ..self }
    }

    /// Only for instructions with this number, by [`Label::seq`](streamvm_ep::Label).
    pub fn seq(self, seq: u64) -> Rule {
        Rule { seq: Some(seq), ..self }
    }

    /// Only for instructions with this name, by [`Label::what`](streamvm_ep::Label).
    pub fn named(self, what: &str) -> Rule {
        Rule { named: Some(what.to_owned()), ..self }
    }

    pub(super) fn check(&self) -> Result<(), RuleError> {
        let point = self.point;
        if !self.fault.fits(point) {
            return Err(RuleError::Unfit { fault: self.fault.name(), point });
        }
        if !point.is_of_stream() && (self.stream.is_some() || self.seq.is_some() || self.named.is_some()) {
            return Err(RuleError::Unlabelled { point });
        }
        match self.frequency {
            Frequency::Chance(chance) if !(0.0..=1.0).contains(&chance) => Err(RuleError::Chance { chance }),
            _ => Ok(()),
        }
    }

    pub(super) fn matches(&self, call: &CallSite<'_>) -> bool {
        fn fits<T: PartialEq>(asked: &Option<T>, found: Option<T>) -> bool {
            asked.is_none() || *asked == found
        }
        self.point == call.point
            && fits(&self.device, Some(call.device))
            && fits(&self.kind, call.kind)
            && fits(&self.stream, call.label.map(|label| label.stream))
            && fits(&self.seq, call.label.map(|label| label.seq))
            && self.named.as_deref().is_none_or(|name| call.label.is_some_and(|label| *label.what == *name))
    }
}

/// One call, as the rules see it.
pub(super) struct CallSite<'a> {
    pub(super) point: Point,
    pub(super) device: DeviceId,
    pub(super) kind: Option<MemoryKind>,
    pub(super) label: Option<&'a Label>,
    /// The number of calls of the stream since its label was set.
    pub(super) place: u64,
}
