//! What has failed is told for as long as somebody can ask, however much fails meanwhile.
//!
//! The engine forgets what nobody can ask for. The model here never forgets: it is a list of all that was submitted, with
//! what each instruction reads and writes and whether it fails. Programs are drawn from a seed; tickets, tensors, variables
//! and futures are held across many failures, asked several times in any order, and dropped. The engines keep as little as
//! they can ([`VmBuilder::remember_failures`](streamvm::VmBuilder)), so what is forgotten too soon is found by short programs.

#![allow(clippy::print_stdout, reason = "says what was drawn, with --nocapture")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use streamvm::{DType, Error, Failure, FnContext, FnError, Mode, Passed, Tensor, Ticket, Var, Vm, VmBuilder};
use streamvm_tests::{CPU, ClosedGate, Random, block_on, cases, each_seed, failure_of, on_device, submit};

fn refuse(_: &mut FnContext<'_>) -> Result<(), FnError> {
    Err("no luck".into())
}

/// Root causes: the name of the instruction that failed.
type Root = Option<String>;

fn root(result: Result<(), Error>) -> Root {
    match result {
        Ok(()) => None,
        Err(Error::Failed(failure)) => Some(failure.what.clone()),
        Err(error) => panic!("{error}"),
    }
}

/// Something that instructions read and write, with what became of its last write.
struct Thing {
    handle: Handle,
    root: Root,
}

enum Handle {
    Var(Var),
    Tensor(Tensor),
}

impl Handle {
    fn read(&self) -> streamvm::Use<'_> {
        match self {
            Handle::Var(var) => var.read(),
            Handle::Tensor(tensor) => tensor.read(),
        }
    }

    fn write(&self) -> streamvm::Use<'_> {
        match self {
            Handle::Var(var) => var.write(),
            Handle::Tensor(tensor) => tensor.write(),
        }
    }

    fn update(&self) -> streamvm::Use<'_> {
        match self {
            Handle::Var(var) => var.update(),
            Handle::Tensor(tensor) => tensor.update(),
        }
    }

    fn ready(&self) -> Passed {
        match self {
            Handle::Var(var) => var.ready().expect("it is this engine's"),
            Handle::Tensor(tensor) => tensor.ready().expect("it was submitted"),
        }
    }

    fn wait(&self) -> Result<(), Error> {
        match self {
            Handle::Var(var) => var.wait(),
            Handle::Tensor(tensor) => tensor.wait(),
        }
    }
}

/// What is held, to be asked later, each with what it must say.
struct Held<'vm> {
    things: Vec<Thing>,
    tickets: Vec<(Ticket<'vm>, Root)>,
    futures: Vec<(Passed, Root)>,
}

struct Program<'vm> {
    vm: &'vm Vm,
    random: Random,
    held: Held<'vm>,
    /// Of those that failed, in program order, whom no wait has been told.
    uncollected: BTreeMap<usize, String>,
    /// Failures that the callback of a dropped future may have been told.
    perhaps_told: BTreeSet<String>,
    /// Where each root cause stands in program order.
    places: BTreeMap<String, usize>,
    names: usize,
}

/// What a run has drawn and seen.
#[derive(Default, Debug)]
struct Seen {
    failed: usize,
    skipped: usize,
    asked: usize,
    told: usize,
}

