//! Plans as golden texts, what a plan refuses, and what it promises beside plainer ways to compute the same.

use std::collections::{HashMap, HashSet};

use crate::error::{BlockedStage, JobPlanError};
use streamvm::program::{CompileOptions, Compiled, Recorder, compile, record};
use streamvm::{DType, DeviceId};
use streamvm::{Error, Lane, Tensor};

use crate::job_plan::{JobFeed, JobPlan};
use crate::{JobPlanBuilder, Pipeline, PipelineStage};

const CPU: DeviceId = DeviceId::cpu(0);
const ROWS: usize = 4;

fn compiled(name: &str, f: impl FnOnce(&Recorder) -> Result<(), Error>) -> Compiled {
    let program = record(name, f).expect("it can be recorded");
    compile(&program, &CompileOptions::default()).expect("it compiles")
}

fn feed(r: &Recorder, name: &str) -> Result<Tensor, Error> {
    r.feed(name, CPU, DType::F32, &[ROWS, 16])
}

/// A program that adds up its feeds, of four rows each, and makes each of its fetches from the sum.
fn adds(name: &str, feeds: &[&str], fetches: &[&str]) -> Compiled {
    compiled(name, |r| {
        let mut sum = r.full(CPU, DType::F32, &[ROWS, 16], 1.0)?;
        for name in feeds {
            sum = (sum + feed(r, name)?)?;
        }
        fetches.iter().try_for_each(|name| r.fetch(*name, &sum.softmax(1)?))
    })
}

/// The programs of a pipeline of linear layers, with the gradients in parameters.
struct Layers {
    reset: Vec<Compiled>,
    forward: Vec<Compiled>,
    backward: Vec<Compiled>,
    update: Vec<Compiled>,
}

impl Layers {
    fn new(stages: usize) -> Layers {
        let weights = Tensor::unbound(
            CPU.into(),
            streamvm::MemoryKind::Device,
            DType::F32,
            streamvm::Shape::new(&[16, 16]).expect("a shape"),
        );
        let named = |kind: &str, f: &dyn Fn(&Recorder, usize) -> Result<(), Error>| -> Vec<Compiled> {
            (0..stages).map(|stage| compiled(&format!("{kind}{stage}"), |r| f(r, stage))).collect()
        };
        Layers {
            reset: named("reset", &|r, _| r.parameter("dw", &weights)?.fill(0.0)),
            forward: named("forward", &|r, stage| {
                let h = feed(r, &format!("h{stage}"))?.matmul(&r.parameter("w", &weights)?)?;
                if stage + 1 < stages {
                    return r.fetch(format!("h{}", stage + 1), &h);
                }
                let error = (h - feed(r, "target")?)?;
                r.fetch("loss", &(&error * &error)?.sum(&[])?)?;
                r.fetch(format!("dh{stages}"), &error)
            }),
            backward: named("backward", &|r, stage| {
                let (h, dh) = (feed(r, &format!("h{stage}"))?, feed(r, &format!("dh{}", stage + 1))?);
                let dw = r.parameter("dw", &weights)?;
                dw.copy_from(&(&dw + &h.transpose(0, 1)?.matmul(&dh)?)?)?;
                if stage == 0 {
                    return Ok(());
                }
                r.fetch(format!("dh{stage}"), &dh.matmul(&r.parameter("w", &weights)?.transpose(0, 1)?)?)
            }),
            update: named("update", &|r, _| {
                let (w, dw) = (r.parameter("w", &weights)?, r.parameter("dw", &weights)?);
                w.copy_from(&(&w - &dw)?)
            }),
        }
    }

    fn pipeline(&self) -> Pipeline<'_> {
        let stages = (0..self.forward.len()).map(|stage| {
            let forward = PipelineStage::new(&self.forward[stage]).reset(&self.reset[stage]);
            forward.backward(&self.backward[stage]).update(&self.update[stage])
        });
        Pipeline::new(stages).result("loss")
    }
}

