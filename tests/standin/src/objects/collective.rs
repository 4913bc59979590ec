//! The communicators of the stand-in for NCCL, and its collectives, which move bytes between processes through files of a folder.
//!
//! Each rank writes what it contributes to a file, waits for the files of the others, and takes from them what it needs. A message is a file that its receiver
//! removes; its sender waits for that, as NCCL's kernel does.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::memory::Span;

/// Takes the lock of all that moves bytes.
pub(crate) type Moving<'m> = &'m dyn Fn() -> MutexGuard<'m, ()>;

/// The end of a communicator that one rank has.
#[derive(Debug)]
pub(crate) struct Comm {
    /// The handle of its context.
    pub(crate) context: usize,
    pub(crate) folder: PathBuf,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) aborted: AtomicBool,
    /// All ranks have joined.
    complete: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// Calls that have returned and are not queued yet, with the handle of their stream.
    pub(crate) called: Vec<(usize, Vec<Call>)>,
    /// How often the caller has asked since then.
    pub(crate) asked: u32,
    /// The error of what could not be queued; 0 for none.
    pub(crate) error: i32,
    /// The number of collectives so far, and of messages by sender, receiver, and whether this rank receives them.
    collectives: u64,
    messages: HashMap<(usize, usize, bool), u64>,
    /// The files of the last collectives, which the others may still read.
    read: Vec<PathBuf>,
}

/// The data movement of a call of NCCL. Operations and types are NCCL's numbers.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Moves {
    AllReduce(i32),
    Reduce(i32, usize),
    Broadcast(usize),
    AllGather,
    ReduceScatter(i32),
    Send(usize),
    Receive(usize),
}

/// A call of NCCL, with device addresses.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Call {
    pub(crate) name: &'static str,
    pub(crate) moves: Moves,
    pub(crate) datatype: i32,
    /// Bytes of the argument `count`.
    pub(crate) bytes: usize,
    pub(crate) input: usize,
    pub(crate) output: usize,
}

/// The work of calls that were queued as one command.
pub(crate) struct Collective {
    pub(crate) comm: Arc<Comm>,
    pub(crate) parts: Vec<Part>,
}

/// A call with its memory.
pub(crate) struct Part {
    pub(crate) call: Call,
    pub(crate) input: Option<Span>,
    pub(crate) output: Option<Span>,
    /// The name of its files, without the rank.
    name: String,
}

impl Comm {
    pub(crate) fn new(context: usize, folder: PathBuf, rank: usize, size: usize) -> Comm {
        let (aborted, complete) = (AtomicBool::new(false), AtomicBool::new(false));
        Comm { context, folder, rank, size, aborted, complete, state: Mutex::default() }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the other ranks something by a file.
    pub(crate) fn tell(&self, what: &str) -> std::io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        fs::write(self.folder.join(format!("{what}-{}", self.rank)), "")
    }

    /// The number of ranks that have told something.
    pub(crate) fn told(&self, what: &str) -> usize {
        (0..self.size).filter(|rank| self.folder.join(format!("{what}-{rank}")).exists()).count()
    }

    /// Whether all ranks have joined.
    pub(crate) fn is_complete(&self) -> bool {
        if !self.complete.load(Ordering::Relaxed) {
            self.complete.store(self.told("joined") == self.size, Ordering::Relaxed);
        }
        self.complete.load(Ordering::Relaxed)
    }

    /// The bytes that a call reads, and those that it writes, on this rank.
    pub(crate) fn extent(&self, call: &Call) -> (usize, usize) {
        let (bytes, size) = (call.bytes, self.size);
        match call.moves {
            Moves::AllReduce(_) => (bytes, bytes),
            Moves::Reduce(_, root) => (bytes, if root == self.rank { bytes } else { 0 }),
            Moves::Broadcast(root) => {
                if root == self.rank {
                    (bytes, 0)
                } else {
                    (0, bytes)
                }
            }
            Moves::AllGather => (bytes, bytes * size),
            Moves::ReduceScatter(_) => (bytes * size, bytes),
            Moves::Send(_) => (bytes, 0),
            Moves::Receive(_) => (0, bytes),
        }
    }

