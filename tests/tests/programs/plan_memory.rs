//! The memory that job plans need, and engines that have less: refused before anything runs.

use streamvm::program::{CompileOptions, Program, Recorder};
use streamvm::{DType, DeviceId, Error, Executable, Lane, Place, Tensor, Vm};
use streamvm_jobs::{JobPlan, JobPlanBuilder, JobPlanError, Jobs, PlaceBytes};

const CPU: DeviceId = DeviceId::cpu(0);
const OTHER: DeviceId = DeviceId::cpu(1);

const MIB: usize = 1 << 20;

/// A feed of 1 MiB.
fn feed(r: &Recorder, name: &str) -> Result<Tensor, Error> {
    r.feed(name, CPU, DType::F32, &[MIB / 4])
}

fn engine(limit: Option<usize>) -> Vm {
    let builder = Vm::builder().cpu_devices(2);
    match limit {
        Some(bytes) => builder.cpu_memory_limit(bytes as u64),
        None => builder,
    }
    .build()
    .expect("an engine")
}

fn compiled(vm: &Vm, program: Result<Program, Error>, parameters: &[(&str, &Tensor)]) -> Executable {
    let program = program.expect("it can be recorded");
    vm.compile(&program, parameters, &CompileOptions::default()).expect("it can be compiled")
}

/// A plan of two programs of one stage, for each of four micro-batches: `first` makes `h` of 1 MiB, and `second` makes the result from it.
fn plan(first: &Executable, second: &Executable) -> JobPlan {
    let mut plan = JobPlanBuilder::new(4);
    let programs = [plan.program("A", first.compiled()), plan.program("B", second.compiled())];
    let stage = plan.stage(Lane(0));
    // All of `h` are alive before the first `B`.
    for program in programs {
        (0..4).for_each(|micro_batch| _ = plan.job(stage, program, Some(micro_batch)));
    }
    plan.result("y").finish().expect("a plan")
}

fn refusal(result: Result<Jobs, JobPlanError>) -> JobPlanError {
    match result {
        Err(error) => error,
        other => panic!("an error of the plan, found {other:?}"),
    }
}

/// Two programs: the first adds a parameter of 1 MiB to its feed, the second multiplies its feed by the same parameter.
fn adds(vm: &Vm, w: &Tensor) -> (Executable, Executable) {
    let first = vm.record("first", |r| r.fetch("h", &(feed(r, "x")? + r.parameter("w", w)?)?));
    let second = vm.record("second", |r| r.fetch("y", &(feed(r, "h")? * &r.parameter("w", w)?)?));
    (compiled(vm, first, &[("w", w)]), compiled(vm, second, &[("w", w)]))
}

#[test]
fn a_plan_that_needs_more_than_the_limit_is_refused_before_it_runs() {
    // Four of `h` and a `y`, or one `h` and four of `y`; the programs share the parameter.
    let values = 5 * MIB;
    for (limit, fits) in [(values + MIB - 1, false), (values + MIB, true)] {
        let vm = engine(Some(limit));
        let w = vm.full(CPU, DType::F32, &[MIB / 4], 2.0).expect("a tensor");
        let (first, second) = adds(&vm, &w);
        let plan = plan(&first, &second);
        assert_eq!(plan.peaks(), [PlaceBytes { place: CPU.into(), bytes: values }]);
        let jobs = Jobs::new(&vm, &plan, &[&first, &second]);
        if fits {
            jobs.expect("it needs no more than the limit");
            continue;
        }
        let error = refusal(jobs);
        let text = format!(
            "on cpu:0 a run of the job plan needs {} bytes at once, {values} for values and arenas",
            values + MIB
        );
        assert!(error.to_string().starts_with(&text), "{error}");
        let (values, parameters, limit) = (values as u64, MIB as u64, limit as u64);
        assert_eq!(error, JobPlanError::TooMuchMemory { place: CPU.into(), values, parameters, limit });
    }
}

/// The programs compute on another device than the one that has their feeds: what is there counts there.
#[test]
fn memory_is_counted_where_it_is() {
    let vm = engine(None);
    let first = vm.record("first", |r| r.fetch("h", &feed(r, "x")?.to(OTHER)?.exp()?.to(CPU)?));
    let second = vm.record("second", |r| r.fetch("y", &feed(r, "h")?.to(OTHER)?.neg()?.to(CPU)?));
    let (first, second) = (compiled(&vm, first, &[]), compiled(&vm, second, &[]));
    let plan = plan(&first, &second);
    // There: the copy of a feed and what is computed from it, of one job at a time.
    let there = PlaceBytes { place: OTHER.into(), bytes: 2 * MIB };
    let here = PlaceBytes { place: CPU.into(), bytes: 5 * MIB };
    assert!(plan.peaks().len() == 2 && plan.peaks().contains(&there) && plan.peaks().contains(&here), "{plan}");
    let text = plan.to_string();
    for PlaceBytes { place, bytes } in [here, there] {
        let row = text.lines().find(|line| line.starts_with("all") && line.contains(&place.to_string()));
        assert!(row.is_some_and(|row| row.ends_with(&format!(" {bytes}"))), "{text}");
    }
    let peak_in_use = |place: Place| {
        let stats = vm.stats().memory;
        let pools = stats.iter().filter(|pool| pool.place == place);
        pools.map(|pool| pool.allocator.peak_in_use).sum::<usize>()
    };
    let x = vm.full(CPU, DType::F32, &[MIB], 0.0).expect("a tensor");
    vm.wait_all().expect("it runs");
    let before = peak_in_use(CPU.into());
    let jobs = Jobs::new(&vm, &plan, &[&first, &second]).expect("nothing limits it");
    let run = jobs.run(&[("x", &x)]).expect("it is submitted");
    assert_eq!(run.joined("y").expect("it is submitted").to_vec::<f32>().expect("it runs"), vec![-1.0; MIB]);
    assert_eq!(peak_in_use(OTHER.into()), there.bytes);
    assert!(peak_in_use(CPU.into()) - before >= here.bytes);
}
