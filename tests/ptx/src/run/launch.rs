//! A launch: blocks one after the other, the threads of a block in turns from barrier to barrier, in an order that a seed draws.

use crate::code::{Module, PARAMETERS, SHARED};
use crate::run::coverage::Coverage;
use crate::run::fault::{Fault, FaultKind, LaunchError};
use crate::run::memory::{Access, Block, Memory};
use crate::run::step::{Next, World, axes};
use crate::run::thread::{State, Thread};

/// The most bytes of shared memory that every device has without opting in to more.
const MOST_SHARED: usize = 48 << 10;

/// What a driver is told at a launch, and how the interpreter runs it.
#[derive(Copy, Clone, Debug)]
pub struct Launch<'l> {
    /// The entry of the module.
    pub kernel: &'l str,
    /// Blocks along each axis, none 0.
    pub grid: [u32; 3],
    /// Threads of a block along each axis, none 0, at most 1024 in all.
    pub block: [u32; 3],
    /// Bytes of shared memory of a block beside what the module declares; at most 48 KiB together.
    pub shared_bytes: u32,
    /// The bytes of the parameters, as the kernel declares them.
    pub parameters: &'l [u8],
    /// Draws in which order blocks run, and threads of a block take turns. The same seed gives the same run.
    pub seed: u64,
    /// The most instructions of one thread: more are taken for an endless loop.
    pub limit: u64,
}

impl Module {
    /// Runs a launch to its end, in the calling thread, and notes in `coverage` which instructions were reached, also if it fails.
    ///
    /// Variables of the module have their declared values when a launch begins.
    ///
    /// # Errors
    ///
    /// [`LaunchError::Refused`] if there is no such kernel, or the sizes do not fit it. [`LaunchError::Fault`] at the first thing that a thread may
    /// not do; see [`FaultKind`]. Memory is then as the threads have left it.
    pub fn launch(&self, launch: &Launch<'_>, memory: &mut Memory, coverage: &mut Coverage) -> Result<(), LaunchError> {
        let refused = |reason: String| LaunchError::Refused { kernel: launch.kernel.to_owned(), reason };
        let entry = self.functions.iter().find(|function| function.is_entry && function.name == launch.kernel);
        let entry = entry.ok_or_else(|| refused("the module has no such entry".to_owned()))?;
        if launch.parameters.len() != entry.parameter_bytes {
            let (given, declared) = (launch.parameters.len(), entry.parameter_bytes);
            return Err(refused(format!("{given} bytes of parameters are given and {declared} are declared")));
        }
        let count = |sizes: [u32; 3]| sizes.into_iter().try_fold(1u32, u32::checked_mul).filter(|&count| count > 0);
        let threads = count(launch.block).filter(|&threads| threads <= entry.most_threads.unwrap_or(1024).min(1024));
        let threads = threads.ok_or_else(|| {
            refused(format!(
                "blocks of {:?} threads are not from 1 to {}",
                launch.block,
                entry.most_threads.unwrap_or(1024)
            ))
        })?;
        let blocks =
            count(launch.grid).ok_or_else(|| refused(format!("{:?} are not numbers of blocks", launch.grid)))?;
        let shared_bytes = self.shared_bytes + launch.shared_bytes as usize;
        if shared_bytes > MOST_SHARED {
            return Err(refused(format!("{shared_bytes} bytes of shared memory are more than {MOST_SHARED}")));
        }
        let mut variables = Vec::new();
        for (variable, address) in &self.variables {
            let bytes = variable.value.clone().unwrap_or_else(|| vec![0; variable.bytes]);
            let access =
                if variable.space == crate::text::syntax::Space::Constant { Access::Read } else { Access::ReadWrite };
            let mut block = Block::new(&variable.name, *address, bytes, access);
            block.watch(true);
            variables.push(block);
        }
        for block in &mut memory.blocks {
            block.watch(true);
        }
        let mut run = Run {
            world: World {
                module: self,
                memory,
                parameters: Block::new("the parameters", PARAMETERS, launch.parameters.to_vec(), Access::Read),
                variables,
                shared: shared(shared_bytes),
                grid: launch.grid,
                block_size: launch.block,
                block: [0; 3],
                block_number: 0,
                interval: 0,
                reached: std::mem::take(&mut coverage.reached),
                limit: launch.limit,
            },
            threads: (0..threads).map(|_| Thread::new(self)).collect(),
            random: Random(launch.seed),
        };
        let mut order: Vec<u32> = (0..blocks).collect();
        run.random.shuffle(&mut order);
        let result = order.into_iter().try_for_each(|number| {
            run.world.block_number = number;
            run.world.block = axes(number, launch.grid);
            run.world.interval = 0;
            run.world.shared = shared(shared_bytes);
            run.block(entry.code.start)
        });
        coverage.reached = std::mem::take(&mut run.world.reached);
        result.map_err(|(thread, operation, what)| {
            let line = self.lines[operation];
            let what = match what {
                FaultKind::Race { attempt, address, memory, other, other_block, other_attempt } => {
                    let other = axes(other[0], launch.block);
                    FaultKind::Race { attempt, address, memory, other, other_block, other_attempt }
                }
                other => other,
            };
            LaunchError::Fault(Box::new(Fault {
                kernel: launch.kernel.to_owned(),
                line,
                text: self.text[line as usize - 1].trim().to_owned(),
                block: run.world.block,
                thread: axes(thread, launch.block),
                what,
            }))
        })
    }
}

