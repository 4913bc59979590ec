//! Two threads whose drawn work enters critical sections over the same resources: runs of a program, eager calls, and lists.
//!
//! Each thread has tensors of its own, so its results are those of the same work alone. The properties:
//!
//! * Each thread reads what it reads when the inline engine does the work of the threads one after the other.
//! * No two sections over one resource are open at one time, which functions in them check. Nothing waits for ever: the caller has a limit.
//! * The race detector finds no race, and the verifier finds every dependence of the instructions ordered.

use std::panic::resume_unwind;

use streamvm::program::CompileOptions;
use streamvm::{DeviceId, Error, Executable, Fetches, Lane, Mode, Tensor, Vm};

use crate::compiled::blocks::By;
use crate::compiled::sections::Resources;
use crate::compiled::{Drawn, Elements, calls, elements, record};
use crate::program::{Buffer, Failing, Verdict, caught};
use crate::{CPU, Random};

const DEVICES: [DeviceId; 2] = [CPU, DeviceId::sim(0)];

/// How often each thread does one of the three.
const ROUNDS: usize = 10;

/// What the work of a seed had.
#[derive(Copy, Clone, Default, Debug)]
pub struct SharedSections {
    /// Sections over several resources.
    pub over_several: usize,
    /// Sections over one resource under two names.
    pub under_two_names: usize,
}

/// Judges the work of a seed. If the resources are not `shared`, those of the threads differ, so that their sections may overlap.
///
/// # Errors
/// The property that does not hold.
pub fn judge_shared_sections(seed: u64, shared: bool) -> Result<SharedSections, Verdict> {
    let verdict = |failing| move |text| Verdict { failing, text: format!("seed {seed}: {text}") };
    let alone = Vm::builder().mode(Mode::Inline).sim_devices(1).build().expect("an engine");
    let oracle = Resources::new();
    let expected = [0, 1].map(|thread| Work::new(&alone, seed, thread, &oracle).play(&alone).expect("it is taken"));
    let trace = Buffer::default();
    let resources = Resources::new();
    let (found, races) = caught(|| {
        let builder = Vm::builder().cpu_threads(3).sim_devices(1).detect_races(true).record(trace.clone());
        let vm = builder.build().map_err(|error| error.to_string())?;
        let works = [0, 1].map(|thread| {
            let of_thread = if shared || thread == 0 { resources.clone() } else { resources.apart() };
            Work::new(&vm, seed, thread, &of_thread)
        });
        let found = std::thread::scope(|scope| {
            let threads = works.map(|work| scope.spawn(|| work.play(&vm)));
            threads.map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
        });
        let found = found.into_iter().collect::<Result<Vec<_>, Error>>().map_err(|error| error.to_string())?;
        vm.wait_all().map_err(|error| error.to_string())?;
        Ok((found, vm.races()))
    })
    .map_err(verdict(Failing::Refused))?;
    if let Some(race) = races.first() {
        return Err(verdict(Failing::Race)(format!("{} races; the first: {race}", races.len())));
    }
    for (thread, (found, expected)) in found.iter().zip(&expected).enumerate() {
        if found != expected {
            return Err(verdict(Failing::Differs)(format!("thread {thread} reads {found:?}, expected {expected:?}")));
        }
    }
    trace.judge().map_err(verdict(Failing::Unordered))?;
    let [over_several, under_two_names] = resources.drawn();
    Ok(SharedSections { over_several, under_two_names })
}

/// The work of one thread.
struct Work {
    drawn: Drawn,
    draw: Random,
    resources: Resources,
    executable: Executable,
    thread: u32,
}

/// What a run gives, until it is read.
enum Given {
    Run(Fetches),
    Calls(Vec<Tensor>),
}

impl Work {
    fn new(vm: &Vm, seed: u64, thread: u32, resources: &Resources) -> Work {
        let mut draw = Random::new(seed, 20 + u64::from(thread));
        let drawn = Drawn { sections: Some(resources.clone()), lanes: false, ..Drawn::new(vm, DEVICES[0], &mut draw) };
        // More steps than other programs have, so that most have sections.
        let drawn = Drawn { steps: drawn.steps + 25, ..drawn };
        let program = record(vm, &DEVICES, &drawn);
        let options = CompileOptions { lanes: 1 + draw.below(2) as u32, hand_over_ns: 0, ..CompileOptions::default() };
        let executable = vm.compile(&program, &[("c", &drawn.tensors[2])], &options).expect("it compiles");
        Work { drawn, draw, resources: resources.clone(), executable, thread }
    }

    /// Does it; returns what the thread reads.
    ///
    /// # Errors
    /// Those of the engine.
    fn play(mut self, vm: &Vm) -> Result<Vec<Elements>, Error> {
        let _lane = Lane(2 * self.thread).enter();
        let tensors = &self.drawn.tensors;
        let (mut given, mut read) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            match self.draw.below(3) {
                0 => given.push(Given::Run(self.executable.run(&[("a", &tensors[0]), ("b", &tensors[1])])?)),
                1 => {
                    let mut draw = Random::new(self.drawn.program_seed, 0);
                    given.push(Given::Calls(calls(&mut draw, tensors, &DEVICES, &self.drawn, By::Engine(vm))?));
                }
                _ => {
                    let device = *self.draw.pick(&DEVICES);
                    self.resources.submit_list(&mut self.draw, device, vm)?;
                }
            }
            // Some results are read while the other thread goes on, and others at the end.
            if self.draw.once_in(3) {
                read.extend(given.drain(..).map(Given::read));
            }
        }
        read.extend(given.into_iter().map(Given::read));
        read.push(elements(&tensors[2..]));
        Ok(read)
    }
}

impl Given {
    fn read(self) -> Elements {
        match self {
            Given::Run(run) => elements(&run.iter().map(|(_, tensor)| tensor.clone()).collect::<Vec<_>>()),
            Given::Calls(tensors) => elements(&tensors),
        }
    }
}