impl<'vm> Program<'vm> {
    fn new(vm: &'vm Vm, random: Random) -> Program<'vm> {
        let held = Held { things: Vec::new(), tickets: Vec::new(), futures: Vec::new() };
        Program {
            vm,
            random,
            held,
            uncollected: BTreeMap::new(),
            perhaps_told: BTreeSet::new(),
            places: BTreeMap::new(),
            names: 0,
        }
    }

    fn thing(&mut self) -> usize {
        if self.held.things.len() < 3 || (self.held.things.len() < 12 && self.random.once_in(8)) {
            let handle = match self.random.below(2) {
                0 => Handle::Var(self.vm.var()),
                _ => Handle::Tensor(self.vm.full(CPU, DType::F32, &[1], 0.0).expect("a fill")),
            };
            self.held.things.push(Thing { handle, root: None });
            return self.held.things.len() - 1;
        }
        self.random.below(self.held.things.len())
    }

    /// Submits a list of a few instructions, or of many, and keeps its ticket, maybe.
    fn submit(&mut self, seen: &mut Seen) {
        let count = if self.random.once_in(10) { 30 } else { 1 + self.random.below(3) };
        let mut first = None;
        let mut builder = streamvm::InstructionsBuilder::new();
        for _ in 0..count {
            let on_workers = self.random.once_in(2);
            let mut builder = builder.on_lane(self.random.below(2) as u32);
            let mut builder = if on_workers { builder.on_workers() } else { builder.on_compute() };
            let fails = self.random.once_in(3);
            let name = format!("function {}", self.names);
            self.names += 1;
            let outcome = move |context: &mut FnContext<'_>| {
                context.take_all()?;
                if fails { Err("no luck".into()) } else { Ok(()) }
            };
            let mut root = fails.then(|| name.clone());
            if self.random.once_in(4) {
                // Nothing carries it but its ticket.
                builder.call_fn(name.clone(), CPU, [], outcome).expect("it is well formed");
            } else {
                let (read, written) = (self.thing(), self.thing());
                let update = self.random.once_in(2);
                let things = &mut self.held.things;
                let target = &things[written].handle;
                let mut uses = vec![if update { target.update() } else { target.write() }];
                let mut poison = if update { things[written].root.clone() } else { None };
                if read != written {
                    uses.insert(0, things[read].handle.read());
                    poison = things[read].root.clone().or(poison);
                }
                builder.call_fn(name.clone(), CPU, uses, outcome).expect("it is well formed");
                if poison.is_some() {
                    root = poison;
                    seen.skipped += 1;
                }
                things[written].root = root.clone();
            }
            if root.as_deref() == Some(name.as_str()) {
                self.uncollected.insert(self.names, name.clone());
                self.places.insert(name, self.names);
                seen.failed += 1;
            }
            first = first.or(root);
        }
        let ticket = self.vm.submit(builder.finish()).expect("it is taken");
        if self.random.once_in(4) {
            self.held.futures.push((ticket.future(), first.clone()));
        }
        if self.random.once_in(3) {
            self.held.tickets.push((ticket, first));
        }
    }

    fn told(&mut self, found: Root, expected: Root, what: &str, seen: &mut Seen) {
        seen.asked += 1;
        seen.told += usize::from(expected.is_some());
        assert_eq!(found, expected, "{what}");
        let place = expected.and_then(|root| self.places.get(&root));
        place.into_iter().for_each(|place| drop(self.uncollected.remove(place)));
    }

    fn ask(&mut self, seen: &mut Seen) {
        match self.random.below(8) {
            0 | 1 if !self.held.tickets.is_empty() => {
                let place = self.random.below(self.held.tickets.len());
                let (ticket, root_) = &self.held.tickets[place];
                let (found, expected) = (root(ticket.wait()), root_.clone());
                self.told(found, expected, "a ticket", seen);
            }
            2 if !self.held.tickets.is_empty() => {
                let place = self.random.below(self.held.tickets.len());
                let (ticket, root) = &self.held.tickets[place];
                let future = (ticket.future(), root.clone());
                self.held.futures.push(future);
            }
            3 | 4 if !self.held.things.is_empty() => {
                let place = self.random.below(self.held.things.len());
                let thing = &self.held.things[place];
                let (found, expected) = (root(thing.handle.wait()), thing.root.clone());
                self.told(found, expected, "a thing", seen);
            }
            5 if !self.held.things.is_empty() => {
                let place = self.random.below(self.held.things.len());
                let thing = &self.held.things[place];
                let future = (thing.handle.ready(), thing.root.clone());
                self.held.futures.push(future);
            }
            6 if !self.held.futures.is_empty() => {
                let place = self.random.below(self.held.futures.len());
                let (future, expected) = self.held.futures.swap_remove(place);
                self.told(root(block_on(future)), expected, "a future", seen);
            }
            _ => self.let_go(),
        }
    }

    fn let_go(&mut self) {
        let Held { things, tickets, futures } = &mut self.held;
        match self.random.below(4) {
            0 if tickets.len() > 4 => drop(tickets.swap_remove(self.random.below(tickets.len()))),
            1 if futures.len() > 4 => {
                let (_, root) = futures.swap_remove(self.random.below(futures.len()));
                self.perhaps_told.extend(root);
            }
            2 if things.len() > 4 => drop(things.swap_remove(self.random.below(things.len()))),
            _ => {}
        }
    }

