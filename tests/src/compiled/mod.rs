//! Drawn programs: recorded and compiled, they compute what the same calls compute eagerly, bit for bit.
//!
//! Layer: uses `program` and `support`; is used by `corpus`.
//!
//! [`judge()`] lets every judge of eager work judge drawn programs: the inline engine and eager calls, the race detector, the verifier, and a
//! check of the memory plan. [`compare`], [`compare_bounded`] and [`blocks::compare_drawn`] compare alone, on an engine that the caller chooses.
//! [`waits_of`] counts waits.

pub mod block_scenarios;
pub mod blocks;
mod bounded;
pub mod devices_scenarios;
mod expressions;
mod functions;
mod judge;
pub mod mixed_scenarios;
pub mod plan;
mod sections;
mod shared_sections;
mod views;
mod waits;

pub use bounded::compare_bounded;
pub use expressions::{bits, compare_expression};
pub use judge::{Judged, judge};
pub use shared_sections::{SharedSections, judge_shared_sections};
pub use views::Views;
pub use waits::{Waits, waits_of};

use streamvm::program::{CompileOptions, Compiled, Program, Recorder};
use streamvm::{DType, DeviceId, Error, InstructionsBuilder, Lane, Op, Params, Place, Tensor, Vm};

use crate::compiled::blocks::By;
use crate::compiled::functions::Orders;
use crate::compiled::sections::{Resources, Sections};
use crate::program::{Failing, Verdict};
use crate::{CPU, Random, changed, registered_ops, turned};

const ROWS: usize = 4;