    /// A call with its memory, which gets its number.
    pub(crate) fn part(&self, state: &mut State, call: Call, input: Option<Span>, output: Option<Span>) -> Part {
        let message = match call.moves {
            Moves::Send(to) => Some((self.rank, to, false)),
            Moves::Receive(from) => Some((from, self.rank, true)),
            _ => None,
        };
        let count = match message {
            Some(ends) => state.messages.entry(ends).or_default(),
            None => &mut state.collectives,
        };
        *count += 1;
        let name = match message {
            Some((from, to, _)) => format!("message-{from}-{to}-{count}"),
            None => format!("collective-{count}"),
        };
        Part { call, input, output, name }
    }
}

impl Part {
    fn file(&self, comm: &Comm, rank: usize) -> PathBuf {
        match self.call.moves {
            Moves::Send(_) | Moves::Receive(_) => comm.folder.join(&self.name),
            _ => comm.folder.join(format!("{}-{rank}", self.name)),
        }
    }

    /// Whether the rank has a file for others.
    fn contributes(&self, rank: usize) -> bool {
        match self.call.moves {
            Moves::Broadcast(root) => rank == root,
            Moves::Receive(_) => false,
            _ => true,
        }
    }

    fn is_message(&self) -> bool {
        matches!(self.call.moves, Moves::Send(_) | Moves::Receive(_))
    }
}

impl Collective {
    /// Runs it, on the thread of its stream, with the lock of all that moves bytes. Ends without a result once the communicator is aborted or its context has ended.
    ///
    /// # Errors
    /// The calls of the ranks do not fit each other, or the system refuses a file.
    pub(crate) fn run(&self, moving: Moving<'_>, has_ended: &dyn Fn() -> bool) -> Result<(), String> {
        let Collective { comm, parts } = self;
        let failed = |error: std::io::Error| format!("{}: {error}", comm.folder.display());
        for part in parts.iter().filter(|part| part.contributes(comm.rank)) {
            let bytes = part.input.as_ref().map(|span| bytes_of(moving, span)).unwrap_or_default();
            let file = part.file(comm, comm.rank);
            let new = file.with_extension("new");
            fs::write(&new, bytes).and_then(|()| fs::rename(&new, &file)).map_err(failed)?;
        }
        for part in parts {
            if matches!(part.call.moves, Moves::Send(_)) {
                continue;
            }
            let ranks = if let Moves::Receive(from) = part.call.moves { from..from + 1 } else { 0..comm.size };
            let files: Vec<PathBuf> = ranks
                .filter(|&rank| part.is_message() || part.contributes(rank))
                .map(|rank| part.file(comm, rank))
                .collect();
            if !self.wait(has_ended, || files.iter().all(|file| file.exists())) {
                return Ok(());
            }
            let all = files.iter().map(fs::read).collect::<Result<Vec<_>, _>>().map_err(failed)?;
            let result = part.result(comm, &all)?;
            if let Some(output) = part.output.as_ref().filter(|_| !result.is_empty()) {
                let _one_at_a_time = moving();
                output.set_valued();
                // SAFETY: the span has as many bytes as the result, and keeps its allocation alive.
                unsafe { output.ptr().copy_from_nonoverlapping(result.as_ptr(), result.len()) };
            }
            if part.is_message() {
                fs::remove_file(&files[0]).map_err(failed)?;
            }
        }
        let sent: Vec<PathBuf> = parts
            .iter()
            .filter(|part| matches!(part.call.moves, Moves::Send(_)))
            .map(|part| part.file(comm, comm.rank))
            .collect();
        self.wait(has_ended, || !sent.iter().any(|file| file.exists()));
        let mine = parts.iter().filter(|part| !part.is_message() && part.contributes(comm.rank));
        let mine: Vec<PathBuf> = mine.map(|part| part.file(comm, comm.rank)).collect();
        if parts.iter().any(|part| matches!(part.call.moves, Moves::AllReduce(_) | Moves::AllGather)) {
            // All ranks have come to these collectives, so nobody reads the files of earlier ones.
            let earlier = std::mem::replace(&mut comm.state().read, mine);
            earlier.iter().try_for_each(fs::remove_file).map_err(failed)?;
        } else {
            comm.state().read.extend(mine);
        }
        Ok(())
    }

