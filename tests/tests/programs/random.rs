//! Random programs: what a compiled program computes equals what the same calls compute eagerly, bit for bit.

use streamvm::program::CompileOptions;
use streamvm::{DType, DeviceId, Error, InstructionList, InstructionsBuilder, Lane, Op, Params, Tensor, Vm};

const CPU: DeviceId = DeviceId::cpu(0);

/// Small numbers from a seed (xorshift64, Marsaglia 2003).
pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

const ROWS: usize = 4;

/// Makes `steps` drawn calls over `[4, 4]` tensors of `i32`, `given` first; the last of `given` is a parameter, which calls may write. The
/// tensors may be of an engine or of a recording. Returns the tensors to compare.
fn calls(
    draw: &mut Draw,
    given: &[Tensor],
    steps: usize,
    submit: &dyn Fn(InstructionList) -> Result<(), Error>,
) -> Result<Vec<Tensor>, Error> {
    let mut tensors = given.to_vec();
    let parameter = given.len() - 1;
    for _ in 0..steps {
        let some = |draw: &mut Draw, tensors: &[Tensor]| {
            // Recent tensors more often, so that chains form; transposed views at times.
            let back = draw.below(4).min(tensors.len() - 1);
            let place = if draw.below(2) == 0 { tensors.len() - 1 - back } else { draw.below(tensors.len()) };
            let tensor = tensors[place].clone();
            if draw.below(6) == 0 { tensor.permute(&[1, 0]) } else { Ok(tensor) }
        };
        let (x, y) = (some(draw, &tensors)?, some(draw, &tensors)?);
        let result = match draw.below(12) {
            0 | 1 => (&x + &y)?,
            2 => (&x - &y)?,
            3 => (&x * &y)?,
            4 => x.neg()?,
            5 => x.minimum(&y)?,
            6 => x.matmul(&y)?,
            7 => x.sum_keeping_rows()?,
            8 => x.eq(&y)?.where_(&x, &y)?,
            9 => x.cast(DType::F32)?.cast(DType::I32)?,
            kind => {
                // A write of a part or of all of an older tensor.
                let target = tensors
                    [if kind == 10 { parameter } else { draw.below(tensors.len() - given.len() + 1) + parameter }]
                .clone();
                let rows = draw.below(ROWS);
                let part = if draw.below(3) == 0 { target.clone() } else { target.slice(0, rows..ROWS)? };
                let source = x.slice(0, 0..part.shape().dims()[0])?;
                let mut builder = InstructionsBuilder::new();
                if draw.below(3) == 0 {
                    builder.fill(&part, draw.below(9) as i64)?;
                } else if source.overlaps(&part) {
                    builder.op_into(Op::Neg, &[&part], Params::default(), &part)?;
                } else {
                    builder.copy_into(&source, &part)?;
                }
                submit(builder.finish())?;
                continue;
            }
        };
        tensors.push(result);
    }
    let mut fetched: Vec<Tensor> = (0..3).map(|_| tensors[draw.below(tensors.len())].clone()).collect();
    fetched.push(tensors[tensors.len() - 1].clone());
    Ok(fetched)
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

fn given(vm: &Vm, draw: &mut Draw) -> Vec<Tensor> {
    let tensor = |draw: &mut Draw| {
        let elements: Vec<i32> = (0..ROWS * ROWS).map(|_| draw.below(15) as i32 - 7).collect();
        vm.from_slice(&elements, &[ROWS, ROWS]).expect("a tensor").to(CPU).expect("a copy")
    };
    (0..3).map(|_| tensor(draw)).collect()
}

fn elements(tensors: &[Tensor]) -> Vec<Vec<i32>> {
    tensors.iter().map(|tensor| tensor.to_vec::<i32>().expect("it runs")).collect()
}

/// Each drawn program runs eagerly, and compiled in three ways, several runs in flight over one parameter.
#[test]
fn compiled_programs_compute_what_eager_calls_compute() {
    let vm = Vm::builder().detect_races(true).build().expect("an engine");
    let (mut in_place, mut removed) = (0, 0);
    for seed in 1..=400u64 {
        let mut draw = Draw(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let steps = 1 + draw.below(25);
        let tensors = given(&vm, &mut draw);
        let parameter = tensors[2].to_vec::<i32>().expect("it is there");
        let (program_seed, rounds) = (draw.0, 3);
        let mut expected = Vec::new();
        for _ in 0..rounds {
            let results = calls(&mut Draw(program_seed), &tensors, steps, &|list| vm.submit(list).map(drop))
                .expect("eager calls are accepted");
            expected.push((elements(&results), elements(&tensors[2..])));
        }
        let program = vm
            .record("drawn", |r| {
                let stand_ins = vec![
                    r.feed("a", CPU, DType::I32, &[ROWS, ROWS])?,
                    r.feed("b", CPU, DType::I32, &[ROWS, ROWS])?,
                    r.parameter("c", &tensors[2])?,
                ];
                let results = calls(&mut Draw(program_seed), &stand_ins, steps, &|list| r.submit(list))?;
                results.iter().enumerate().try_for_each(|(place, tensor)| r.fetch(format!("f{place}"), tensor))
            })
            .expect("what an engine takes can be recorded");
        for (with_in_place, block) in [(true, 1 + draw.below(16)), (false, 1 + draw.below(16)), (true, 4_096)] {
            let start = vm.from_slice(&parameter, &[ROWS, ROWS]).expect("a tensor").to(CPU).expect("a copy");
            let options = CompileOptions { in_place: with_in_place, block, ..CompileOptions::default() };
            let executable = vm.compile(&program, &[("c", &start)], &options).expect("it compiles");
            removed += program.steps.len().saturating_sub(executable.compiled().steps().len());
            let again = vm
                .compile(&program, &[("c", &start)], &CompileOptions { in_place: false, ..options })
                .expect("it compiles");
            in_place += usize::from(executable.compiled().arena_bytes() < again.compiled().arena_bytes());
            let runs: Vec<_> = (0..rounds)
                .map(|round| {
                    let _lane = Lane(round % 2).enter();
                    let run = executable.run(&[("a", &tensors[0]), ("b", &tensors[1])]).expect("it is submitted");
                    (run, start.to(CPU).expect("a copy"))
                })
                .collect();
            for (round, ((run, after), (results, left))) in runs.iter().zip(&expected).enumerate() {
                let found: Vec<Tensor> = run.iter().map(|(_, tensor)| tensor.clone()).collect();
                assert_eq!(
                    &elements(&found),
                    results,
                    "seed {seed}, round {round}, in place: {with_in_place}, blocks of {block}\n{}",
                    executable.compiled()
                );
                assert_eq!(&elements(std::slice::from_ref(after)), left, "the parameter: seed {seed}, round {round}");
            }
        }
    }
    assert!(vm.races().is_empty(), "{:?}", vm.races());
    assert!(in_place > 50 && removed > 400, "the programs are drawn so that passes have work: {in_place} {removed}");
}
