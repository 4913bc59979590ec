//! Critical sections in drawn programs: each is over one to three resources, and functions check that no resource is held twice at one time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use streamvm::program::Program;
use streamvm::{Critical, CriticalSection, DeviceId, Error, InstructionsBuilder, Section, Tensor, Vm};

use crate::Random;
use crate::compiled::blocks::By;

/// How many resources there are.
const RESOURCES: usize = 3;

/// The name in programs of another resource, in whose place a run has the first one.
const SECOND_NAME: &str = "second name";

/// The resources of drawn programs, which one engine uses. Clones are the same ones, also in several threads.
#[derive(Clone)]
pub(super) struct Resources {
    criticals: [Critical; RESOURCES],
    /// In the place of the first resource while a program is recorded.
    second_name: Critical,
    /// Which of them a section is over that is open, in a run, in a list or of a thread.
    held: Arc<[AtomicBool; RESOURCES]>,
    drawn: Arc<[AtomicUsize; 2]>,
}

impl Resources {
    pub(super) fn new() -> Resources {
        Resources {
            criticals: ["port", "disk", "bell"].map(Critical::new),
            second_name: Critical::new(SECOND_NAME),
            held: Arc::default(),
            drawn: Arc::default(),
        }
    }

    /// The same, but sections over them are no longer exclusive with those over the others: for a test that overlaps are found.
    pub(super) fn apart(&self) -> Resources {
        Resources { held: self.held.clone(), drawn: self.drawn.clone(), ..Resources::new() }
    }

    /// How many sections were drawn over several resources, and over one under two names.
    pub(super) fn drawn(&self) -> [usize; 2] {
        std::array::from_fn(|kind| self.drawn[kind].load(Ordering::Relaxed))
    }

    /// Puts the first resource in the place of the one that has its second name.
    pub(super) fn bind(&self, program: &mut Program) {
        if program.criticals().contains(&SECOND_NAME) {
            program.bind_critical(SECOND_NAME, &self.criticals[0]).expect("a section is over it");
        }
    }

    /// One to three of them, in a drawn order. The first one may be there twice, under both of its names.
    fn draw(&self, draw: &mut Random, by: By<'_>) -> Chosen {
        let mut names: Vec<usize> = (0..=RESOURCES).collect();
        let count = 1 + draw.below(3);
        let names: Vec<usize> = (0..count).map(|_| names.swap_remove(draw.below(names.len()))).collect();
        let critical = |&name: &usize| match by {
            By::Recording(_) if name == RESOURCES => self.second_name.clone(),
            _ => self.criticals[name % RESOURCES].clone(),
        };
        let mut numbers: Vec<usize> = names.iter().map(|name| name % RESOURCES).collect();
        numbers.sort_unstable();
        numbers.dedup();
        self.drawn[0].fetch_add(usize::from(numbers.len() > 1), Ordering::Relaxed);
        self.drawn[1].fetch_add(usize::from(numbers.len() < count), Ordering::Relaxed);
        Chosen { criticals: names.iter().map(critical).collect(), numbers, held: self.held.clone() }
    }

    /// Submits a list with a section over drawn resources.
    ///
    /// # Errors
    /// Those of the engine.
    pub(super) fn submit_list(&self, draw: &mut Random, device: DeviceId, vm: &Vm) -> Result<(), Error> {
        let chosen = self.draw(draw, By::Engine(vm));
        let mut builder = InstructionsBuilder::new();
        let section = builder.begin_section(&chosen.references(), &[])?;
        let (entering, leaving) = (chosen.clone(), chosen);
        builder.host_fn("enters", device, move || entering.enter().map_err(Into::into));
        builder.host_fn("leaves", device, move || {
            std::thread::yield_now();
            leaving.leave();
            Ok(())
        });
        builder.end_section(section, &[]);
        vm.submit(builder.finish()).map(drop)
    }
}

/// The resources of one section.
#[derive(Clone)]
struct Chosen {
    criticals: Vec<Critical>,
    /// Each resource once.
    numbers: Vec<usize>,
    held: Arc<[AtomicBool; RESOURCES]>,
}

impl Chosen {
    fn references(&self) -> Vec<&Critical> {
        self.criticals.iter().collect()
    }

    /// Notes that the section has begun.
    ///
    /// # Errors
    /// One of its resources is held.
    fn enter(&self) -> Result<(), &'static str> {
        let is_held = self.numbers.iter().filter(|&&number| self.held[number].swap(true, Ordering::SeqCst)).count() > 0;
        if is_held { Err("a section begins within another one over the same resource") } else { Ok(()) }
    }

    /// Notes that the section ends.
    fn leave(&self) {
        self.numbers.iter().for_each(|&number| self.held[number].store(false, Ordering::SeqCst));
    }
}

/// The sections of one program, or of calls that are made eagerly.
pub(super) struct Sections<'v> {
    resources: Resources,
    draw: Random,
    /// The open section, with the device that checks it.
    open: Option<(OpenSection<'v>, Chosen, DeviceId)>,
}

enum OpenSection<'v> {
    Entered(CriticalSection<'v>),
    Recorded(Section),
}

impl<'v> Sections<'v> {
    /// Sections over drawn ones of these resources.
    pub(super) fn new(resources: &Resources, draw: Random) -> Sections<'v> {
        Sections { resources: resources.clone(), draw, open: None }
    }

    /// Begins a section with the feed `x`, or ends the open one with the result `y`, which is no feed of the program. Functions on `device` check it.
    ///
    /// # Errors
    /// Those of the engine or of the recording.
    pub(super) fn draw(&mut self, device: DeviceId, x: &Tensor, y: &Tensor, by: By<'v>) -> Result<(), Error> {
        if self.open.is_some() {
            return self.end(&[y], by);
        }
        let chosen = self.resources.draw(&mut self.draw, by);
        let begun = match by {
            By::Engine(vm) => OpenSection::Entered(vm.enter_section(&chosen.references(), &[x])?),
            By::Recording(r) => OpenSection::Recorded(r.begin_section(&chosen.references(), &[x])?),
        };
        self.open = Some((begun, chosen.clone(), device));
        by.call_fn("enters", device, Vec::new(), move |_| chosen.enter().map_err(Into::into))
    }

    /// Ends the open section, if one is.
    ///
    /// # Errors
    /// As for [`draw`](Sections::draw).
    pub(super) fn end(&mut self, results: &[&Tensor], by: By<'v>) -> Result<(), Error> {
        let Some((open, chosen, device)) = self.open.take() else { return Ok(()) };
        by.call_fn("leaves", device, Vec::new(), move |_| {
            chosen.leave();
            Ok(())
        })?;
        match (open, by) {
            (OpenSection::Entered(section), _) => section.end(results).map(drop),
            (OpenSection::Recorded(section), By::Recording(r)) => r.end_section(section, results),
            (OpenSection::Recorded(_), By::Engine(_)) => unreachable!("a recording ends what it has begun"),
        }
    }
}
