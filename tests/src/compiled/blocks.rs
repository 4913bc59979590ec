//! Programs with blocks: `if` and `while` in programs compute what the host's `if` and `while` over the same calls compute, and call the same functions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use streamvm::program::{self, CompileOptions, Compiled, Program, Recorder, Work};
use streamvm::{DType, DeviceId, Error, FnContext, FnError, InstructionList, Place, Tensor, Use, Vm};

use crate::compiled::{check_plan, functions};
use crate::program::{Failing, Verdict};
use crate::{CPU, Random, small_graphs};

/// Who runs the calls.
#[derive(Copy, Clone, Debug)]
pub enum By<'a> {
    /// An engine at once, with the host's control flow.
    Engine(&'a Vm),
    /// A recording.
    Recording(&'a Recorder),
}

impl By<'_> {
    /// A number on a device.
    ///
    /// # Errors
    /// Those of the engine or of the recording, as for the other methods.
    pub fn full(self, device: DeviceId, value: i32) -> Result<Tensor, Error> {
        match self {
            By::Engine(vm) => vm.full(device, DType::I32, &[], value),
            By::Recording(r) => r.full(device, DType::I32, &[], value),
        }
    }

    /// Submits a list.
    ///
    /// # Errors
    /// As above.
    pub fn submit(self, list: InstructionList) -> Result<(), Error> {
        match self {
            By::Engine(vm) => vm.submit(list).map(drop),
            By::Recording(r) => r.submit(list),
        }
    }

    /// Calls a function.
    ///
    /// # Errors
    /// As above.
    pub fn call_fn(
        self,
        name: &'static str,
        device: DeviceId,
        uses: Vec<Use<'_>>,
        f: impl for<'c, 'b> Fn(&'c mut FnContext<'b>) -> Result<(), FnError> + Send + Sync + 'static,
    ) -> Result<(), Error> {
        match self {
            By::Engine(vm) => vm.call_fn(name, device, uses, f).map(drop),
            By::Recording(r) => r.call_fn(name, device, uses, f),
        }
    }

    /// Calls a function that its uses alone order in a program, if it is called on a CPU.
    ///
    /// # Errors
    /// As above.
    pub fn call_fn_on_workers(
        self,
        name: &'static str,
        device: DeviceId,
        uses: Vec<Use<'_>>,
        f: impl for<'c, 'b> Fn(&'c mut FnContext<'b>) -> Result<(), FnError> + Send + Sync + 'static,
    ) -> Result<(), Error> {
        match self {
            By::Recording(r) if device.kind.is_cpu() => r.call_fn_on_workers(name, device, uses, f),
            By::Engine(_) | By::Recording(_) => self.call_fn(name, device, uses, f),
        }
    }

    /// A loop.
    ///
    /// # Errors
    /// As above.
    pub fn while_true(self, condition: &Tensor, mut body: impl FnMut() -> Result<(), Error>) -> Result<(), Error> {
        match self {
            By::Engine(_) => {
                while condition.to_scalar::<bool>()? {
                    body()?;
                }
                Ok(())
            }
            By::Recording(r) => r.while_true(condition, body),
        }
    }

    /// Makes the calls of `body` over `fed`, which it does not write, and `written`. In a recording the calls are a program of their own, which is
    /// called there. Returns copies of the results of `body`.
    ///
    /// # Errors
    /// As above.
    pub fn call(
        self,
        fed: &Tensor,
        written: &[Tensor],
        body: impl FnOnce(By<'_>, &Tensor, &[Tensor]) -> Result<Vec<Tensor>, Error>,
    ) -> Result<Vec<Tensor>, Error> {
        let copies = |results: Vec<Tensor>| results.iter().map(|result| result + 0i64).collect();
        let By::Recording(r) = self else { return copies(body(self, fed, written)?) };
        let names: Vec<String> = (0..written.len()).map(|place| format!("w{place}")).collect();
        let program = program::record("called", |inner| {
            let stand_in = inner.feed("fed", fed.place(), fed.dtype(), fed.shape().dims())?;
            let parameters = names.iter().zip(written).map(|(name, like)| inner.parameter(name, like));
            let parameters = parameters.collect::<Result<Vec<Tensor>, Error>>()?;
            let results = body(By::Recording(inner), &stand_in, &parameters)?;
            results.iter().enumerate().try_for_each(|(place, result)| inner.fetch(format!("r{place}"), result))
        })?;
        let parameters: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(written).collect();
        let results = r.call(&program, &[("fed", fed)], &parameters)?;
        copies(results.iter().map(|(_, tensor)| tensor.clone()).collect())
    }

    /// A branch, with or without a second one.
    ///
    /// # Errors
    /// As above.
    pub fn if_else(
        self,
        condition: &Tensor,
        then: impl FnOnce() -> Result<(), Error>,
        otherwise: Option<impl FnOnce() -> Result<(), Error>>,
    ) -> Result<(), Error> {
        match (self, otherwise) {
            (By::Engine(_), otherwise) => match condition.to_scalar::<bool>()? {
                true => then(),
                false => otherwise.map_or(Ok(()), |otherwise| otherwise()),
            },
            (By::Recording(r), Some(otherwise)) => r.if_else(condition, then, otherwise),
            (By::Recording(r), None) => r.if_true(condition, then),
        }
    }
}

/// Counts `x`, a number on `device`, up to `most`.
///
/// # Errors
/// As for [`By`].
pub fn count_to(by: By<'_>, device: DeviceId, x: &Tensor, most: i32) -> Result<(), Error> {
    let most = by.full(device, most)?;
    let goes_on = x.lt(&most)?;
    by.while_true(&goes_on, || {
        x.copy_from(&(x + 1)?)?;
        goes_on.copy_from(&x.lt(&most)?)
    })
}

/// Which blocks drawn calls have.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Kinds {
    /// Branches, loops and calls of programs.
    All,
    /// Those, in which a CPU or another device runs some of the steps.
    Mixed,
    /// All but loops.
    WithoutLoops,
}

