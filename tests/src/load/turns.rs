//! The turns of the load: each is a small program with a known result.
//!
//! Several threads take turns on one engine. They share one tensor, which every thread replaces, and a variable that guards a plain number:
//! without order the sum would be wrong.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use streamvm::{DType, DeviceId, Error, InstructionsBuilder, Op, Params, Place, Tensor, Ticket, Var, Vm};

use super::functions::Completer;
use super::seats::Seats;
use crate::support::patience::block_on;
use crate::support::random::Random;

/// The text of panics and errors that functions cause on purpose.
pub(super) const ON_PURPOSE: &str = "on purpose";

/// Tensors that a thread keeps, so that memory is freed in another order than it was allocated.
const KEPT: usize = 16;

/// Lanes in use per device.
pub(super) const LANES: u32 = 3;

/// The work of a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Eager operations.
    Eager,
    /// A list over several lanes.
    List,
    /// Copies between all places.
    Copies,
    /// An instruction that failed, and another that read its output.
    Failure,
    /// Memory allocated and released within a list.
    Releases,
    /// A callback and a future.
    Callback,
    /// Work around a barrier.
    Barrier,
    /// An update of the state that all threads share.
    Shared,
    /// Functions that are pushed to workers.
    Functions,
    /// Kernels that the helping threads of the process share, on several lanes at once.
    Large,
}

/// All turns; a turn that comes up more often is listed more than once.
const TURNS: [Turn; 15] = [
    Turn::Eager,
    Turn::Eager,
    Turn::List,
    Turn::List,
    Turn::Copies,
    Turn::Copies,
    Turn::Failure,
    Turn::Releases,
    Turn::Releases,
    Turn::Callback,
    Turn::Barrier,
    Turn::Shared,
    Turn::Functions,
    Turn::Functions,
    Turn::Large,
];

/// Counts of events so far.
#[derive(Debug, Default)]
pub struct Counts {
    /// Turns taken.
    pub turns: AtomicU64,
    /// Failures that were caused and observed.
    pub failures: AtomicU64,
    /// Callbacks that ran.
    pub callbacks: AtomicU64,
    /// Times that a stream ran a function on another thread than the function before.
    pub moves: AtomicU64,
    /// Kernels that were large enough to be divided.
    pub divided: AtomicU64,
}

/// An engine under load, shared by the threads that load it.
#[derive(Debug)]
pub struct Load {
    pub(super) vm: Vm,
    devices: Vec<DeviceId>,
    /// The tensor that every thread reads and replaces.
    common: Mutex<Tensor>,
    /// Orders the accesses to `guarded`.
    var: Var,
    /// Loaded and stored separately by instructions that declare `var`: without order, updates would be lost.
    guarded: Arc<AtomicU64>,
    updates: AtomicU64,
    seats: Arc<Seats>,
    pub(super) completer: Completer,
    /// Counts so far.
    pub counts: Arc<Counts>,
}

/// The state of one thread between its turns.
#[derive(Debug)]
pub(super) struct Hand {
    pub(super) random: Random,
    kept: Vec<Tensor>,
}

impl Load {
    /// A load over every device of `vm`.
    ///
    /// # Errors
    /// The engine cannot allocate the shared tensor.
    pub fn new(vm: Vm) -> Result<Load, Error> {
        let devices = vm.devices().iter().map(|device| device.id).collect();
        let common = Mutex::new(vm.from_slice(&[0.0_f32; 64], &[64])?.to(DeviceId::cpu(0))?);
        let (var, guarded, updates, counts) = (vm.var(), Arc::default(), AtomicU64::new(0), Arc::default());
        let seats = Arc::default();
        Ok(Load { vm, devices, common, var, guarded, updates, seats, completer: Completer::new(), counts })
    }

    /// The engine.
    pub fn vm(&self) -> &Vm {
        &self.vm
    }