#[test]
fn one_f_one_b_takes_turns_and_bounds_what_is_alive() {
    let plan = Layers::new(3).pipeline().one_f_one_b(4).expect("a plan");
    assert_eq!(
        plan.to_string(),
        "\
job plan of 3 stages and 4 micro-batches: 30 jobs
slot     0  1  2  3  4  5  6  7  8  9  10 11 12 13
stage 0  R  F0 F1 F2 .  .  B0 F3 B1 .  B2 .  B3 U
stage 1  R  .  F0 F1 .  B0 F2 B1 F3 B2 .  B3 U  .
stage 2  R  .  .  F0 B0 F1 B1 F2 B2 F3 B3 U  .  .
bubble 33.3 %, if all jobs take the same time

         device   lane  micro-batches alive  bytes of values  with arena
stage 0  cpu:0       0                    3              768        1536
stage 1  cpu:0       1                    2              512        1536
stage 2  cpu:0       2                    1              528        1552
all                                                                 2820

input  h0 f32[16,16] on cpu:0, split along axis 0 into micro-batches of 4
input  target f32[16,16] on cpu:0, split along axis 0 into micro-batches of 4
value  h1: F of stage 0 -> F of stage 1, B of stage 1
value  h2: F of stage 1 -> F of stage 2, B of stage 2
value  loss: F of stage 2 -> result
value  dh3: F of stage 2 -> B of stage 2
value  dh2: B of stage 2 -> B of stage 1
value  dh1: B of stage 1 -> B of stage 0
sum    dw of stage 0, over micro-batches 0 1 2 3
sum    dw of stage 1, over micro-batches 0 1 2 3
sum    dw of stage 2, over micro-batches 0 1 2 3
"
    );
}

/// The timeline of a plan, without what is below it.
fn timeline(plan: &JobPlan) -> String {
    let lines: Vec<String> =
        plan.to_string().lines().skip(1).take(plan.stages().len() + 1).map(str::to_owned).collect();
    lines.join("\n")
}

#[test]
fn fthenb_runs_all_forward_jobs_first() {
    let plan = Layers::new(2).pipeline().fthenb(3).expect("a plan");
    let expected = "\
slot     0  1  2  3  4  5  6  7  8  9
stage 0  R  F0 F1 F2 .  .  B0 B1 B2 U
stage 1  R  .  F0 F1 F2 B0 B1 B2 U  .";
    assert_eq!(timeline(&plan), expected);
}

#[test]
fn in_order_runs_one_micro_batch_after_the_other() {
    let plan = Layers::new(2).pipeline().in_order(2).expect("a plan");
    let expected = "\
slot     0  1  2  3  4  5  6  7  8  9
stage 0  R  F0 .  .  B0 F1 .  .  B1 U
stage 1  R  .  F0 B0 .  .  F1 B1 U  .";
    assert_eq!(timeline(&plan), expected);
}

/// Every stage runs two jobs a micro-batch; the first begins p - 1 slots before the last stage, and ends as many after it.
#[test]
fn schedules_keep_their_promises_for_every_number_of_stages_and_micro_batches() {
    for stages in 1..=5 {
        let layers = Layers::new(stages);
        let pipeline = layers.pipeline();
        for micro_batches in 1..=8 {
            let case = format!("{stages} stages, {micro_batches} micro-batches");
            let plans =
                [pipeline.in_order(micro_batches), pipeline.fthenb(micro_batches), pipeline.one_f_one_b(micro_batches)];
            let [in_order, fthenb, one_f_one_b] = plans.map(|plan| plan.expect("a plan"));
            let alive = |plan: &JobPlan| plan.stages().iter().map(|stage| stage.peak.micro_batches).collect::<Vec<_>>();
            assert_eq!(alive(&in_order), vec![1; stages], "{case}");
            assert_eq!(alive(&fthenb), vec![micro_batches; stages], "{case}");
            let bound: Vec<usize> = (0..stages).map(|stage| micro_batches.min(stages - stage)).collect();
            assert_eq!(alive(&one_f_one_b), bound, "{case}");
            let ideal = (stages - 1) as f64 / (micro_batches + stages - 1) as f64;
            assert!((fthenb.bubble() - ideal).abs() < 1e-12 && (one_f_one_b.bubble() - ideal).abs() < 1e-12, "{case}");
            assert!((in_order.bubble() - (1.0 - 1.0 / stages as f64)).abs() < 1e-12, "{case}");
            assert!(one_f_one_b.peak_bytes() <= fthenb.peak_bytes(), "{case}");
            // The order of the sums is the same, and with it their bits.
            assert_eq!(in_order.accumulators(), one_f_one_b.accumulators(), "{case}");
            assert_eq!(in_order.accumulators(), fthenb.accumulators(), "{case}");
            let order: Vec<usize> = (0..micro_batches).collect();
            let sums = in_order.accumulators();
            assert!(sums.iter().all(|sum| sum.micro_batches == order), "{case}");
            assert_eq!(sums.len(), if micro_batches > 1 { stages } else { 0 }, "{case}");
        }
    }
}