/// Makes `steps` drawn calls over square tensors of `i32` with four rows or more, `given` first; the last of `given` is a parameter, which calls may write. The
/// tensors may be of an engine or of a recording. Some calls are blocks, some are functions, and some lie in critical sections. With several devices, some tensors are copied from
/// one to another. Returns the tensors to compare.
fn calls<'v>(
    draw: &mut Random,
    given: &[Tensor],
    devices: &[DeviceId],
    &Drawn { steps, ref sections, empty, lanes, touches, .. }: &Drawn,
    by: By<'v>,
) -> Result<Vec<Tensor>, Error> {
    let mut tensors = given.to_vec();
    let parameter = given.len() - 1;
    let mut orders = Orders::default();
    // They draw apart, so that the other calls are the same whatever resources there are.
    let mut sections = sections.as_ref().map(|resources| Sections::new(resources, draw.clone()));
    // Draws what is empty and what is fetched as a view, apart from the calls.
    let mut apart = Random::new(draw.clone().next(), 1);
    let mut of_lanes = lanes.then(|| Random::new(draw.clone().next(), 2));
    let mut of_touches = touches.then(|| Random::new(draw.clone().next(), 3));
    for _ in 0..steps {
        let _lane = of_lanes.as_mut().map(|draw| Lane(draw.below(3) as u32).enter());
        if let Some(draw) = &mut of_touches
            && draw.once_in(5)
        {
            let mut builder = InstructionsBuilder::new();
            builder.touch(*draw.pick(devices), &[draw.pick(&tensors)]);
            by.submit(builder.finish())?;
        }
        let some = |draw: &mut Random, tensors: &[Tensor]| {
            // Recent tensors more often, so that chains form; transposed views at times.
            let back = draw.below(4).min(tensors.len() - 1);
            let place = if draw.below(2) == 0 { tensors.len() - 1 - back } else { draw.below(tensors.len()) };
            let tensor = tensors[place].clone();
            if draw.below(6) == 0 { tensor.permute(&[1, 0]) } else { Ok(tensor) }
        };
        let (mut x, mut y) = (some(draw, &tensors)?, some(draw, &tensors)?);
        if devices.len() > 1 && draw.below(4) == 0 {
            x = x.to(devices[draw.below(devices.len())])?;
        }
        if y.place() != x.place() {
            y = y.to(x.place())?;
        }
        if empty && apart.once_in(4) {
            x = views::plus_nothing(&mut apart, &x, &y, by)?;
        }
        let number = if apart.once_in(4) { Some(apart.below(5) as i64) } else { None };
        let result = match draw.below(if sections.is_some() { 16 } else { 15 }) {
            0 | 1 if apart.once_in(5) => mixed(&mut apart, (&x, &y), devices, by)?,
            0 | 1 if let Some(number) = number => (&x + number)?,
            2 if let Some(number) = number => (number - &x)?,
            0 | 1 => (&x + &y)?,
            2 => (&x - &y)?,
            3 => (&x * &y)?,
            4 => x.neg()?,
            5 => x.minimum(&y)?,
            6 => x.matmul(&y)?,
            7 => x.sum_keeping_rows()?,
            8 => x.eq(&y)?.where_(&x, &y)?,
            9 => x.cast(DType::F32)?.cast(DType::I32)?,
            13 => {
                let target = tensors[draw.below(tensors.len() - parameter) + parameter].clone();
                match functions::call(draw, (&x, &y), &target, by)? {
                    Some(new) => new,
                    None => continue,
                }
            }
            14 => {
                orders.draw(draw, devices, by)?;
                continue;
            }
            15 => {
                let result = &tensors[draw.below(tensors.len() - parameter) + parameter];
                let device = functions::host_of(*draw.pick(devices));
                sections.as_mut().map_or(Ok(()), |sections| sections.draw(device, &x, result, by))?;
                continue;
            }
            12 => {
                let none = if empty { Some(x.slice(0, 2..2)?) } else { None };
                block(draw, (&x, &y), none.as_ref(), &tensors[parameter..], by)?;
                continue;
            }
            kind => {
                // A write of a part or of all of an older tensor.
                let target = tensors
                    [if kind == 10 { parameter } else { draw.below(tensors.len() - given.len() + 1) + parameter }]
                .clone();
                // Rows or columns; columns have gaps between their bytes.
                let (axis, from, rows) = (draw.below(2), draw.below(ROWS), x.shape().dims()[0]);
                // Counted from the first row or from the last one: of tensors with more rows they are apart.
                let from = if apart.once_in(3) { rows - 1 - from } else { from };
                let to = if draw.below(2) == 0 { rows } else { from + 1 };
                let to = if empty && apart.once_in(4) { from } else { to };
                let part = if draw.below(3) == 0 { target.clone() } else { target.slice(axis, from..to)? };
                let source = x.slice(axis, 0..part.shape().dims()[axis])?;
                let mut builder = InstructionsBuilder::new();
                if draw.below(3) == 0 {
                    builder.fill(&part, draw.below(9) as i64)?;
                } else if source.overlaps(&part) {
                    builder.op_into(Op::Neg, &[&part], Params::default(), &part)?;
                } else if source.place() == part.place() && apart.once_in(3) {
                    builder.op_into(changed(), &[&part, &source], Params::default(), &part)?;
                } else {
                    builder.copy_into(&source, &part)?;
                }
                by.submit(builder.finish())?;
                continue;
            }
        };
        // Registered ops: elementwise, over tensors, and in place.
        if y.place() != result.place() {
            y = y.to(result.place())?;
        }
        tensors.push(match apart.below(12) {
            0 => result.op(registered_ops()[1], &[&y], Params::default())?,
            1 => turned(&result.contiguous()?, apart.below(40) as i64 - 20)?,
            2 => result.op(changed(), &[&y], Params::default())?,
            _ => result,
        });
    }
    sections.map_or(Ok(()), |mut sections| sections.end(&[], by))?;
    let mut fetched: Vec<Tensor> = (0..3).map(|_| tensors[draw.below(tensors.len())].clone()).collect();
    fetched.push(tensors[tensors.len() - 1].clone());
    views::fetched_also(&mut apart, &tensors, empty, &mut fetched)?;
    Ok(fetched)
}