    /// Takes turns until `go_on` returns false. `seen` gets the time from submission to the end of waiting, for each turn that waits.
    ///
    /// # Errors
    /// An error of the engine that the load did not cause.
    ///
    /// # Panics
    /// If a result is wrong.
    pub fn run(
        &self,
        seed: u64,
        thread: u64,
        mut go_on: impl FnMut() -> bool,
        mut seen: impl FnMut(Duration),
    ) -> Result<(), Error> {
        let mut hand = Hand { random: Random::new(seed, thread), kept: Vec::new() };
        while go_on() {
            let turn = *hand.random.pick(&TURNS);
            if let Some(latency) = self.take(turn, &mut hand)? {
                seen(latency);
            }
            self.counts.turns.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Waits for everything and checks the shared state.
    ///
    /// # Errors
    /// An error of the engine.
    ///
    /// # Panics
    /// If an update was lost.
    pub fn settle(&self) -> Result<(), Error> {
        self.vm.wait_all()?;
        let (found, made) = (self.guarded.load(Ordering::Relaxed), self.updates.load(Ordering::Relaxed));
        assert_eq!(found, made, "updates of a guarded number were lost");
        Ok(())
    }

    /// Shuts the engine down.
    ///
    /// # Errors
    /// The engine has not shut down within `deadline`, or a failure was never reported.
    pub fn end(self, deadline: Duration) -> Result<(), Error> {
        let Load { vm, completer, .. } = self;
        let ended = vm.shutdown(deadline);
        completer.end();
        ended
    }

    fn take(&self, turn: Turn, hand: &mut Hand) -> Result<Option<Duration>, Error> {
        match turn {
            Turn::Eager => self.eager(hand),
            Turn::List => self.list(hand),
            Turn::Copies => self.copies(hand),
            Turn::Failure => self.failure(hand),
            Turn::Releases => self.releases(hand),
            Turn::Callback => self.callback(hand),
            Turn::Barrier => self.barrier(hand),
            Turn::Shared => self.shared(),
            Turn::Functions => self.functions(hand),
            Turn::Large => self.large(hand),
        }
    }

    pub(super) fn device(&self, hand: &mut Hand) -> DeviceId {
        *hand.random.pick(&self.devices)
    }

    /// A random size that crosses the size classes of the allocator.
    fn size(hand: &mut Hand) -> usize {
        1 + hand.random.below(3000)
    }

    pub(super) fn keep(hand: &mut Hand, tensor: Tensor) {
        if hand.kept.len() < KEPT {
            hand.kept.push(tensor);
        } else {
            let place = hand.random.below(KEPT);
            hand.kept[place] = tensor;
        }
    }

    fn eager(&self, hand: &mut Hand) -> Result<Option<Duration>, Error> {
        let (device, size) = (self.device(hand), Self::size(hand));
        let start = Instant::now();
        let x = self.vm.full(device, DType::F32, &[size], 1.5)?;
        let y = (&x + &x)?.neg()?.relu()?;
        let z = x.maximum(&y)?;
        let sum = z.sum(&[])?.to(Place::Host)?.to_vec::<f32>()?;
        let latency = start.elapsed();
        assert_eq!(sum, [1.5 * size as f32], "a sum over {size} on {device}");
        Self::keep(hand, z);
        Ok(Some(latency))
    }

    fn list(&self, hand: &mut Hand) -> Result<Option<Duration>, Error> {
        let (device, size) = (self.device(hand), Self::size(hand));
        let mut b = InstructionsBuilder::new();
        let mut parts = Vec::new();
        for lane in 0..LANES {
            let mut b = b.on_lane(lane);
            let x = b.full(device, DType::F32, &[size], f64::from(lane) + 1.0)?;
            parts.push(b.mul(&x, &x)?);
        }
        let lane = hand.random.below(LANES as usize) as u32;
        let sum = b.on_lane(lane).add(&parts[0], &parts[1])?;
        b.on_lane(lane).op_into(Op::Add, &[&sum, &parts[2]], Params::default(), &sum)?;
        let host = b.on_lane(lane).copy(&sum, Place::Host)?;
        let latency = self.timed(b)?;
        assert!(host.to_vec::<f32>()?.iter().all(|value| *value == 14.0), "1 + 4 + 9");
        Self::keep(hand, sum);
        Ok(Some(latency))
    }

    pub(super) fn timed(&self, b: InstructionsBuilder) -> Result<Duration, Error> {
        let list = b.finish();
        let start = Instant::now();
        self.vm.submit(list)?.wait()?;
        Ok(start.elapsed())
    }

    fn copies(&self, hand: &mut Hand) -> Result<Option<Duration>, Error> {
        let size = Self::size(hand);
        let values: Vec<f32> = (0..size).map(|index| (index % 97) as f32).collect();
        let mut tensor = self.vm.from_slice(&values, &[size])?;
        for _ in 0..1 + hand.random.below(3) {
            let (device, by_host) = (self.device(hand), hand.random.once_in(2));
            // Not every pair of devices supports direct copies.
            if by_host || tensor.place().device().is_some_and(|from| from.kind != device.kind) {
                tensor = tensor.to(Place::Host)?;
            }
            tensor = tensor.to(device)?;
        }
        let start = Instant::now();
        let found = tensor.to(Place::Host)?.to_vec::<f32>()?;
        let latency = start.elapsed();
        assert!(found == values, "a copy of {size} numbers by way of {}", tensor.place());
        Ok(Some(latency))
    }

    fn failure(&self, hand: &mut Hand) -> Result<Option<Duration>, Error> {
        let cpu = DeviceId::cpu(0);
        let panics = hand.random.once_in(2);
        let mut b = InstructionsBuilder::new();
        let x = b.full(cpu, DType::F32, &[8], 1.0)?;
        b.call_fn("fails on purpose", cpu, [x.update()], move |_| {
            assert!(!panics, "{ON_PURPOSE}");
            Err(ON_PURPOSE.into())
        })?;
        let reader = b.neg(&x)?;
        // A write of the whole tensor heals it.
        b.fill(&x, 2.0)?;
        let healed = b.neg(&x)?;
        let ticket = self.vm.submit(b.finish())?;
        let failed = |result: Result<(), Error>| match result {
            Err(Error::Failed(failure)) => assert!(failure.to_string().contains(ON_PURPOSE), "{failure}"),
            other => panic!("a failure was expected, and this is {other:?}"),
        };
        failed(ticket.wait());
        failed(reader.wait());
        assert_eq!(healed.to(Place::Host)?.to_vec::<f32>()?, [-2.0; 8]);
        self.counts.failures.fetch_add(1, Ordering::Relaxed);
        Ok(None)
    }

    fn releases(&self, hand: &mut Hand) -> Result<Option<Duration>, Error> {
        let (device, size) = (self.device(hand), Self::size(hand));
        let mut b = InstructionsBuilder::new();
        let mut last = b.full(device, DType::F64, &[size], 1.0)?;
        for _ in 0..4 {
            let next = b.add(&last, &last)?;
            b.release(&last);
            last = next;
        }
        let host = b.copy(&last, Place::Host)?;
        b.release(&last);
        let latency = self.timed(b)?;
        assert!(host.to_vec::<f64>()?.iter().all(|value| *value == 16.0));
        // Some of the kept tensors are dropped at once, while other instructions may still use them.
        let rest = hand.random.below(hand.kept.len() + 1);
        hand.kept.truncate(rest);
        Ok(Some(latency))
    }

    fn callback(&self, hand: &mut Hand) -> Result<Option<Duration>, Error> {
        let device = self.device(hand);
        let x = self.vm.full(device, DType::I32, &[16], 7)?;
        let counts = self.counts.clone();
        let kept = x.clone();
        x.on_passed(move |outcome| {
            assert!(outcome.is_ok(), "{outcome:?}");
            // The last handle of a tensor may be dropped on any thread.
            drop(kept);
            counts.callbacks.fetch_add(1, Ordering::Relaxed);
        })?;
        let start = Instant::now();
        let y = (&x + &x)?;
        block_on(y.ready()?)?;
        Ok(Some(start.elapsed()))
    }

    fn barrier(&self, hand: &mut Hand) -> Result<Option<Duration>, Error> {
        let mut b = InstructionsBuilder::new();
        let before = Arc::new(AtomicU64::new(0));
        for lane in 0..LANES {
            let (before, seats, counts) = (before.clone(), self.seats.clone(), self.counts.clone());
            b.on_lane(lane).host_fn("before", DeviceId::cpu(0), move || {
                counts.moves.fetch_add(u64::from(seats.moves(lane)), Ordering::Relaxed);
                before.fetch_add(1, Ordering::Relaxed);
                Ok(())
            });
        }
        let seen = before.clone();
        b.barrier_with("all before", move || {
            assert_eq!(seen.load(Ordering::Relaxed), u64::from(LANES), "a barrier came too early");
            Ok(())
        });
        b.on_lane(hand.random.below(LANES as usize) as u32).host_fn("behind", DeviceId::cpu(0), move || {
            assert_eq!(before.load(Ordering::Relaxed), u64::from(LANES), "something overtook a barrier");
            Ok(())
        });
        self.timed(b).map(Some)
    }

    /// Adds one to every element of the tensor that all threads share, and to the number that the variable guards.
    fn shared(&self) -> Result<Option<Duration>, Error> {
        let mut common = self.common.lock().unwrap_or_else(PoisonError::into_inner);
        let mut b = InstructionsBuilder::new();
        let one = b.on_lane(1).full(DeviceId::cpu(0), DType::F32, &[64], 1.0)?;
        let next = b.on_lane(1).add(&*common, &one)?;
        let guarded = self.guarded.clone();
        b.on_lane(1).call_fn("update", DeviceId::cpu(0), [self.var.update(), next.read()], move |_| {
            let seen = guarded.load(Ordering::Relaxed);
            std::hint::spin_loop();
            guarded.store(seen + 1, Ordering::Relaxed);
            Ok(())
        })?;
        let ticket: Ticket<'_> = self.vm.submit(b.finish())?;
        self.updates.fetch_add(1, Ordering::Relaxed);
        *common = next.clone();
        drop(common);
        ticket.wait()?;
        let values = next.to(Place::Host)?.to_vec::<f32>()?;
        assert!(values.iter().all(|value| *value == values[0]), "a sum is torn: {values:?}");
        Ok(None)
    }
}
