//! Programs for devices: what is issued to streams, in the order in which it is issued.
//!
//! Memory is counted in elements of four bytes: a region has 32, so a set of elements is a `u32`, and whether two
//! accesses meet is one `&`.

use streamvm::Access;

/// Elements of a region.
pub(crate) const ELEMENTS: usize = 32;

/// Devices of a program.
pub(crate) const DEVICES: usize = 2;

/// The most accesses of a program: sets of them are `u64`s.
pub(crate) const ACCESSES: usize = 60;

/// The number of an access, in the order of issue.
pub(crate) type Id = usize;

/// A piece of memory that a driver gave.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Region {
    /// The device that gave it.
    pub(crate) device: usize,
    pub(crate) kind: RegionKind,
}

/// What a region is made of.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum RegionKind {
    /// The device's own memory; the host does not touch it.
    Device,
    Pinned,
    Pageable,
    /// No driver gave it: nobody told the detector.
    Unknown,
}

/// One life of a part of a region.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Life {
    pub(crate) region: usize,
    /// The first of its elements.
    pub(crate) start: usize,
    /// How many: a multiple of 16, so a matrix with rows of 4.
    pub(crate) elements: usize,
}

/// A part of a life, as a matrix.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct View {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// From the life's start, in elements; rows are 4 apart.
    pub(crate) offset: usize,
}

impl View {
    /// All of a life of so many elements.
    pub(crate) fn all(elements: usize) -> View {
        View { rows: elements / 4, columns: 4, offset: 0 }
    }

    /// The elements from the life's start.
    fn elements(self) -> u32 {
        let row = ((1u32 << self.columns) - 1) << self.offset;
        (0..self.rows).fold(0, |all, index| all | row << (4 * index))
    }
}

/// What an access does with a part of a life.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Use {
    pub(crate) life: usize,
    pub(crate) view: View,
    pub(crate) access: Access,
}

/// How an instruction does its work.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    Fill,
    Copy,
    /// A kernel: the negative of one operand, or the sum of two.
    Kernel,
    /// A caller's function.
    Call,
    /// A kernel that does what it does not declare.
    Wrong(Wrong),
}

/// What a kernel may do wrong.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Wrong {
    /// Reads what it declares to write.
    ReadsOutput,
    /// Writes what it declares to read.
    WritesInput,
    /// Writes behind the end of its output.
    WritesPast,
    /// Writes before the start of its output.
    WritesBefore,
    /// Reads behind the end of its input.
    ReadsPast,
}

/// Something that is issued.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Command {
    /// An instruction on a stream; the written operand comes last.
    Run {
        id: Id,
        stream: usize,
        work: Work,
        uses: Vec<Use>,
    },
    Record {
        stream: usize,
        event: usize,
    },
    Wait {
        stream: usize,
        event: usize,
    },
    /// A host thread blocks until the event has passed. Thread 0 is the one that issues everything.
    HostWait {
        thread: usize,
        event: usize,
    },
    /// Thread 0 blocks until all that was issued to the stream has passed.
    Synchronize {
        stream: usize,
    },
    /// Thread 0 touches memory itself.
    Host {
        id: Id,
        touched: Use,
    },
    /// A life begins; what was there before has ended.
    Begin {
        life: usize,
    },
    End {
        life: usize,
    },
    /// A region goes back to its driver.
    Free {
        id: Id,
        region: usize,
    },
    /// An event goes back to its pool.
    ReleaseEvent {
        event: usize,
    },
}

/// What is issued, and to what.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Program {
    /// The device of each stream.
    pub(crate) streams: Vec<usize>,
    pub(crate) regions: Vec<Region>,
    pub(crate) lives: Vec<Life>,
    pub(crate) events: usize,
    /// How many accesses were numbered.
    pub(crate) accesses: usize,
    /// Whether commands say which life of the memory they mean; else it is the one that was last begun there.
    pub(crate) names_lives: bool,
    pub(crate) commands: Vec<Command>,
}

impl Program {
    /// The region and elements of a use.
    pub(crate) fn elements(&self, touched: Use) -> (usize, u32) {
        let life = self.lives[touched.life];
        (life.region, touched.view.elements() << life.start)
    }
}

impl Command {
    /// The number of the access, if it is one.
    pub(crate) fn id(&self) -> Option<Id> {
        match self {
            Command::Run { id, .. } | Command::Host { id, .. } | Command::Free { id, .. } => Some(*id),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_names_its_elements() {
        assert_eq!(View::all(16).elements(), 0xFFFF);
        assert_eq!(View { rows: 4, columns: 1, offset: 1 }.elements(), 0x2222);
        assert_eq!(View { rows: 2, columns: 4, offset: 4 }.elements(), 0x0FF0);
        let program = Program {
            streams: vec![0],
            regions: vec![Region { device: 0, kind: RegionKind::Device }],
            lives: vec![Life { region: 0, start: 16, elements: 16 }],
            events: 0,
            accesses: 0,
            names_lives: true,
            commands: vec![],
        };
        let touched = Use { life: 0, view: View { rows: 1, columns: 2, offset: 0 }, access: Access::Read };
        assert_eq!(program.elements(touched), (0, 0x3_0000));
    }
}
