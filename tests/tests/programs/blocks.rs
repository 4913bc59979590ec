//! Blocks: `if` and `while` in programs run as the host's `if` and `while` over the same calls.

use streamvm::program::{CompileOptions, Compiled, Recorder, Work};
use streamvm::{DType, DeviceId, Error, InstructionsBuilder, Mode, Tensor, Vm};

use streamvm_tests::Random;

const CPU: DeviceId = DeviceId::cpu(0);

/// Who runs the calls: an engine at once, with the host's control flow, or a recording.
#[derive(Copy, Clone)]
enum By<'a> {
    Engine(&'a Vm),
    Recording(&'a Recorder),
}

impl By<'_> {
    fn full(self, value: i32) -> Result<Tensor, Error> {
        match self {
            By::Engine(vm) => vm.full(CPU, DType::I32, &[], value),
            By::Recording(r) => r.full(CPU, DType::I32, &[], value),
        }
    }

    fn while_true(self, condition: &Tensor, mut body: impl FnMut() -> Result<(), Error>) -> Result<(), Error> {
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

    fn if_else(
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

/// Counts `x` up to `most`, and returns it.
fn count_to(by: By<'_>, x: &Tensor, most: i32) -> Result<(), Error> {
    let most = by.full(most)?;
    let goes_on = x.lt(&most)?;
    by.while_true(&goes_on, || {
        x.copy_from(&(x + 1)?)?;
        goes_on.copy_from(&x.lt(&most)?)
    })
}

#[test]
fn a_loop_counts_to_eleven() {
    for mode in [Mode::default(), Mode::Inline] {
        let vm = Vm::builder().mode(mode).build().expect("an engine");
        let start = vm.full(CPU, DType::I32, &[], 0).expect("a tensor");
        let program = vm.record("to eleven", |r| count_to(By::Recording(r), &r.parameter("x", &start)?, 11));
        let program = program.expect("it can be recorded");
        let count = vm.compile(&program, &[("x", &start)], &CompileOptions::default()).expect("it compiles");
        for from in [0, 10, 11, 40, -5] {
            start.fill(from).expect("it is submitted");
            count.run(&[]).expect("it is submitted");
            assert_eq!(start.to_scalar::<i32>().expect("it runs"), from.max(11));
        }
    }
}

#[test]
fn a_loop_that_does_not_end_fails_after_the_most_rounds() {
    let vm = Vm::builder().build().expect("an engine");
    let start = vm.full(CPU, DType::I32, &[], 0).expect("a tensor");
    let program = vm.record("to eleven", |r| count_to(By::Recording(r), &r.parameter("x", &start)?, 11));
    let program = program.expect("it can be recorded");
    let compile = |most_rounds| {
        let options = CompileOptions { most_rounds, ..CompileOptions::default() };
        vm.compile(&program, &[("x", &start)], &options).expect("it compiles")
    };
    let failed = compile(10).run(&[]).expect("it is submitted").wait().expect_err("it needs eleven rounds").to_string();
    for part in ["while", "after 10 rounds", "most_rounds", "blocks.rs:"] {
        assert!(failed.contains(part), "{part}: {failed}");
    }
    assert!(start.to_scalar::<i32>().is_err(), "what the run writes has failed");
    let mut builder = InstructionsBuilder::new();
    builder.fill(&start, 0).expect("it fits");
    vm.submit(builder.finish()).expect("it is submitted");
    compile(11).run(&[]).expect("it is submitted").wait().expect("eleven rounds are enough");
}

#[test]
fn conditions_and_values_of_blocks_are_checked_where_they_are_recorded() {
    let vm = Vm::builder().build().expect("an engine");
    let other = vm.full(CPU, DType::Bool, &[], true).expect("a tensor");
    type Case<'a> = Box<dyn Fn(&Recorder) -> Result<(), Error> + 'a>;
    let yes = |r: &Recorder| r.full(CPU, DType::Bool, &[], true);
    let cases: [(&str, Case<'_>); 7] = [
        ("one bool", Box::new(|r| r.while_true(&r.full(CPU, DType::Bool, &[2], true)?, || Ok(())))),
        ("one bool", Box::new(|r| r.if_true(&r.full(CPU, DType::I32, &[], 1)?, || Ok(())))),
        ("feed or a parameter", Box::new(|r| r.if_true(&other, || Ok(())))),
        ("copy into it", Box::new(|r| r.if_true(&yes(r)?, || r.fetch("made", &yes(r)?)))),
        (
            "64 blocks",
            Box::new(|r| {
                fn nested(r: &Recorder, yes: &Tensor, depth: usize) -> Result<(), Error> {
                    if depth == 0 { Ok(()) } else { r.if_true(yes, || nested(r, yes, depth - 1)) }
                }
                let yes = yes(r)?;
                nested(r, &yes, 64)?;
                nested(r, &yes, 65)
            }),
        ),
        (
            "copy into it",
            Box::new(|r| {
                let mut made = None;
                r.if_true(&yes(r)?, || {
                    made = Some(yes(r)?);
                    Ok(())
                })?;
                r.fetch("made", &made.expect("the closure ran"))
            }),
        ),
        (
            "copy into it",
            Box::new(|r| {
                let (x, mut made) = (yes(r)?, None);
                r.if_else(
                    &x,
                    || {
                        made = Some(yes(r)?);
                        Ok(())
                    },
                    || Ok(()),
                )?;
                x.eq(&made.expect("the closure ran")).map(drop)
            }),
        ),
    ];
    for (part, case) in cases {
        let refused = vm.record("blocks", |r| case(r)).expect_err(part).to_string();
        assert!(refused.contains(part) && refused.contains("blocks.rs:"), "{part}: {refused}");
    }
    // A caller may go on after a body that failed: the block has ended.
    let program = vm.record("blocks", |r| {
        let x = yes(r)?;
        assert!(r.if_true(&x, || Err(Error::Shutdown)).is_err());
        r.fetch("x", &x)
    });
    assert_eq!(program.expect("its blocks end").steps.len(), 3);
}

/// Makes drawn calls over `numbers`, vectors that the calls overwrite, and nests blocks up to `depth` deep.
fn calls(by: By<'_>, seed: u64, numbers: &[Tensor], depth: usize) -> Result<(), Error> {
    let mut draw = Random::new(seed, 0);
    // What this block makes; a block in it may use that, too.
    let mut known = numbers.to_vec();
    for _ in 0..2 + draw.below(5) {
        let some = |draw: &mut Random, known: &[Tensor]| known[draw.below(known.len())].clone();
        let (x, y, target) = (some(&mut draw, &known), some(&mut draw, &known), some(&mut draw, numbers));
        let inner = draw.next();
        match draw.below(if depth == 0 { 5 } else { 8 }) {
            0 => known.push((&x + &y)?),
            1 => known.push((&x - &y)?),
            2 => known.push(x.minimum(&y)?),
            3 | 4 => {
                let value = (&(&x * 3)? - &y)?;
                target.copy_from(&value)?;
            }
            5 => {
                let (then, otherwise) = (known.clone(), known.clone());
                by.if_else(
                    &x.sum(&[])?.lt(&y.sum(&[])?)?,
                    || calls(by, inner, &then, depth - 1),
                    Some(|| calls(by, inner ^ 0xff00, &otherwise, depth - 1)),
                )?;
            }
            6 => by.if_else(
                &x.sum(&[])?.eq(&y.sum(&[])?)?,
                || calls(by, inner, &known, depth - 1),
                None::<fn() -> Result<(), Error>>,
            )?,
            _ => {
                let (round, most) = (by.full(0)?, by.full(1 + draw.below(3) as i32)?);
                let goes_on = round.lt(&most)?;
                by.while_true(&goes_on, || {
                    calls(by, inner, &known, depth - 1)?;
                    round.copy_from(&(&round + 1)?)?;
                    goes_on.copy_from(&round.lt(&most)?)
                })?;
            }
        }
    }
    Ok(())
}

#[test]
fn drawn_blocks_compute_what_the_host_computes() {
    let vm = Vm::builder().detect_races(true).build().expect("an engine");
    let names = ["a", "b", "c"];
    let (mut marks, mut removed, mut fused_in_loops) = (0, 0, 0);
    for seed in 1..=300u64 {
        let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let start = |vm: &Vm| -> Vec<Tensor> {
            let vector = |it: i32| vm.from_slice(&[5 * it - 4, it, 3, -it], &[4]).and_then(|it| it.to(CPU));
            (0..3).map(|it| vector(it).expect("a tensor")).collect()
        };
        let (expected, found) = (start(&vm), start(&vm));
        // Two parameters, and a third value of the run that is fetched.
        let program = vm
            .record("drawn", |r| {
                let mut numbers = Vec::new();
                for (name, like) in names.iter().zip(&found) {
                    numbers.push(r.parameter(*name, like)?);
                }
                numbers.push(r.full(CPU, DType::I32, &[4], 9)?);
                calls(By::Recording(r), seed, &numbers, 3)?;
                r.fetch("d", &numbers[3])
            })
            .expect("it can be recorded");
        let text = program.to_string();
        let parsed = streamvm::program::Program::parse(&text).expect("it parses back");
        assert_eq!(parsed.to_string(), text);
        marks += program.steps.iter().filter(|step| step.work.is_mark()).count();
        // Blocks of one to three of the four elements.
        let (block, in_place) = (1 + (seed >> 5) as usize % 3, seed & 2 == 0);
        let options = CompileOptions { in_place, block, search_steps: seed % 50, ..CompileOptions::default() };
        let parameters: Vec<(&str, &Tensor)> = names.into_iter().zip(&found).collect();
        let executable = vm.compile(&parsed, &parameters, &options).expect("it compiles");
        removed += program.steps.len() - executable.compiled().steps().len();
        fused_in_loops += fused_in_loops_of(executable.compiled());
        // Several runs, each of which goes on where the one before it ended.
        for round in 0..2 {
            let mut numbers = expected.clone();
            numbers.push(vm.full(CPU, DType::I32, &[4], 9).expect("a tensor"));
            calls(By::Engine(&vm), seed, &numbers, 3).expect("eager calls are accepted");
            let run = executable.run(&[]).expect("it is submitted");
            let values = |tensors: &[Tensor]| -> Vec<Vec<i32>> {
                tensors.iter().map(|tensor| tensor.to_vec::<i32>().expect("it runs")).collect()
            };
            let results = values(&[&found[..], &[run["d"].clone()]].concat());
            assert_eq!(results, values(&numbers), "seed {seed}, round {round}\n{text}\n{}", executable.compiled());
        }
    }
    assert!(vm.races().is_empty(), "{:?}", vm.races());
    assert!(
        marks > 3_000 && removed > 300 && fused_in_loops > 100,
        "the programs are drawn so that passes have work: {marks} {removed} {fused_in_loops}"
    );
}

/// How many groups of fused steps lie in loops.
fn fused_in_loops_of(compiled: &Compiled) -> usize {
    let (mut open, mut found) = (Vec::new(), 0);
    for (position, step) in compiled.steps().iter().enumerate() {
        match step.work {
            Work::If | Work::While => open.push(step.work == Work::While),
            Work::End => drop(open.pop()),
            _ => {}
        }
        let begins = compiled.fused().iter().any(|fused| fused.steps.start == position);
        found += usize::from(begins && open.contains(&true));
    }
    found
}