/// The sum of `x` and of a copy of `y` on another device, or of another dtype: a recording inserts what calls on an engine need, copies to the device of `x` and casts.
fn mixed(draw: &mut Random, (x, y): (&Tensor, &Tensor), devices: &[DeviceId], by: By<'_>) -> Result<Tensor, Error> {
    let y = y.to(*draw.pick(devices))?;
    let y = if draw.once_in(2) { y.cast(DType::F32)? } else { y };
    let sum = match by {
        By::Recording(r) => {
            r.insert_transfers(true)?;
            let sum = x + &y;
            r.insert_transfers(false)?;
            sum?
        }
        By::Engine(_) => (&x.cast(y.dtype())? + &y.to(x.place())?)?,
    };
    sum.cast(DType::I32)
}

/// Makes a block over the device of `x` and `y` that changes one of `targets` there, if one is: a branch or a loop of up to three rounds. On a CPU some
/// blocks call a function. `none` has no elements; a block computes with it, too.
fn block(
    draw: &mut Random,
    (x, y): (&Tensor, &Tensor),
    none: Option<&Tensor>,
    targets: &[Tensor],
    by: By<'_>,
) -> Result<(), Error> {
    let Place::Device(device) = x.place() else { return Ok(()) };
    let there: Vec<&Tensor> = targets.iter().filter(|target| target.place() == x.place()).collect();
    let (kind, place, rounds) = (draw.below(3), draw.below(there.len().max(1)), 1 + draw.below(3) as i32);
    let Some(target) = there.get(place) else { return Ok(()) };
    // Drawn once for all rounds.
    let function = draw.below(4);
    let call = |target: &Tensor| functions::call_in_block(function, device, target, by);
    let is_less = || x.sum(&[])?.lt(&y.sum(&[])?);
    let plus_none = |sum: Tensor| none.map_or(Ok(sum.clone()), |none| &sum + &none.neg()?.sum(&[])?);
    match kind {
        0 => by.if_else(
            &is_less()?,
            || {
                let sum = plus_none((x + y)?)?;
                call(&sum)?;
                target.copy_from(&sum)
            },
            None::<fn() -> Result<(), Error>>,
        ),
        1 => by.if_else(
            &is_less()?,
            || target.copy_from(&(x - y)?),
            Some(|| {
                target.copy_from(&target.minimum(y)?)?;
                call(target)
            }),
        ),
        _ => {
            let (round, most) = (by.full(device, 0)?, by.full(device, rounds)?);
            let goes_on = round.lt(&most)?;
            by.while_true(&goes_on, || {
                target.copy_from(&plus_none((&(*target * x)? + y)?)?)?;
                call(target)?;
                round.copy_from(&(&round + 1)?)?;
                goes_on.copy_from(&round.lt(&most)?)
            })
        }
    }
}

trait SumKeepingRows {
    fn sum_keeping_rows(&self) -> Result<Tensor, Error>;
}

impl SumKeepingRows for Tensor {
    /// The sums over columns, in every row: a reduction whose result broadcasts back.
    fn sum_keeping_rows(&self) -> Result<Tensor, Error> {
        let sums = self.sum(&[0])?;
        &(self * 0i64)? + &sums
    }
}

fn given(vm: &Vm, home: DeviceId, draw: &mut Random) -> Vec<Tensor> {
    let tensor = |draw: &mut Random| {
        let elements: Vec<i32> = (0..ROWS * ROWS).map(|_| draw.below(15) as i32 - 7).collect();
        vm.from_slice(&elements, &[ROWS, ROWS]).expect("a tensor").to(home).expect("a copy")
    };
    (0..3).map(|_| tensor(draw)).collect()
}

/// The sizes of tensors, each with its elements.
type Elements = Vec<(Vec<usize>, Vec<i32>)>;

