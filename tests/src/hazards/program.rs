//! Programs for devices: commands for streams, in the order in which they are issued.
//!
//! Memory is counted in elements of four bytes. A region has 32 elements, so a set of elements is a `u32`, and two accesses overlap if the
//! `&` of their sets is not zero.
//!
//! A `Life` is one allocation of a part of a region, from its begin to its end; the region itself stays with the driver.

use streamvm::Access;

/// Elements of a region.
pub(crate) const ELEMENTS: usize = 32;

/// Devices of a program.
pub(crate) const DEVICES: usize = 2;

/// Most accesses of a program: a set of accesses is a `u64`.
pub(crate) const ACCESSES: usize = 60;

/// The number of an access, in the order of issue.
pub(crate) type Id = usize;

/// A piece of memory from a driver.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Region {
    /// The device whose driver allocated it.
    pub(crate) device: usize,
    pub(crate) kind: RegionKind,
}

/// The kind of memory of a region.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum RegionKind {
    /// The device's own memory; the host does not touch it.
    Device,
    Pinned,
    Pageable,
    /// Memory that no driver allocated, so the detector has no record of it.
    Unknown,
}

/// One allocation of a part of a region.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Life {
    pub(crate) region: usize,
    /// The first of its elements.
    pub(crate) start: usize,
    /// Number of elements: a multiple of 16, so that it is a matrix with rows of 4.
    pub(crate) elements: usize,
}

/// A part of an allocation, as a matrix.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct View {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// Offset from the start of the allocation, in elements; rows are 4 elements apart.
    pub(crate) offset: usize,
}

impl View {
    /// The whole of an allocation with this many elements.
    pub(crate) fn all(elements: usize) -> View {
        View { rows: elements / 4, columns: 4, offset: 0 }
    }

    /// The set of elements, counted from the start of the allocation.
    fn elements(self) -> u32 {
        let row = ((1u32 << self.columns) - 1) << self.offset;
        (0..self.rows).fold(0, |all, index| all | row << (4 * index))
    }
}

/// How an access uses a part of an allocation.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Use {
    pub(crate) life: usize,
    pub(crate) view: View,
    pub(crate) access: Access,
}

/// The kind of work of an instruction.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    Fill,
    Copy,
    /// A kernel: the negative of one operand, or the sum of two.
    Kernel,
    /// A caller's function.
    Call,
    /// A kernel that accesses memory which it does not declare.
    Wrong(Wrong),
}

/// The defect of a kernel.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Wrong {
    /// Reads an operand that it declares as written.
    ReadsOutput,
    /// Writes an operand that it declares as read.
    WritesInput,
    /// Writes after the end of its output.
    WritesPast,
    /// Writes before the start of its output.
    WritesBefore,
    /// Reads after the end of its input.
    ReadsPast,
}

/// A command that is issued.
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
    /// A host thread blocks until the event has passed. Thread 0 issues all commands.
    HostWait {
        thread: usize,
        event: usize,
    },
    /// Thread 0 blocks until all commands that were issued to the stream have passed.
    Synchronize {
        stream: usize,
    },
    /// Thread 0 accesses memory itself.
    Host {
        id: Id,
        touched: Use,
    },
    /// An allocation begins; earlier allocations of the same memory have ended.
    Begin {
        life: usize,
    },
    End {
        life: usize,
    },
    /// A region is returned to its driver.
    Free {
        id: Id,
        region: usize,
    },
    /// An event is returned to its pool.
    ReleaseEvent {
        event: usize,
    },
}

/// The commands of a program, and the objects that they use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Program {
    /// The device of each stream.
    pub(crate) streams: Vec<usize>,
    pub(crate) regions: Vec<Region>,
    pub(crate) lives: Vec<Life>,
    pub(crate) events: usize,
    /// Number of accesses.
    pub(crate) accesses: usize,
    /// Do commands name the allocation that they mean? Otherwise it is the last one that began at that memory.
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
    /// The number of the access, if the command is an access.
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