    /// Asks everything that is held, twice, and for the first failure that nobody was told.
    fn ask_all(&mut self, seen: &mut Seen) {
        for _ in 0..2 {
            for place in 0..self.held.tickets.len() {
                let (ticket, expected) = &self.held.tickets[place];
                let (found, expected) = (root(ticket.wait()), expected.clone());
                self.told(found, expected, "a ticket at the end", seen);
            }
            for place in 0..self.held.things.len() {
                let thing = &self.held.things[place];
                let (found, expected) = (root(thing.handle.wait()), thing.root.clone());
                self.told(found, expected, "a thing at the end", seen);
            }
        }
        while let Some((future, expected)) = self.held.futures.pop() {
            self.told(root(block_on(future)), expected, "a future at the end", seen);
        }
    }
}

/// Whether the engines of a seed remember every failure that nobody was told. The others remember two.
fn remember_all(seed: u64) -> bool {
    seed.is_multiple_of(2)
}

/// Every kind of engine, with as little memory for failed points as there can be.
fn engines(seed: u64) -> [(&'static str, VmBuilder); 4] {
    let uncollected = if remember_all(seed) { 10_000 } else { 2 };
    let builder = || Vm::builder().workers(2).remember_failures((seed % 3) as usize, uncollected);
    [
        ("inline", builder().mode(Mode::Inline)),
        ("threads", builder()),
        ("one pool", builder().shared_workers(true)),
        ("stepped", builder().mode(Mode::Simulated { seed })),
    ]
}

/// The program of a seed on every kind of engine.
fn check(seed: u64) -> Seen {
    let mut seen = Seen::default();
    for (name, builder) in engines(seed) {
        let vm = builder.build().expect("an engine");
        let mut program = Program::new(&vm, Random::new(seed, 42));
        for _ in 0..60 {
            match program.random.below(2) {
                0 => program.submit(&mut seen),
                _ => program.ask(&mut seen),
            }
        }
        program.ask_all(&mut seen);
        let left = root(vm.wait_all());
        let fits = left.as_ref().is_none_or(|left| program.uncollected.values().any(|other| other == left));
        assert!(fits, "{name}: {left:?} was told before, or never failed by itself");
        let mut certain = program.uncollected.values().filter(|failed| !program.perhaps_told.contains(*failed));
        let told = left.is_some() || !remember_all(seed);
        assert!(told || certain.next().is_none(), "{name}: nobody was told of {:?}", program.uncollected);
    }
    seen
}

/// Programs on each kind of engine, about 120 instructions each, a third of which fail.
#[test]
fn random_programs_are_told_every_failure_as_by_a_model_that_never_forgets() {
    let mut all = Seen::default();
    let programs = cases(30);
    let ended = each_seed(0..programs, check, |_, seen| {
        all.failed += seen.failed;
        all.skipped += seen.skipped;
        all.asked += seen.asked;
        all.told += seen.told;
        true
    });
    assert_eq!(ended, Ok(()), "the seed hangs");
    println!("{programs} programs on 4 kinds of engines: {all:?}");
    assert!(
        all.failed as u64 > 60 * programs && all.skipped.min(all.told) as u64 > 30 * programs,
        "too little was drawn: {all:?}"
    );
}

/// The first failure of a ticket was forgotten after 131,072 later ones: it then said that all was well.
#[test]
fn what_is_held_across_200_000_failures_is_told_each_time() {
    let vm = Vm::builder().build().expect("an engine");
    let (early, early_future, tensor, var) = (
        submit(&vm, |b| {
            b.host_fn("early", CPU, || Err("no luck".into()));
            Ok(())
        }),
        submit(&vm, |b| {
            b.host_fn("early future", CPU, || Err("no luck".into()));
            Ok(())
        })
        .future(),
        on_device(&vm, &[1.0]),
        vm.var(),
    );
    submit(&vm, |b| b.call_fn("tensor", CPU, [tensor.write()], refuse));
    submit(&vm, |b| b.call_fn("var", CPU, [var.write()], refuse));
    vm.wait_all().expect_err("they have failed");
    let late = submit(&vm, |b| {
        b.host_fn("fine", CPU, || Ok(()));
        b.host_fn("late", CPU, || Err("no luck".into()));
        Ok(())
    });
    let fine = submit(&vm, |b| {
        b.host_fn("fine", CPU, || Ok(()));
        Ok(())
    });
    let pending = (late.future(), tensor.ready().expect("submitted"), var.ready().expect("its own"));
    for _ in 0..200 {
        submit(&vm, |b| {
            (0..1000).for_each(|_| b.host_fn("noise", CPU, || Err("noise".into())));
            Ok(())
        });
    }
    assert_eq!(failure_of(vm.wait_all()).what, "noise");
    for _ in 0..3 {
        assert_eq!(failure_of(early.wait()).what, "early");
        assert_eq!(failure_of(late.wait()).what, "late");
        assert_eq!(fine.wait(), Ok(()));
        assert_eq!(failure_of(tensor.wait()).what, "tensor");
        assert_eq!(failure_of(tensor.to_vec::<f32>()).what, "tensor");
        assert_eq!(failure_of(var.wait()).what, "var");
        assert_eq!(failure_of(block_on(early.future())).what, "early");
        assert_eq!(failure_of(block_on(late.future())).what, "late");
    }
    assert_eq!(failure_of(block_on(early_future)).what, "early future");
    assert_eq!(failure_of(block_on(pending.0)).what, "late");
    assert_eq!(failure_of(block_on(pending.1)).what, "tensor");
    assert_eq!(failure_of(block_on(pending.2)).what, "var");
}

/// `wait_all` once told the oldest of the newest 1,024 failures.
#[test]
fn the_first_failure_is_the_one_that_wait_all_tells_however_many_follow() {
    let vm = Vm::builder().build().expect("an engine");
    for round in 0..3 {
        vm.push(format!("first {round}"), [], || Err("no luck".into())).expect("it is taken");
        vm.push("barrier", [], || Ok(())).expect("it is taken");
        streamvm_tests::until("the first has failed", || vm.stats().in_flight == 0);
        (0..3000).for_each(|_| drop(vm.push("noise", [], || Err("noise".into())).expect("it is taken")));
        assert_eq!(failure_of(vm.wait_all()).what, format!("first {round}"));
        assert_eq!(vm.wait_all(), Ok(()));
    }
}

/// A future that is made ready only after its tensor was healed and more has failed than is remembered.
#[test]
fn a_future_is_told_of_its_write_though_that_is_healed_and_forgotten_by_the_table_meanwhile() {
    for failed_before in [false, true] {
        let vm = Vm::builder().remember_failures(0, 2).build().expect("an engine");
        if failed_before {
            vm.push("before", [], || Err("no luck".into())).expect("it is taken");
            vm.wait_all().expect_err("it has failed");
        }
        let (x, gate, busy) = (on_device(&vm, &[1.0]), ClosedGate::new(), ClosedGate::new());
        let hold = busy.clone();
        // The thread of the callbacks, which makes futures ready, is kept busy until the gate opens.
        let used = vm.var();
        vm.push("use", [used.read()], || Ok(())).expect("it is taken");
        used.on_passed(move |_| hold.pass()).expect("the engine is there");
        busy.wait_entered(1);
        let held = gate.function();
        submit(&vm, |b| {
            b.call_fn("sour", CPU, [x.write()], move |context| {
                held(context)?;
                Err("no luck".into())
            })
        });
        let future = x.ready().expect("it was submitted");
        submit(&vm, |b| b.fill(&x, 7.0));
        gate.open();
        assert_eq!(x.to_vec::<f32>(), Ok(vec![7.0]));
        for _ in 0..50 {
            vm.push("noise", [], || Err("noise".into())).expect("it is taken");
            vm.wait_all().expect_err("it has failed");
        }
        busy.open();
        assert_eq!(failure_of(block_on(future)).what, "sour", "failed before: {failed_before}");
    }
}

/// Nobody can ask for any of these, so nothing of them is kept.
#[test]
fn failures_that_nobody_can_ask_for_take_no_memory() {
    let vm = Vm::builder().build().expect("an engine");
    let weak: Vec<std::sync::Weak<Failure>> = (0..40)
        .map(|_| {
            submit(&vm, |b| {
                (0..1000).for_each(|_| b.host_fn("noise", CPU, || Err("noise".into())));
                Ok(())
            });
            Arc::downgrade(&failure_of(vm.wait_all()))
        })
        .collect();
    // The first list was submitted before anything had failed: its ticket would ask the table.
    let kept = weak[1..].iter().filter(|failure| failure.strong_count() > 0).count();
    assert!(kept <= 12, "{kept} of 39 root causes are kept, each of a list of 1,000");
}