/// Two stages, each with a forward job `F` that hands `h` to the right, and a backward job `B` that hands `d` to the left.
struct There {
    programs: [Compiled; 4],
}

impl There {
    fn new() -> There {
        let programs = [
            adds("left", &["x"], &["h"]),
            adds("right", &["h"], &["e"]),
            adds("back", &["e"], &["d"]),
            adds("end", &["d"], &["y"]),
        ];
        There { programs }
    }

    /// The plan with these orders: a letter and a micro-batch for each job.
    fn plan(&self, micro_batches: usize, orders: [&[(char, usize)]; 2]) -> Result<JobPlan, JobPlanError> {
        let mut plan = JobPlanBuilder::new(micro_batches);
        let [left, right, back, end] = &self.programs;
        let programs = [("F", left), ("F", right), ("B", back), ("B", end)];
        let [left, right, back, end] = programs.map(|(label, program)| plan.program(label, program));
        let stages = [plan.stage(Lane(0)), plan.stage(Lane(1))];
        for ((stage, order), [forward, backward]) in stages.into_iter().zip(orders).zip([[left, end], [right, back]]) {
            for &(letter, micro_batch) in order {
                plan.job(stage, if letter == 'F' { forward } else { backward }, Some(micro_batch));
            }
        }
        plan.result("y").finish()
    }
}

fn job_plan_error(result: Result<JobPlan, JobPlanError>) -> JobPlanError {
    match result {
        Err(error) => error,
        other => panic!("an error was expected: {other:?}"),
    }
}

/// The values of nine micro-batches are alive at once, each of an eighth of all addresses.
#[test]
fn a_peak_above_all_numbers_is_told_as_the_largest() {
    const EIGHTH: usize = (1 << (usize::BITS - 3)) / size_of::<f32>();
    let left = compiled("left", |r| r.fetch("h", &r.full(CPU, DType::F32, &[EIGHTH], 1.0)?));
    let right = compiled("right", |r| r.fetch("y", &r.feed("h", CPU, DType::F32, &[EIGHTH])?.sum(&[])?));
    let mut plan = JobPlanBuilder::new(9);
    let stage = plan.stage(Lane(0));
    for (label, program) in [("L", &left), ("R", &right)] {
        let program = plan.program(label, program);
        (0..9).for_each(|micro_batch| _ = plan.job(stage, program, Some(micro_batch)));
    }
    let plan = plan.result("y").finish().expect("a plan");
    assert_eq!((plan.peak_bytes(), plan.stages()[0].peak.value_bytes), (usize::MAX, usize::MAX));
}

/// The left stage wants the gradient of micro-batch 0 before it begins micro-batch 1, with which the right stage begins.
#[test]
fn a_deadlock_names_the_stages_that_wait_for_each_other() {
    let orders: [&[(char, usize)]; 2] =
        [&[('F', 0), ('B', 0), ('F', 1), ('B', 1)], &[('F', 1), ('F', 0), ('B', 0), ('B', 1)]];
    let error = job_plan_error(There::new().plan(2, orders));
    assert_eq!(
        error.to_string(),
        "the jobs would wait for each other for ever: stage 0 stops at B0, which needs d of micro-batch 0 from B0 of stage 1; stage 1 stops at \
         F1, which needs h of micro-batch 1 from F1 of stage 0; change the order of the jobs of one of these stages"
    );
    // One stage alone: its backward job comes first.
    let mut plan = JobPlanBuilder::new(1);
    let programs = [adds("late", &["h"], &["y"]), adds("early", &["x"], &["h"])];
    let (late, early, stage) = (plan.program("L", &programs[0]), plan.program("E", &programs[1]), plan.stage(Lane(0)));
    let error = job_plan_error(plan.job(stage, late, Some(0)).job(stage, early, Some(0)).result("y").finish());
    assert!(
        error.to_string().contains("stage 0 stops at L0, which needs h of micro-batch 0 from E0 of stage 0;"),
        "{error}"
    );
    // A job that needs what it makes.
    let mut plan = JobPlanBuilder::new(1);
    let own = adds("own", &["h"], &["h"]);
    let (own, stage) = (plan.program("O", &own), plan.stage(Lane(0)));
    let error = job_plan_error(plan.job(stage, own, Some(0)).finish());
    assert!(
        error.to_string().contains("stage 0 stops at O0, which needs h of micro-batch 0 from O0 of stage 0;"),
        "{error}"
    );
}