fn elements(tensors: &[Tensor]) -> Elements {
    let of = |tensor: &Tensor| (tensor.shape().dims().to_vec(), tensor.to_vec::<i32>().expect("it runs"));
    tensors.iter().map(of).collect()
}

/// How often a program runs: a few runs side by side, whose results are kept meanwhile, and then one after the other over the same memory.
const ROUNDS: usize = 9;
const SIDE_BY_SIDE: usize = 3;

/// Compares a drawn program over `devices` on an engine; its feeds and its parameter are on the first. Its calls run eagerly, and it is compiled with each of the options that
/// `options` draws; several runs over one parameter are in flight, and then one at a time. Returns the program and its compiled forms.
///
/// # Panics
/// If a result differs, or the parameter, or a memory plan is wrong.
pub fn compare(
    vm: &Vm,
    seed: u64,
    devices: &[DeviceId],
    options: &dyn Fn(&mut Random) -> Vec<CompileOptions>,
) -> (Program, Vec<Compiled>) {
    try_compare(vm, seed, devices, options).unwrap_or_else(|Verdict { failing, text }| panic!("{failing:?}: {text}"))
}

/// As [`compare`].
///
/// # Errors
/// The result that differs, or the memory plan that is wrong.
///
/// # Panics
/// If the engine refuses what it must take.
fn try_compare(
    vm: &Vm,
    seed: u64,
    devices: &[DeviceId],
    options: &dyn Fn(&mut Random) -> Vec<CompileOptions>,
) -> Result<(Program, Vec<Compiled>), Verdict> {
    let mut draw = Random::new(seed, 0);
    let drawn = Drawn::new(vm, devices[0], &mut draw);
    let Drawn { tensors, program_seed, .. } = &drawn;
    let parameter = tensors[2].to_vec::<i32>().expect("it is there");
    let mut expected = Vec::new();
    for _ in 0..ROUNDS {
        let results = calls(&mut Random::new(*program_seed, 0), tensors, devices, &drawn, By::Engine(vm))
            .expect("eager calls are accepted");
        expected.push((elements(&results), elements(&tensors[2..])));
    }
    let program = record(vm, devices, &drawn);
    let names: Vec<&str> = program.fetches.iter().map(|fetch| fetch.name.as_str()).collect();
    let compare = |options: CompileOptions| {
        let start = vm.from_slice(&parameter, &[ROWS, ROWS]).expect("a tensor").to(devices[0]).expect("a copy");
        let executable = vm.compile(&program, &[("c", &start)], &options).expect("it compiles");
        let compiled = executable.compiled();
        check_plan(compiled, seed)?;
        let run = |round: usize| {
            let _lane = Lane(if round < SIDE_BY_SIDE { round as u32 % 2 } else { 0 }).enter();
            let feeds = [("a", &tensors[0]), ("b", &tensors[1])];
            // Every third one is an instruction of a list, with a call before and one after it.
            let found: Vec<Tensor> = if round % 3 == 1 {
                let mut builder = InstructionsBuilder::new();
                let a = builder.copy(&tensors[0], tensors[0].place()).expect("a copy");
                let run = executable.run_in(&mut builder, &[("a", &a), feeds[1]]).expect("it is appended");
                let copy = |(_, tensor): (&str, &Tensor)| builder.copy(tensor, tensor.place()).expect("a copy");
                let found = run.iter().map(copy).collect();
                vm.submit(builder.finish()).expect("it is submitted");
                found
            } else {
                let mut run = executable.run(&feeds).expect("it is submitted");
                run.take()
            };
            (round, found, start.to(CPU).expect("a copy"))
        };
        let check = |(round, found, after): (usize, Vec<Tensor>, Tensor)| {
            let (results, left) = (elements(&found), elements(&[after]));
            if (&results, &left) == (&expected[round].0, &expected[round].1) {
                return Ok(());
            }
            let text = format!(
                "seed {seed}, round {round}, {options:?}: results {results:?} and parameter {left:?}, expected {:?}\n{compiled}",
                expected[round]
            );
            Err(Verdict { failing: Failing::Differs, text })
        };
        // Each result alone, before a run has changed the parameter.
        for (place, (name, expected)) in names.iter().zip(&expected[0].0).enumerate() {
            let own = vm.from_slice(&parameter, &[ROWS, ROWS]).expect("a tensor").to(devices[0]).expect("a copy");
            let executable = vm.compile(&program, &[("c", &own)], &options).expect("it compiles");
            let feeds = [("a", &tensors[0]), ("b", &tensors[1])];
            let found = elements(&executable.run_for(&feeds, &[name]).expect("it is submitted").take());
            if found[..] != *std::slice::from_ref(expected) {
                let part = program.for_fetches(&[name]).expect("the part for a fetch");
                let text =
                    format!("seed {seed}: result {place} alone is {found:?}, expected {expected:?}\n{program}\n{part}");
                return Err(Verdict { failing: Failing::Differs, text });
            }
        }
        (0..SIDE_BY_SIDE).map(run).collect::<Vec<_>>().into_iter().try_for_each(check)?;
        for round in SIDE_BY_SIDE..ROUNDS {
            check(run(round))?;
            let refused =
                |error| Verdict { failing: Failing::Refused, text: format!("seed {seed}, round {round}: {error}") };
            vm.wait_all().map_err(refused)?;
        }
        Ok(compiled.clone())
    };
    let compiled = options(&mut draw).into_iter().map(compare).collect::<Result<_, _>>()?;
    Ok((program, compiled))
}