    /// Waits until `is_over`; returns false if the communicator is aborted or the context has ended.
    fn wait(&self, has_ended: &dyn Fn() -> bool, is_over: impl Fn() -> bool) -> bool {
        while !is_over() {
            if self.comm.aborted.load(Ordering::Acquire) || has_ended() {
                return false;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        true
    }
}

impl Part {
    /// The bytes that this rank gets.
    fn result(&self, comm: &Comm, all: &[Vec<u8>]) -> Result<Vec<u8>, String> {
        let Call { name, moves, datatype, bytes, .. } = self.call;
        let whole = if let Moves::ReduceScatter(_) = moves { bytes * comm.size } else { bytes };
        if let Some(other) = all.iter().position(|other| other.len() != whole) {
            let (found, rank) = (all[other].len(), comm.rank);
            return Err(format!("{name} of {whole} bytes on rank {rank}: rank {other} has {found} bytes"));
        }
        let combined = |operation: i32| {
            let (first, others) = all.split_first().ok_or_else(|| format!("{name} without ranks"))?;
            let mut result = first.clone();
            others.iter().try_for_each(|other| fold(datatype, operation, &mut result, other))?;
            if operation == AVERAGE {
                divide(datatype, &mut result, comm.size)?;
            }
            Ok::<_, String>(result)
        };
        match moves {
            Moves::AllReduce(operation) => combined(operation),
            Moves::Reduce(operation, root) if root == comm.rank => combined(operation),
            Moves::ReduceScatter(operation) => {
                Ok(combined(operation)?[comm.rank * bytes..(comm.rank + 1) * bytes].to_vec())
            }
            Moves::Broadcast(root) if root != comm.rank => Ok(all[0].clone()),
            Moves::AllGather => Ok(all.concat()),
            Moves::Receive(_) => Ok(all[0].clone()),
            Moves::Reduce(..) | Moves::Broadcast(_) | Moves::Send(_) => Ok(Vec::new()),
        }
    }
}

fn bytes_of(moving: Moving<'_>, span: &Span) -> Vec<u8> {
    let _one_at_a_time = moving();
    let mut bytes = vec![0; span.range.len()];
    // SAFETY: the span has these bytes, and keeps its allocation alive.
    unsafe { span.ptr().copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
    bytes
}

/// `ncclAvg`.
const AVERAGE: i32 = 4;

/// Applies `combine` to the elements of both.
fn each<const N: usize>(result: &mut [u8], other: &[u8], combine: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
    let (result, _) = result.as_chunks_mut::<N>();
    result.iter_mut().zip(other.as_chunks::<N>().0).for_each(|(one, other)| *one = combine(*one, *other));
}

fn fold(datatype: i32, operation: i32, result: &mut [u8], other: &[u8]) -> Result<(), String> {
    macro_rules! with {
        ($t:ty, $sum:expr, $product:expr) => {{
            let combine = |a: $t, b: $t| -> $t {
                match operation {
                    1 => $product(a, b),
                    2 => {
                        if a > b {
                            a
                        } else {
                            b
                        }
                    }
                    3 => {
                        if a < b {
                            a
                        } else {
                            b
                        }
                    }
                    _ => $sum(a, b),
                }
            };
            each(result, other, |a, b| combine(<$t>::from_ne_bytes(a), <$t>::from_ne_bytes(b)).to_ne_bytes());
        }};
    }
    macro_rules! integers {
        ($t:ty) => {
            with!($t, <$t>::wrapping_add, <$t>::wrapping_mul)
        };
    }
    match datatype {
        0 => integers!(i8),
        1 => integers!(u8),
        2 => integers!(i32),
        3 => integers!(u32),
        4 => integers!(i64),
        5 => integers!(u64),
        7 => with!(f32, |a, b| a + b, |a, b| a * b),
        8 => with!(f64, |a, b| a + b, |a, b| a * b),
        other => return Err(format!("the stand-in combines no elements of type {other}")),
    }
    Ok(())
}

fn divide(datatype: i32, result: &mut [u8], by: usize) -> Result<(), String> {
    let copy = result.to_vec();
    match datatype {
        7 => each(result, &copy, |a, _| (f32::from_ne_bytes(a) / by as f32).to_ne_bytes()),
        8 => each(result, &copy, |a, _| (f64::from_ne_bytes(a) / by as f64).to_ne_bytes()),
        other => return Err(format!("the stand-in has no mean of type {other}")),
    }
    Ok(())
}