/// Random orders beside an engine in its plainest form: sweeps over the stages, each of which runs its next job if what it needs was made.
#[test]
fn random_orders_deadlock_exactly_if_they_cannot_be_run() {
    let there = There::new();
    let (mut random, mut deadlocks, mut plans) = (1u64, 0, 0);
    for case in 0..2_000 {
        let mut shuffled = || {
            let mut jobs: Vec<(char, usize)> =
                (0..3).flat_map(|micro_batch| [('F', micro_batch), ('B', micro_batch)]).collect();
            for last in (1..jobs.len()).rev() {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                // A quarter of the swaps, so that some orders can be run.
                if random >> 62 == 0 {
                    jobs.swap(last, (random >> 33) as usize % (last + 1));
                }
            }
            jobs
        };
        let orders = [shuffled(), shuffled()];
        let mut done: HashSet<(usize, char, usize)> = HashSet::new();
        let mut next = [0; 2];
        while let Some(stage) = (0..2).find(|&stage| {
            orders[stage].get(next[stage]).is_some_and(|&(letter, micro_batch)| match (stage, letter) {
                (0, 'F') => true,
                (1, 'F') => done.contains(&(0, 'F', micro_batch)),
                (1, _) => done.contains(&(1, 'F', micro_batch)),
                (_, _) => done.contains(&(1, 'B', micro_batch)),
            })
        }) {
            let (letter, micro_batch) = orders[stage][next[stage]];
            done.insert((stage, letter, micro_batch));
            next[stage] += 1;
        }
        match there.plan(3, [&orders[0], &orders[1]]) {
            Ok(plan) => {
                plans += 1;
                assert_eq!(done.len(), 12, "case {case}: {orders:?} cannot be run");
                for (stage, order) in orders.iter().enumerate() {
                    let planned = plan.stages()[stage].jobs.iter().map(|&job| plan.job_label(&plan.jobs()[job]));
                    let given = order.iter().map(|(letter, micro_batch)| format!("{letter}{micro_batch}"));
                    assert!(planned.eq(given), "case {case}: the order of stage {stage} has changed");
                }
                check_order(&plan);
            }
            Err(error) => {
                deadlocks += 1;
                assert!(done.len() < 12, "case {case}: {orders:?} can be run: {error}");
                let JobPlanError::Deadlock { cycle } = error else { panic!("case {case}: {error}") };
                for (link, following) in cycle.iter().zip(cycle.iter().cycle().skip(1)) {
                    let BlockedStage { producer, .. } = link;
                    assert!(producer.ends_with(&format!("of stage {}", following.stage)), "case {case}: {cycle:?}");
                }
            }
        }
    }
    assert!(deadlocks > 200 && plans > 200, "{deadlocks} deadlocks, {plans} plans");
}