/// Checks the memory plan of a drawn program.
fn check_plan(compiled: &Compiled, seed: u64) -> Result<(), Verdict> {
    plan::check(compiled).map_err(|text| Verdict { failing: Failing::Plan, text: format!("seed {seed}: {text}") })
}

/// What a seed draws: the calls, and the tensors that they are made over.
struct Drawn {
    /// Two feeds and a parameter.
    tensors: Vec<Tensor>,
    program_seed: u64,
    steps: usize,
    /// What its critical sections are over; `None` if it has none.
    sections: Option<Resources>,
    /// Whether some tensors are empty.
    empty: bool,
    /// Whether calls are on several lanes.
    lanes: bool,
    /// Whether streams touch tensors.
    touches: bool,
}

impl Drawn {
    fn new(vm: &Vm, home: DeviceId, draw: &mut Random) -> Drawn {
        let steps = 1 + draw.below(25);
        let tensors = given(vm, home, draw);
        let program_seed = draw.next();
        let (lanes, empty) = (program_seed % 8 == 1, program_seed.is_multiple_of(3));
        let touches = program_seed.is_multiple_of(2) || lanes;
        // Functions of a section that no tensor orders begin and leave it in the order of one lane.
        let sections = (!lanes).then(Resources::new);
        Drawn { tensors, program_seed, steps, sections, empty, lanes, touches }
    }
}

/// Records the drawn calls.
fn record(vm: &Vm, devices: &[DeviceId], drawn: &Drawn) -> Program {
    let home = devices[0];
    let calls = |r: &Recorder| {
        let stand_ins = vec![
            r.feed("a", home, DType::I32, &[ROWS, ROWS])?,
            r.feed("b", home, DType::I32, &[ROWS, ROWS])?,
            r.parameter("c", &drawn.tensors[2])?,
        ];
        let mut draw = Random::new(drawn.program_seed, 0);
        let results = calls(&mut draw, &stand_ins, devices, drawn, By::Recording(r))?;
        results.iter().enumerate().try_for_each(|(place, tensor)| r.fetch(format!("f{place}"), tensor))
    };
    let mut program = vm.record("drawn", calls).expect("what an engine takes can be recorded");
    drawn.sections.iter().for_each(|resources| resources.bind(&mut program));
    program
}