fn shared(bytes: usize) -> Block {
    let mut block = Block::new("shared memory", SHARED, vec![0; bytes], Access::WriteFirst);
    block.watch(false);
    block
}

struct Run<'m> {
    world: World<'m>,
    threads: Vec<Thread>,
    random: Random,
}

/// The thread, the operation and what it did.
type Stopped = (u32, usize, FaultKind);

impl Run<'_> {
    /// Runs one block: until all threads have ended.
    fn block(&mut self, first: usize) -> Result<(), Stopped> {
        for (number, thread) in self.threads.iter_mut().enumerate() {
            thread.begin(number as u32, first);
        }
        let mut ready: Vec<usize> = (0..self.threads.len()).collect();
        loop {
            // From one barrier to the next. Threads that pause wait for others, some more often than others.
            while !ready.is_empty() {
                self.random.shuffle(&mut ready);
                let turns = 1 + self.random.below(ready.len());
                for &number in &ready[..turns] {
                    self.turn(number)?;
                }
                ready.retain(|&number| self.threads[number].state == State::Ready);
            }
            if self.threads.iter().all(|thread| thread.state == State::Over) {
                return Ok(());
            }
            self.check_barrier()?;
            self.world.interval += 1;
            for thread in &mut self.threads {
                thread.state = State::Ready;
            }
            ready.extend(0..self.threads.len());
        }
    }

    /// Runs a thread until it pauses, waits or ends.
    fn turn(&mut self, number: usize) -> Result<(), Stopped> {
        let thread = &mut self.threads[number];
        loop {
            match self.world.step(thread) {
                Ok(Next::Go) => {}
                Ok(Next::Pause | Next::Stop) => return Ok(()),
                Err(what) => return Err((thread.number, thread.next - 1, what)),
            }
        }
    }

    /// All threads wait at one barrier, or it is an error of the first that waits.
    fn check_barrier(&self) -> Result<(), Stopped> {
        let waiting = self.threads.iter().find(|thread| thread.state == State::AtBarrier);
        let Some(first) = waiting else { return Ok(()) };
        let different =
            self.threads.iter().find(|thread| thread.state != State::AtBarrier || thread.next != first.next);
        let Some(different) = different else { return Ok(()) };
        let other = axes(different.number, self.world.block_size);
        let others = if different.state == State::Over {
            format!("thread {other:?} has ended")
        } else {
            format!("thread {other:?} waits at line {}", self.world.module.lines[different.next - 1])
        };
        Err((first.number, first.next - 1, FaultKind::DivergentBarrier { others }))
    }
}

/// SplitMix64, by Steele, Lea and Flood.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % end as u64) as usize
    }

    /// Fisher and Yates' shuffle.
    fn shuffle<T>(&mut self, all: &mut [T]) {
        for last in (1..all.len()).rev() {
            all.swap(last, self.below(last + 1));
        }
    }
}