/// What a job needs is made in an earlier slot, and a stage runs one job a slot.
fn check_order(plan: &JobPlan) {
    let mut taken: HashMap<(usize, usize), usize> = HashMap::new();
    for (index, job) in plan.jobs().iter().enumerate() {
        assert_eq!(taken.insert((job.stage, job.slot), index), None, "two jobs in one slot");
        for feed in &job.feeds {
            if let JobFeed::Value(value) = feed {
                let maker = plan.values()[*value].job;
                assert!(maker < index && plan.jobs()[maker].slot < job.slot, "job {index} comes before job {maker}");
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_with_the_jobs_and_the_names() {
    let (left, right) = (adds("left", &["x"], &["h"]), adds("right", &["h"], &["y"]));
    let twice = adds("twice", &["x"], &["h"]);
    let narrow = compiled("narrow", |r| r.fetch("y", &r.feed("h", CPU, DType::F32, &[ROWS, 8])?.neg()?));
    let scalar = compiled("scalar", |r| r.fetch("h", &r.feed("x", CPU, DType::F32, &[])?.neg()?));
    let wide = compiled("wide", |r| r.fetch("y", &(r.feed("x", CPU, DType::F32, &[9, 16])?).neg()?));
    let huge = compiled("huge", |r| r.fetch("h", &r.feed("x", CPU, DType::U8, &[1 << 30, 1 << 20])?.sum(&[])?));
    let check = |micro_batches: usize,
                 programs: &[&Compiled],
                 jobs: &[(usize, Option<usize>)],
                 results: &[&str],
                 expected: &str| {
        let mut plan = JobPlanBuilder::new(micro_batches);
        let stage = plan.stage(Lane(0));
        programs.iter().zip('A'..).for_each(|(program, label)| _ = plan.program(label, program));
        jobs.iter().for_each(|&(program, micro_batch)| _ = plan.job(stage, program, micro_batch));
        results.iter().for_each(|name| _ = plan.result(*name));
        let error = job_plan_error(plan.finish()).to_string();
        assert!(error.contains(expected), "{expected}\n{error}");
    };
    let both = [(0, Some(0)), (1, Some(0))];
    check(0, &[&left], &[(0, None)], &["h"], "it has no micro-batch");
    check(1, &[&left], &[], &["h"], "stage 0 has no job");
    check(1, &[&left], &[(1, None)], &["h"], "a job is program 1 on stage 0 for None, which it does not have");
    check(2, &[&left], &[(0, Some(2))], &["h"], "a job of \"left\" is for micro-batch 2, and there are 2");
    check(1, &[&left], &[(0, Some(0)), (0, Some(0))], &["h"], "A0 of stage 0 is there twice");
    check(1, &[&left, &left], &both, &["h"], "two of its programs are called \"left\"");
    check(1, &[&left, &twice], &both, &["h"], "h of micro-batch 0 is made by A0 of stage 0 and by B0 of stage 0");
    check(
        1,
        &[&left, &twice],
        &[(0, Some(0)), (1, None)],
        &["h"],
        "h of micro-batch 0 is made by B of stage 0 and by A0 of stage 0",
    );
    check(1, &[&left, &right], &both, &[], "B0 of stage 0 makes y of micro-batch 0, and nobody uses it");
    check(
        2,
        &[&left, &right],
        &[(0, Some(0)), (1, Some(1))],
        &["y"],
        "B1 of stage 0 needs h of micro-batch 1, and no job makes it",
    );
    check(2, &[&left, &right], &[(0, Some(0)), (1, None)], &["y"], "B of stage 0 runs once and needs \"h\"");
    check(
        1,
        &[&left, &narrow],
        &both,
        &["y"],
        "B0 of stage 0: feed \"h\" needs f32[4,8], and that of A0 of stage 0 is f32[4,16]",
    );
    check(
        1,
        &[&left, &wide],
        &both,
        &["h", "y"],
        "B0 of stage 0: feed \"x\" needs f32[9,16], and the same input of another job is f32[4,16]",
    );
    check(1, &[&left, &right], &both, &["y", "z"], "no job makes the result \"z\"; its values are h, y");
    check(1, &[&left, &right], &both, &["y", "y"], "result \"y\" is named twice");
    check(1, &[&scalar], &[(0, Some(0))], &["h"], "input \"x\" of A0 of stage 0 has no axis to split");
    check(1 << 20, &[&huge], &[(0, Some(0))], &["h"], "is too large; use fewer micro-batches");
    check(
        1 << 40,
        &[&left],
        &[(0, Some(0))],
        &["h"],
        "it has 1099511627776 micro-batches, and at most 1048576 can be planned",
    );
    let too_many =
        job_plan_error(Pipeline::new([PipelineStage::new(&left)]).result("h").fthenb(usize::MAX)).to_string();
    assert!(too_many.contains("at most 1048576 can be planned"), "{too_many}");
    let mut plan = JobPlanBuilder::new(1);
    assert!(job_plan_error(plan.finish()).to_string().contains("it has no stage"));
    for label in ["", "F 1", "F1"] {
        plan = JobPlanBuilder::new(1);
        let (program, stage) = (plan.program(label, &left), plan.stage(Lane(0)));
        let error = job_plan_error(plan.job(stage, program, None).result("h").finish()).to_string();
        assert!(error.contains(&format!("the label of program \"left\" is {label:?}")), "{error}");
    }
    for (name, expected) in
        [("h", "a job makes the shared input \"h\""), ("z", "no job needs the shared input \"z\"; its inputs are x")]
    {
        let mut plan = JobPlanBuilder::new(1);
        let (program, stage) = (plan.program("A", &left), plan.stage(Lane(0)));
        let error = job_plan_error(plan.job(stage, program, Some(0)).result("h").shared(name).finish()).to_string();
        assert!(error.contains(expected), "{expected}\n{error}");
    }
    let elsewhere =
        record("elsewhere", |r| r.fetch("y", &r.feed("h", DeviceId::cpu(1), DType::F32, &[ROWS, 16])?.neg()?));
    let elsewhere = compile(elsewhere.expect("it can be recorded"), &CompileOptions::default()).expect("it compiles");
    check(1, &[&left, &elsewhere], &both, &["y"], "stage 0 has programs on two devices");
}

/// What is made once for the batch goes to every micro-batch, and shared inputs are not split.
#[test]
fn values_and_inputs_of_the_whole_batch_go_to_each_micro_batch() {
    let (once, each) = (adds("once", &["s"], &["scale"]), adds("each", &["x", "scale", "bias"], &["y"]));
    let mut plan = JobPlanBuilder::new(2);
    let (once, each, stage) = (plan.program("S", &once), plan.program("E", &each), plan.stage(Lane(5)));
    plan.job(stage, once, None).job(stage, each, Some(1)).job(stage, each, Some(0)).result("y").shared("bias");
    let plan = plan.finish().expect("a plan");
    assert_eq!(
        plan.to_string(),
        "\
job plan of 1 stage and 2 micro-batches: 3 jobs
slot     0  1  2
stage 0  S  E1 E0
bubble 0.0 %, if all jobs take the same time

         device   lane  micro-batches alive  bytes of values  with arena
stage 0  cpu:0       5                    1              768        1024
all                                                                 1024

input  s f32[4,16] on cpu:0, whole
input  x f32[8,16] on cpu:0, split along axis 0 into micro-batches of 4
input  bias f32[4,16] on cpu:0, whole
value  scale: S of stage 0 -> E of stage 0
value  y: E of stage 0 -> result
"
    );
    assert_eq!(plan.values()[0].readers, [1, 2]);
}

/// docs/job-plans.md shows the plan of its programs.
#[test]
fn the_documentation_shows_the_plan_of_its_program() {
    let feed = |r: &Recorder, name: &str| r.feed(name, CPU, DType::F32, &[2, 3]);
    let square = streamvm::Shape::new(&[3, 3]).expect("a shape");
    let weights = Tensor::unbound(CPU.into(), streamvm::MemoryKind::Device, DType::F32, square);
    let forward0 = compiled("forward0", |r| r.fetch("h", &feed(r, "x")?.matmul(&r.parameter("w", &weights)?)?));
    let forward1 = compiled("forward1", |r| {
        let (h, target) = (feed(r, "h")?, feed(r, "target")?);
        r.fetch("error", &(h - target)?)
    });
    let backward1 = compiled("backward1", |r| {
        let error = feed(r, "error")?;
        r.fetch("dh", &(&error + &error)?)
    });
    let backward0 = compiled("backward0", |r| {
        let (x, dh) = (feed(r, "x")?, feed(r, "dh")?);
        let dw = r.parameter("dw", &weights)?;
        dw.copy_from(&(&dw + x.transpose(0, 1)?.matmul(&dh)?)?)
    });
    let reset0 = compiled("reset0", |r| r.parameter("dw", &weights)?.fill(0.0));
    let stages = [
        PipelineStage::new(&forward0).backward(&backward0).reset(&reset0),
        PipelineStage::new(&forward1).backward(&backward1),
    ];
    let plan = Pipeline::new(stages).result("error").one_f_one_b(4).expect("a plan");
    assert!(include_str!("../../docs/job-plans.md").contains(&format!("```text\n{plan}```")), "{plan}");
}
