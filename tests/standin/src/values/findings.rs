//! The findings of the stand-in: kept in memory, written to stderr, and appended to a file if one is named.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The environment variable that names the file to which findings are appended, one a line.
pub(crate) const FILE: &str = "STREAMVM_STANDIN_FINDINGS";

/// Most findings that are kept; later ones are only counted.
const KEPT: usize = 200;

/// The kind of defect of the program that uses the driver.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A wait for an event without a record, which orders nothing.
    NeverRecorded,
    /// A use of a handle that was destroyed, or whose module was unloaded.
    Destroyed,
    /// A use of a number that was never a handle of this kind.
    UnknownHandle,
    /// A call that needs a current context, without one.
    NoContext,
    /// A handle or memory used in a context that it does not belong to.
    WrongContext,
    /// A use of the null stream, or of a stream that waits for it.
    NullStream,
    /// A use of freed memory.
    AfterFree,
    /// Memory freed twice.
    DoubleFree,
    /// An access past the end of an allocation.
    OutOfBounds,
    /// A use of an address that the driver has not allocated.
    UnknownMemory,
    /// An asynchronous copy of memory that is not pinned.
    Pageable,
    /// Memory of the wrong kind for the call, such as a device address where a host address is required.
    WrongMemory,
    /// A command that writes write-combined memory, which the host reads very slowly.
    WriteCombined,
    /// Source and target of a copy share bytes.
    Overlap,
    /// A use of memory of another device without peer access.
    NoPeerAccess,
    /// The host changed the source of a queued copy.
    SourceChanged,
    /// A driver call within a host function.
    CallInHostFunction,
    /// Invalid arguments of a kernel.
    BadArguments,
    /// An access of a kernel to bytes that its arguments do not say it reads, or writes.
    Undeclared,
    /// An access of a kernel at an address that is no multiple of its size.
    Misaligned,
    /// A read of a kernel of a register or of memory that has no value yet.
    Uninitialised,
    /// Two threads of a launch access one byte, one of them writes it, and nothing orders them.
    ThreadRace,
    /// A barrier that not all threads of a block come to.
    Barrier,
    /// A kernel has ended without writing all of its output, or without setting its condition.
    NotWritten,
    /// A kernel does what PTX has no result for, or does not end.
    BrokenKernel,
    /// A module that was to run as PTX has a line that the interpreter does not know.
    UnknownPtx,
    /// A kernel, or a host function, that panicked in the stand-in.
    Panic,
    /// A call that the capture of a graph forbids, or a capture that is not ended as it was begun.
    Capture,
    /// An object that is alive in a context that is destroyed.
    Leak,
    /// A finding of the race detector, with its own name.
    Order(&'static str),
}

impl Kind {
    /// A short name, such as `use after free`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Kind::NeverRecorded => "wait for an event never recorded",
            Kind::Destroyed => "use of a destroyed handle",
            Kind::UnknownHandle => "unknown handle",
            Kind::NoContext => "no current context",
            Kind::WrongContext => "wrong context",
            Kind::NullStream => "use of the null stream",
            Kind::AfterFree => "use after free",
            Kind::DoubleFree => "double free",
            Kind::OutOfBounds => "out of bounds",
            Kind::UnknownMemory => "unknown memory",
            Kind::Pageable => "asynchronous copy of pageable memory",
            Kind::WrongMemory => "wrong kind of memory",
            Kind::WriteCombined => "write-combined memory written by a device",
            Kind::Overlap => "copy onto itself",
            Kind::NoPeerAccess => "no peer access",
            Kind::SourceChanged => "source of a queued copy changed",
            Kind::CallInHostFunction => "driver call in a host function",
            Kind::BadArguments => "bad kernel arguments",
            Kind::Undeclared => "undeclared access",
            Kind::Misaligned => "misaligned access",
            Kind::Uninitialised => "uninitialised read",
            Kind::ThreadRace => "race of threads",
            Kind::Barrier => "divergent barrier",
            Kind::NotWritten => "output not written",
            Kind::BrokenKernel => "broken kernel",
            Kind::UnknownPtx => "unknown PTX",
            Kind::Panic => "panic",
            Kind::Capture => "broken capture",
            Kind::Leak => "leak",
            Kind::Order(name) => name,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The findings so far. Thread safe.
#[derive(Debug)]
pub(crate) struct Findings {
    file: Option<PathBuf>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    kept: Vec<String>,
    not_kept: u64,
}

impl Findings {
    /// No findings yet; they will also be appended to `file`.
    pub(crate) fn new(file: Option<PathBuf>) -> Findings {
        Findings { file, state: Mutex::default() }
    }

    /// Adds a finding: what the program did to which object, and how to fix it.
    pub(crate) fn add(&self, kind: Kind, text: impl fmt::Display) {
        let line = format!("{kind}: {text}");
        let mut state = self.lock();
        if state.kept.len() >= KEPT {
            state.not_kept += 1;
            return;
        }
        self.tell(&line);
        state.kept.push(line);
    }

    /// Removes and returns the findings since the last call, one a line, if they have at most `room` bytes. Otherwise returns their size in
    /// bytes.
    pub(crate) fn take(&self, room: usize) -> Result<String, usize> {
        let mut state = self.lock();
        let mut text: String = state.kept.iter().map(|line| format!("{line}\n")).collect();
        if state.not_kept > 0 {
            text.push_str(&format!("and {} more, which were not kept\n", state.not_kept));
        }
        if text.len() > room {
            return Err(text.len());
        }
        *state = State::default();
        Ok(text)
    }

    /// Writes a finding to stderr and to the file. A finding that cannot be written is still kept.
    fn tell(&self, line: &str) {
        // In one write, because other threads write to stderr too.
        let _ = std::io::stderr().write_all(format!("stand-in driver: {line}\n").as_bytes());
        if let Some(path) = &self.file
            && let Ok(mut file) = OpenOptions::new().create(true).append(true).open(path)
        {
            let _ = file.write_all(format!("{line}\n").as_bytes());
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is a single step, so the state is consistent even after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_kept_in_order_and_appended_to_the_file() {
        let path = std::env::temp_dir().join(format!("standin-findings-{}", std::process::id()));
        let findings = Findings::new(Some(path.clone()));
        findings.add(Kind::DoubleFree, "address 7");
        findings.add(Kind::NoContext, "cuMemAlloc_v2");
        let written = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(written, "double free: address 7\nno current context: cuMemAlloc_v2\n");
        assert_eq!(findings.take(10), Err(written.len()));
        assert_eq!(findings.take(written.len()), Ok(written));
        assert_eq!(findings.take(0), Ok(String::new()));
    }

    #[test]
    fn too_many_are_counted_and_that_is_said() {
        let findings = Findings::new(None);
        (0..KEPT + 3).for_each(|at| findings.add(Kind::NoContext, at));
        let taken = findings.take(usize::MAX).unwrap();
        assert_eq!(taken.lines().count(), KEPT + 1);
        assert!(taken.ends_with("and 3 more, which were not kept\n"), "{taken}");
    }
}
