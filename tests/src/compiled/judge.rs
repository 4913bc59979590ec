//! The judges of eager work, over drawn programs that are compiled with drawn options.
//!
//! A seed draws a program, its options and an engine: stepped with two simulated devices, inline, or with threads. The properties:
//!
//! * Runs, several in flight, compute what the same calls compute eagerly, bit for bit.
//! * The race detector finds no race in what the runs do.
//! * The verifier finds every dependence between the instructions of the runs ordered; it also counts waits that no dependence needs.
//! * Values that are needed at one time have memory of their own.

use streamvm::program::{CompileOptions, Mutant};
use streamvm::{DeviceId, Mode, Vm};

use crate::compiled::blocks::{self, try_compare_drawn};
use crate::compiled::bounded::try_compare_bounded;
use crate::compiled::views::Views;
use crate::compiled::{ROUNDS, try_compare};
use crate::program::{Buffer, Counts, Failing, Verdict, caught};
use crate::{CPU, Random};

const SIM: [DeviceId; 2] = [DeviceId::sim(0), DeviceId::sim(1)];

/// A drawn program that passed.
#[derive(Copy, Clone, Default, Debug)]
pub struct Judged {
    /// How often it ran.
    pub runs: u64,
    /// The instructions and waits of the engine, eager calls among them.
    pub counts: Counts,
    /// The waits of programs without empty tensors, and those of them that no dependence needs. What uses an empty tensor waits for the write before it,
    /// because that may fail; the verifier compares bytes, and calls such a wait superfluous.
    pub exact: Counts,
    /// How often it ran with a bounded size.
    pub bounded: u64,
    /// Its fetched views and empty tensors.
    pub views: Views,
}

impl Judged {
    /// Adds another program.
    pub fn add(&mut self, other: Judged) {
        self.runs += other.runs;
        self.bounded += other.bounded;
        self.counts.add(other.counts);
        self.exact.add(other.exact);
        self.views.add(other.views);
    }
}

/// Judges the program of a seed, with one rule of the compiler broken, or none.
///
/// # Errors
/// The property that does not hold.
pub fn judge(seed: u64, mutant: Option<Mutant>) -> Result<Judged, Verdict> {
    let verdict = |failing| move |text| Verdict { failing, text: format!("seed {seed}: {text}") };
    let (trace, mode) = (Buffer::default(), mode_of(seed));
    let (compared, races) = caught(|| {
        let builder = Vm::builder().mode(mode).sim_devices(2).detect_races(true).record(trace.clone());
        let vm = builder.build().map_err(|error| error.to_string())?;
        // Findings say more than a panic that follows from them.
        let compared = caught(|| Ok(compared(&vm, seed, mutant)));
        let races = vm.races();
        Ok((compared, races))
    })
    .map_err(verdict(Failing::Refused))?;
    if let Some(race) = races.first() {
        return Err(verdict(Failing::Race)(format!("{mode:?}: {} races; the first: {race}", races.len())));
    }
    let judged = compared.map_err(verdict(Failing::Refused))??;
    let counts = trace.judge().map_err(verdict(Failing::Unordered))?;
    let exact = if judged.views.empty == 0 { counts } else { Counts::default() };
    Ok(Judged { counts, exact, ..judged })
}

/// Half of the seeds are stepped, so that a seed decides everything.
fn mode_of(seed: u64) -> Mode {
    match seed % 4 {
        0 => Mode::Threaded,
        1 => Mode::Inline,
        _ => Mode::Simulated { seed },
    }
}

/// Compares, and counts the runs and the views.
fn compared(vm: &Vm, seed: u64, mutant: Option<Mutant>) -> Result<Judged, Verdict> {
    let mut draw = Random::new(seed, 3);
    if draw.once_in(3) {
        let device = *draw.pick(&[CPU, SIM[0]]);
        // Step by step, a large block writes more tensors than an instruction may.
        let options = CompileOptions { step_by_step: false, ..options(&mut draw, mutant) };
        return try_compare_drawn(vm, device, seed, &options, &mut blocks::Drawn::default())
            .map(|()| Judged { runs: blocks::ROUNDS as u64, ..Judged::default() });
    }
    let devices: &[DeviceId] = match draw.below(4) {
        0 => &[CPU],
        1 => &SIM[..1],
        _ => &[CPU, SIM[0], SIM[1]],
    };
    let drawn = options(&mut draw, mutant);
    if draw.once_in(4) {
        let compared = try_compare_bounded(vm, seed, devices, &drawn);
        return compared.map(|(runs, views)| Judged { runs, bounded: runs, views, ..Judged::default() });
    }
    let (program, _) = try_compare(vm, seed, devices, &|_| vec![drawn.clone()])?;
    Ok(Judged { runs: ROUNDS as u64, views: Views::of(&program), ..Judged::default() })
}

/// Draws options.
fn options(draw: &mut Random, mutant: Option<Mutant>) -> CompileOptions {
    CompileOptions {
        in_place: !draw.once_in(3),
        fuse: !draw.once_in(4),
        block: if draw.once_in(4) { 4_096 } else { 1 + draw.below(16) },
        lanes: 1 + draw.below(3) as u32,
        hand_over_ns: *draw.pick(&[0, 100, 2_000]),
        check_finite: draw.once_in(8),
        step_by_step: draw.once_in(8),
        time_steps: draw.once_in(4),
        capture: !draw.once_in(4),
        search_steps: *draw.pick(&[0, 20, 1_000]),
        smallest_graph: 1 + draw.below(6),
        mutant,
        ..CompileOptions::default()
    }
}