/// The settings that all drawn calls of a program share.
#[derive(Copy, Clone)]
struct Common<'c> {
    device: DeviceId,
    kinds: Kinds,
    /// How often the function that uses no tensor was called.
    counted: &'c Arc<AtomicU64>,
}

/// The function that uses no tensor.
fn count(counted: &Arc<AtomicU64>) -> impl Fn(&mut FnContext<'_>) -> Result<(), FnError> + Send + Sync + 'static {
    let counted = counted.clone();
    move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

fn add(context: &mut FnContext<'_>) -> Result<(), FnError> {
    let (read, written) = (context.reads.get::<i32>(0)?, context.writes.take::<i32>(0)?);
    written.iter_mut().zip(read).for_each(|(to, from)| *to = to.wrapping_add(*from));
    Ok(())
}

/// The same tensor on a CPU.
fn on_cpu(tensor: &Tensor) -> Result<Tensor, Error> {
    if tensor.place() == Place::Device(CPU) { Ok(tensor.clone()) } else { tensor.to(CPU) }
}

/// The same tensor on a device other than its own; the tensor itself where all devices are a CPU.
fn on_device(device: DeviceId, tensor: &Tensor) -> Result<Tensor, Error> {
    if device == CPU { Ok(tensor.clone()) } else { tensor.to(device) }
}

/// Another device of the same kind; a CPU itself.
pub(super) fn another(device: DeviceId) -> DeviceId {
    if device == CPU { CPU } else { DeviceId { index: device.index ^ 1, ..device } }
}

/// Makes drawn calls over `numbers`, vectors on a device that the calls overwrite, and nests blocks up to `depth` deep. Some call functions on a CPU, or compute
/// there, or on another device.
fn calls(by: By<'_>, common: Common<'_>, seed: u64, numbers: &[Tensor], depth: usize) -> Result<(), Error> {
    let Common { device, kinds, counted } = common;
    let (mixed, another) = (device == CPU || kinds == Kinds::Mixed, another(device));
    let mut draw = Random::new(seed, 0);
    // What this block makes; a block in it may use that, too.
    let mut known = numbers.to_vec();
    for _ in 0..2 + draw.below(5) {
        let some = |draw: &mut Random, known: &[Tensor]| known[draw.below(known.len())].clone();
        let (x, y, target) = (some(&mut draw, &known), some(&mut draw, &known), some(&mut draw, numbers));
        let inner = draw.next();
        let of_blocks = if kinds == Kinds::WithoutLoops { 3 } else { 4 };
        match draw.below(if depth == 0 { 6 } else { 6 + of_blocks }) {
            0 => known.push((&x + &y)?),
            1 => known.push((&x - &y)?),
            2 => known.push(x.minimum(&y)?),
            3 | 4 => {
                let value = (&(&x * 3)? - &y)?;
                target.copy_from(&value)?;
            }
            // What the device decides about by itself.
            5 if !mixed => known.push(x.neg()?),
            5 => match inner % 8 {
                0 => {
                    let sum = on_cpu(&x.neg()?)?;
                    by.call_fn("adds", CPU, vec![on_cpu(&y)?.read(), sum.update()], add)?;
                    known.push(on_device(device, &sum)?);
                }
                1 => by.call_fn("counts", CPU, Vec::new(), count(counted))?,
                2 => {
                    // Views with gaps, in both directions.
                    let pairs = on_cpu(&x.reshape(&[2, 2])?.transpose(0, 1)?)?;
                    let sums = on_device(device, &(&pairs + &pairs.maximum(&(&pairs * 2)?)?)?)?;
                    target.reshape(&[2, 2])?.transpose(0, 1)?.copy_from(&sums)?;
                }
                3 | 4 => {
                    let sum = (&on_device(another, &x)? + &on_device(another, &y)?)?;
                    known.push(on_device(device, &sum)?);
                }
                5 => {
                    let there = on_device(another, &on_cpu(&target)?)?;
                    let from = there.sum(&[])?.minimum(&by.full(another, 3)?)?.maximum(&by.full(another, 1)?)?;
                    count_to(by, another, &from, 4)?;
                    target.copy_from(&on_device(device, &(&there + 1)?)?)?;
                }
                kind => {
                    let there = on_cpu(&target)?;
                    functions::call_in_block(kind as usize - 6, CPU, &there, by)?;
                    if device != CPU {
                        target.copy_from(&there)?;
                    }
                }
            },
            6 => {
                let (then, otherwise) = (known.clone(), known.clone());
                let condition = x.sum(&[])?.lt(&y.sum(&[])?)?;
                let condition = match inner % 3 {
                    0 if mixed => on_cpu(&condition)?,
                    1 if mixed => on_device(another, &condition)?,
                    _ => condition,
                };
                by.if_else(
                    &condition,
                    || calls(by, common, inner, &then, depth - 1),
                    Some(|| calls(by, common, inner ^ 0xff00, &otherwise, depth - 1)),
                )?;
            }
            7 => by.if_else(
                &x.sum(&[])?.eq(&y.sum(&[])?)?,
                || calls(by, common, inner, &known, depth - 1),
                None::<fn() -> Result<(), Error>>,
            )?,
            8 => {
                // Views are fed as well as whole tensors, and a written tensor is one of the results.
                let fed = by.call(&(&x - &y)?.slice(0, 0..4)?, numbers, |by, fed, numbers| {
                    calls(by, common, inner, numbers, depth - 1)?;
                    Ok(vec![(fed + &numbers[1])?, numbers[0].clone()])
                })?;
                known.extend(fed);
            }
            _ => {
                // Another one may count for the device.
                let counts = match inner % 3 {
                    0 if mixed => CPU,
                    1 if mixed => another,
                    _ => device,
                };
                let (round, most) = (by.full(counts, 0)?, by.full(counts, 1 + draw.below(3) as i32)?);
                let goes_on = round.lt(&most)?;
                by.while_true(&goes_on, || {
                    calls(by, common, inner, &known, depth - 1)?;
                    round.copy_from(&(&round + 1)?)?;
                    goes_on.copy_from(&round.lt(&most)?)
                })?;
            }
        }
    }
    Ok(())
}

/// What the drawn programs of [`compare_drawn`] had.
#[derive(Copy, Clone, Default, Debug)]
pub struct Drawn {
    /// Steps that begin or end blocks.
    pub marks: usize,
    /// Steps that the compiler has removed.
    pub removed: usize,
    /// Groups of fused steps in loops.
    pub fused_in_loops: usize,
    /// Calls of functions in blocks.
    pub functions: usize,
    /// Parts of CPUs in blocks of other devices.
    pub by_host: usize,
    /// Parts of other devices in blocks of a device.
    pub by_devices: usize,
}

/// Runs a drawn program of nested blocks over vectors on `device`, several times, each from where the run before ended, and compares with eager
/// calls under the host's control flow.
///
/// # Panics
/// If a result differs, or the memory plan is wrong.
pub fn compare_drawn(vm: &Vm, device: DeviceId, seed: u64, drawn: &mut Drawn) {
    compare(vm, device, (seed, Kinds::All), drawn);
}

/// As [`compare_drawn`], for blocks in which a CPU runs some of the steps of another device.
///
/// # Panics
/// As [`compare_drawn`].
pub fn compare_drawn_mixed(vm: &Vm, device: DeviceId, seed: u64, drawn: &mut Drawn) {
    compare(vm, device, (seed, Kinds::Mixed), drawn);
}

fn compare(vm: &Vm, device: DeviceId, (seed, kinds): (u64, Kinds), drawn: &mut Drawn) {
    // Blocks of one to three of the four elements.
    let (block, in_place) = (1 + (number_of(seed) >> 5) as usize % 3, number_of(seed) & 2 == 0);
    let search_steps = number_of(seed) % 50;
    let options = CompileOptions { in_place, block, search_steps, ..small_graphs() };
    let compared = try_compare_blocks(vm, device, (seed, kinds, ROUNDS), &options, drawn);
    compared.unwrap_or_else(|Verdict { failing, text }| panic!("{failing:?}: {text}"));
}

/// As [`compare_drawn`], for a program without loops, which runs often enough that a CUDA device decides about its branches.
///
/// # Panics
/// As [`compare_drawn`].
pub fn compare_drawn_branches(vm: &Vm, device: DeviceId, seed: u64, drawn: &mut Drawn) {
    let options = small_graphs();
    let compared = try_compare_blocks(vm, device, (seed, Kinds::WithoutLoops, 5), &options, drawn);
    compared.unwrap_or_else(|Verdict { failing, text }| panic!("{failing:?}: {text}"));
}

/// A number in place of a seed, so that neighbouring seeds differ in every bit.
fn number_of(seed: u64) -> u64 {
    seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

/// How often a drawn program of blocks runs.
pub(super) const ROUNDS: usize = 2;

/// As [`compare_drawn`], with these options.
///
/// # Errors
/// The result that differs, or the memory plan that is wrong.
///
/// # Panics
/// If the engine refuses what it must take.
pub(super) fn try_compare_drawn(
    vm: &Vm,
    device: DeviceId,
    seed: u64,
    options: &CompileOptions,
    drawn: &mut Drawn,
) -> Result<(), Verdict> {
    let kinds = if seed.is_multiple_of(2) { Kinds::Mixed } else { Kinds::All };
    try_compare_blocks(vm, device, (seed, kinds, ROUNDS), options, drawn)
}

/// As [`try_compare_drawn`], with these kinds of blocks, in so many runs.
fn try_compare_blocks(
    vm: &Vm,
    device: DeviceId,
    (seed, kinds, rounds): (u64, Kinds, usize),
    options: &CompileOptions,
    drawn: &mut Drawn,
) -> Result<(), Verdict> {
    let names = ["a", "b", "c"];
    let calls_seed = number_of(seed);
    let [eager_calls, program_calls] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
    let vectors = |vm: &Vm| -> Vec<Tensor> {
        let vector = |it: i32| vm.from_slice(&[5 * it - 4, it, 3, -it], &[4]).and_then(|it| it.to(device));
        (0..3).map(|it| vector(it).expect("a tensor")).collect()
    };
    let (eager, found) = (vectors(vm), vectors(vm));
    // Two parameters, and a third value of the run that is fetched.
    let program = vm
        .record("drawn", |r| {
            let mut numbers = Vec::new();
            for (name, like) in names.iter().zip(&found) {
                numbers.push(r.parameter(*name, like)?);
            }
            numbers.push(r.full(device, DType::I32, &[4], 9)?);
            let common = Common { device, kinds, counted: &program_calls };
            calls(By::Recording(r), common, calls_seed, &numbers, 3)?;
            r.fetch("d", &numbers[3])
        })
        .expect("it can be recorded");
    let text = program.to_string();
    let mut parsed = Program::parse(&text).expect("it parses back");
    assert_eq!(parsed.to_string(), text);
    for name in program.functions() {
        let bound = match name {
            "adds" => parsed.bind_function(name, add),
            "changes" => parsed.bind_function(name, functions::change),
            _ => parsed.bind_function(name, count(&program_calls)),
        };
        bound.expect("the parsed program has the same functions");
    }
    drawn.functions += functions_in_blocks(&program);
    drawn.marks += program.steps.iter().filter(|step| step.work.is_mark()).count();
    let parameters: Vec<(&str, &Tensor)> = names.into_iter().zip(&found).collect();
    let executable = vm.compile(&parsed, &parameters, options).expect("it compiles");
    check_plan(executable.compiled(), seed)?;
    drawn.removed += program.steps.len() - executable.compiled().steps().len();
    for part in executable.compiled().segments().iter().flat_map(|segment| &segment.others) {
        *if part.device.kind.is_cpu() { &mut drawn.by_host } else { &mut drawn.by_devices } += 1;
    }
    drawn.fused_in_loops += fused_in_loops_of(executable.compiled());
    let values = |tensors: &[Tensor]| -> Vec<Vec<i32>> {
        tensors.iter().map(|tensor| tensor.to_vec::<i32>().expect("it runs")).collect()
    };
    let eagerly = |_| {
        let mut numbers = eager.clone();
        numbers.push(vm.full(device, DType::I32, &[4], 9).expect("a tensor"));
        let common = Common { device, kinds, counted: &eager_calls };
        calls(By::Engine(vm), common, calls_seed, &numbers, 3).expect("eager calls are accepted");
        // Functions that write nothing among them.
        vm.wait_all().expect("nothing fails");
        (values(&numbers), eager_calls.load(Ordering::SeqCst))
    };
    // First all eager calls, so that no tensors of these are in the places of a run when the next one begins.
    let expected: Vec<(Vec<Vec<i32>>, u64)> = (0..rounds).map(eagerly).collect();
    // The result alone, over parameters of its own: functions that it does not need are not called.
    let own = vectors(vm);
    let own: Vec<(&str, &Tensor)> = names.into_iter().zip(&own).collect();
    let alone = vm.compile(&parsed, &own, options).expect("it compiles").run_for(&[], &["d"]).expect("it is submitted");
    let alone = values(&[alone["d"].clone()]).remove(0);
    if alone != expected[0].0[3] {
        let (part, expected) = (parsed.for_fetches(&["d"]).expect("a part"), &expected[0].0[3]);
        let text = format!("seed {seed}: the result alone is {alone:?}, expected {expected:?}\n{text}\n{part}");
        return Err(Verdict { failing: Failing::Differs, text });
    }
    program_calls.store(0, Ordering::SeqCst);
    for (round, expected) in expected.into_iter().enumerate() {
        let run = executable.run(&[]).expect("it is submitted");
        run.wait().expect("nothing fails");
        let results = (values(&[&found[..], &[run["d"].clone()]].concat()), program_calls.load(Ordering::SeqCst));
        if results != expected {
            let compiled = executable.compiled();
            let text = format!(
                "seed {seed}, round {round}, {options:?}: {results:?}, expected {expected:?}\n{text}\n{compiled}"
            );
            return Err(Verdict { failing: Failing::Differs, text });
        }
    }
    Ok(())
}

fn functions_in_blocks(program: &Program) -> usize {
    let (mut depth, mut found) = (0, 0);
    for step in &program.steps {
        match step.work {
            Work::If | Work::While => depth += 1,
            Work::End => depth -= 1,
            Work::Function(_) if depth > 0 => found += 1,
            _ => {}
        }
    }
    found
}

/// How many groups of fused steps lie in loops.
fn fused_in_loops_of(compiled: &Compiled) -> usize {
    let (mut open, mut found) = (Vec::new(), 0);
    for (position, step) in compiled.steps().enumerate() {
        match step.work {
            Work::If | Work::While => open.push(*step.work == Work::While),
            Work::End => drop(open.pop()),
            _ => {}
        }
        let begins = compiled.fused().iter().any(|fused| fused.steps.start == position);
        found += usize::from(begins && open.contains(&true));
    }
    found
}
