//! Drawn programs with a bounded size: compiled once, they compute for each size what the same calls over tensors of that size compute eagerly.

use streamvm::program::{CompileOptions, Dim, Program};
use streamvm::{DType, DeviceId, Error, Lane, ProgramError, Tensor, Vm};

use crate::Random;
use crate::compiled::blocks::By;
use crate::compiled::{Drawn, ROWS, Views, calls, check_plan, elements};
use crate::program::{Failing, Verdict};

/// The largest number of rows.
const MOST: usize = 2 * ROWS + 1;

/// The number of rows of each run, in turn.
const SIZES: [usize; 6] = [MOST, ROWS, 6, MOST - 1, 6, ROWS + 1];

/// Compares a drawn program with a bounded size, over `devices`; returns the number of its runs, or 0 for one that cannot be recorded.
///
/// # Panics
/// If a result differs, or the memory plan is wrong.
pub fn compare_bounded(vm: &Vm, seed: u64, devices: &[DeviceId], options: &CompileOptions) -> u64 {
    match try_compare_bounded(vm, seed, devices, options) {
        Ok((runs, _)) => runs,
        Err(Verdict { failing, text }) => panic!("{failing:?}: {text}"),
    }
}

/// Compares a drawn program over `devices` with eager calls, several runs with different sizes in flight. Returns the number of its runs,
/// and its views: none for calls that do something else for other sizes, which a recording refuses.
///
/// # Errors
/// The result that differs, or the memory plan that is wrong.
///
/// # Panics
/// If the engine refuses what it must take.
pub(super) fn try_compare_bounded(
    vm: &Vm,
    seed: u64,
    devices: &[DeviceId],
    options: &CompileOptions,
) -> Result<(u64, Views), Verdict> {
    let mut draw = Random::new(seed, 0);
    let drawn = Drawn::new(vm, devices[0], &mut draw);
    // No parameter: a parameter has one size. What calls may write is a copy of the third feed.
    let over = |tensors: [Tensor; 3], by: By<'_>| {
        let [a, b, c] = tensors;
        calls(&mut Random::new(drawn.program_seed, 0), &[a, b, (&c * 1i64)?], devices, &drawn, by)
    };
    let program = vm.record_bounded("drawn", |r| {
        let rows = || Dim::within("rows", ROWS..=MOST);
        let feed = |name: &str| r.bounded_feed(name, devices[0], DType::I32, &[rows(), rows()]);
        let results = over([feed("a")?, feed("b")?, feed("c")?], By::Recording(r))?;
        results.iter().enumerate().try_for_each(|(place, tensor)| r.fetch(format!("f{place}"), tensor))
    });
    let mut program = match program {
        Ok(program) => program,
        Err(Error::Program { error, .. }) if matches!(*error, ProgramError::NotRecordable { .. }) => {
            return Ok(Default::default());
        }
        Err(error) => panic!("seed {seed}: {error}"),
    };
    let text = program.to_string();
    let parsed = Program::parse(&text).expect("it parses back");
    let at = |program: &Program, rows: usize| program.at(&[rows]).expect("the size fits").to_string();
    let same = parsed.to_string() == text && SIZES.iter().all(|rows| at(&parsed, *rows) == at(&program, *rows));
    if !same {
        let text = format!("seed {seed}: the text parses to something else:\n{text}\n{parsed}");
        return Err(Verdict { failing: Failing::Differs, text });
    }
    drawn.sections.iter().for_each(|resources| resources.bind(&mut program));
    let views = Views::of(&program);
    let executable = vm.compile(program, &[], options).expect("it compiles");
    check_plan(executable.compiled(), seed)?;
    let mut runs = Vec::new();
    for (round, rows) in SIZES.into_iter().enumerate() {
        let tensors = [(); 3].map(|()| {
            let elements: Vec<i32> = (0..rows * rows).map(|_| draw.below(15) as i32 - 7).collect();
            vm.from_slice(&elements, &[rows, rows]).expect("a tensor").to(devices[0]).expect("a copy")
        });
        let expected = elements(&over(tensors.clone(), By::Engine(vm)).expect("eager calls are accepted"));
        let _lane = Lane(round as u32 % 2).enter();
        let [a, b, c] = &tensors;
        runs.push((rows, expected, executable.run(&[("a", a), ("b", b), ("c", c)]).expect("it is submitted")));
    }
    for (rows, expected, mut run) in runs {
        let found = elements(&run.take());
        if found != expected {
            let compiled = executable.compiled();
            let text = format!("seed {seed}, {rows} rows, {options:?}: {found:?}, expected {expected:?}\n{compiled}");
            return Err(Verdict { failing: Failing::Differs, text });
        }
    }
    Ok((SIZES.len() as u64, views))
}
