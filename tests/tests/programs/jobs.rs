//! Job plans on engines: the results of the whole batch, memory as promised, overlap, failures.

use std::thread;

use streamvm::program::CompileOptions;
use streamvm::{DType, DeviceId, Error, Executable, Lane, MemoryKind, Mode, Tensor, Vm};
use streamvm_jobs::{JobPlan, JobPlanBuilder, JobPlanError, Jobs, Pipeline, PipelineStage};
use streamvm_tests::{CPU, ClosedGate, failure_of, no_races, until, within};

const LAYERS: usize = 3;
const WIDTH: usize = 8;
const ROWS: usize = 24;

fn recorded(
    vm: &Vm,
    name: String,
    f: impl FnOnce(&streamvm::program::Recorder) -> Result<(), Error>,
) -> streamvm::program::Program {
    vm.record(name, f).expect("it can be recorded")
}

/// Small whole numbers. Arithmetic of whole numbers wraps around and is exact, so results do not depend on the order of sums.
fn whole_numbers(vm: &Vm, device: DeviceId, shape: &[usize], seed: usize) -> Tensor {
    let count: usize = shape.iter().product();
    let elements: Vec<i64> = (0..count).map(|it| ((it * 7 + seed * 5) % 11 % 5) as i64 - 2).collect();
    vm.from_slice(&elements, shape).expect("a tensor").to(device).expect("a copy")
}

/// A network of [`LAYERS`] dense layers without biases, relu between them, and the sum of squares of `output - target` as the loss. It is divided
/// into stages.
struct Network {
    weights: Vec<Tensor>,
    gradients: Vec<Tensor>,
    stages: Vec<Stage>,
}

struct Stage {
    reset: Executable,
    forward: Executable,
    backward: Executable,
    update: Executable,
}

impl Network {
    /// `stages` has the number of layers of each stage, and `devices` their devices. The programs take `rows` rows.
    fn new(vm: &Vm, stages: &[usize], devices: &[DeviceId], rows: usize) -> Network {
        let mut network = Network { weights: Vec::new(), gradients: Vec::new(), stages: Vec::new() };
        for (stage, (&layers, &device)) in stages.iter().zip(devices).enumerate() {
            let first = network.weights.len();
            for layer in first..first + layers {
                network.weights.push(whole_numbers(vm, device, &[WIDTH, WIDTH], layer));
                network.gradients.push(vm.zeros(device, DType::I64, &[WIDTH, WIDTH]).expect("a tensor"));
            }
            let stage = network.stage(vm, stage, first..first + layers, device, rows);
            network.stages.push(stage);
        }
        network
    }

    fn stage(&self, vm: &Vm, stage: usize, layers: std::ops::Range<usize>, device: DeviceId, rows: usize) -> Stage {
        let weight = |layer: usize| (format!("w{layer}"), self.weights[layer].clone());
        let gradient = |layer: usize| (format!("dw{layer}"), self.gradients[layer].clone());
        let weights: Vec<(String, Tensor)> = layers.clone().map(weight).collect();
        let gradients: Vec<(String, Tensor)> = layers.clone().map(gradient).collect();
        let feed = |r: &streamvm::program::Recorder, name: String| r.feed(name, device, DType::I64, &[rows, WIDTH]);
        let first = layers.start;

        let reset = recorded(vm, format!("reset{stage}"), |r| {
            gradients.iter().try_for_each(|(name, tensor)| r.parameter(name, tensor)?.fill(0))
        });
        let forward = recorded(vm, format!("forward{stage}"), |r| {
            let mut h = feed(r, format!("h{first}"))?;
            for (layer, (name, weight)) in layers.clone().zip(&weights) {
                h = h.matmul(&r.parameter(name, weight)?)?;
                if layer + 1 < LAYERS {
                    h = h.relu()?;
                    r.fetch(format!("h{}", layer + 1), &h)?;
                } else {
                    let error = (&h - &feed(r, "target".to_owned())?)?;
                    r.fetch("output", &h)?;
                    r.fetch("loss", &(&error * &error)?.sum(&[])?)?;
                    r.fetch(format!("dh{LAYERS}"), &error)?;
                }
            }
            Ok(())
        });
        let backward = recorded(vm, format!("backward{stage}"), |r| {
            let mut d = feed(r, format!("dh{}", layers.end))?;
            let mut output = if layers.end < LAYERS { Some(feed(r, format!("h{}", layers.end))?) } else { None };
            for layer in layers.clone().rev() {
                if let Some(output) = output {
                    d = (&d * &output.cast(DType::Bool)?.cast(DType::I64)?)?;
                }
                let h = feed(r, format!("h{layer}"))?;
                let (name, gradient) = &gradients[layer - first];
                let sum = r.parameter(name, gradient)?;
                sum.copy_from(&(&sum + &h.transpose(0, 1)?.matmul(&d)?)?)?;
                if layer > 0 {
                    let (name, weight) = &weights[layer - first];
                    d = d.matmul(&r.parameter(name, weight)?.transpose(0, 1)?)?;
                }
                output = Some(h);
            }
            if first > 0 { r.fetch(format!("dh{first}"), &d) } else { Ok(()) }
        });
        let update = recorded(vm, format!("update{stage}"), |r| {
            for ((w, weight), (dw, gradient)) in weights.iter().zip(&gradients) {
                let (w, dw) = (r.parameter(w, weight)?, r.parameter(dw, gradient)?);
                w.copy_from(&(&w - &dw)?)?;
            }
            Ok(())
        });

        let all: Vec<(&str, &Tensor)> =
            weights.iter().chain(&gradients).map(|(name, it)| (name.as_str(), it)).collect();
        let compile = |program: &streamvm::program::Program| {
            let named = |name: &str| program.parameters.iter().any(|parameter| parameter.name == name);
            let bound: Vec<(&str, &Tensor)> = all.iter().copied().filter(|(name, _)| named(name)).collect();
            vm.compile(program, &bound, &CompileOptions::default()).expect("it compiles")
        };
        Stage {
            reset: compile(&reset),
            forward: compile(&forward),
            backward: compile(&backward),
            update: compile(&update),
        }
    }

    fn pipeline(&self) -> Pipeline<'_> {
        let stages = self.stages.iter().map(|Stage { reset, forward, backward, update }| {
            let stage = PipelineStage::new(forward.compiled()).backward(backward.compiled());
            stage.reset(reset.compiled()).update(update.compiled())
        });
        Pipeline::new(stages).result("output").result("loss")
    }

    fn executables(&self) -> Vec<&Executable> {
        self.stages.iter().flat_map(|it| [&it.reset, &it.forward, &it.backward, &it.update]).collect()
    }
}

fn elements(tensor: &Tensor) -> Vec<i64> {
    tensor.to_vec::<i64>().expect("it runs")
}

/// Two steps by eager calls over the whole batch: outputs and losses of both, and the weights after them.
fn eager(vm: &Vm, x: &Tensor, target: &Tensor) -> Result<Vec<Vec<i64>>, Error> {
    let mut weights: Vec<Tensor> = (0..LAYERS).map(|layer| whole_numbers(vm, CPU, &[WIDTH, WIDTH], layer)).collect();
    let mut seen = Vec::new();
    for _ in 0..2 {
        let mut h = vec![x.clone()];
        for (layer, weight) in weights.iter().enumerate() {
            let product = h[layer].matmul(weight)?;
            h.push(if layer + 1 < LAYERS { product.relu()? } else { product });
        }
        let mut d = (&h[LAYERS] - target)?;
        seen.extend([elements(&h[LAYERS]), elements(&(&d * &d)?.sum(&[])?)]);
        for layer in (0..LAYERS).rev() {
            if layer + 1 < LAYERS {
                d = (&d * &h[layer + 1].cast(DType::Bool)?.cast(DType::I64)?)?;
            }
            let gradient = h[layer].transpose(0, 1)?.matmul(&d)?;
            d = d.matmul(&weights[layer].transpose(0, 1)?)?;
            weights[layer] = (&weights[layer] - &gradient)?;
        }
    }
    seen.extend(weights.iter().map(elements));
    Ok(seen)
}

fn schedules(pipeline: &Pipeline<'_>, micro_batches: usize) -> [JobPlan; 3] {
    let plans = [pipeline.in_order(micro_batches), pipeline.fthenb(micro_batches), pipeline.one_f_one_b(micro_batches)];
    plans.map(|plan| plan.expect("a plan"))
}

/// One, two and three stages, every schedule, several numbers of micro-batches, in every mode of the engine and over one and several devices:
/// two steps give the results of eager calls over the whole batch.
#[test]
fn every_schedule_trains_as_the_whole_batch() {
    let several = [0, 1, 2].map(DeviceId::cpu);
    for (mode, devices) in [
        (Mode::Threaded, [CPU; 3]),
        (Mode::Threaded, several),
        (Mode::Inline, several),
        (Mode::Simulated { seed: 5 }, [CPU; 3]),
    ] {
        let vm = Vm::builder().mode(mode).cpu_devices(3).detect_races(true).build().expect("an engine");
        let x = whole_numbers(&vm, CPU, &[ROWS, WIDTH], 3);
        let target = whole_numbers(&vm, CPU, &[ROWS, WIDTH], 4);
        let expected = eager(&vm, &x, &target).expect("it runs");
        assert!(expected.iter().flatten().any(|it| *it != 0));
        for stages in [&[3usize][..], &[2, 1], &[1, 1, 1]] {
            let target = target.to(devices[stages.len() - 1]).expect("a copy");
            for micro_batches in [1, 2, 6] {
                for schedule in 0..3 {
                    let network = Network::new(&vm, stages, &devices, ROWS / micro_batches);
                    let plan = &schedules(&network.pipeline(), micro_batches)[schedule];
                    let jobs = Jobs::new(&vm, plan, &network.executables()).expect("it fits");
                    let run = || jobs.run(&[("h0", &x), ("target", &target)]).expect("it is submitted");
                    let mut seen = Vec::new();
                    for run in [run(), run()] {
                        run.wait().expect("it runs");
                        let loss = run.joined("loss").expect("it is submitted");
                        assert_eq!(loss.shape().dims(), [micro_batches]);
                        let loss = loss.sum(&[]).expect("it is submitted");
                        seen.extend([elements(&run.joined("output").expect("it is submitted")), elements(&loss)]);
                    }
                    seen.extend(network.weights.iter().map(elements));
                    assert!(seen == expected, "{mode:?}, {stages:?}, {micro_batches} micro-batches:\n{plan}");
                }
            }
        }
        no_races(&vm);
    }
}

/// The bytes in use of a device's memory: now, and at most so far.
fn in_use(vm: &Vm, device: DeviceId) -> (usize, usize) {
    let stats = vm.stats().memory;
    let pool = stats.iter().find(|pool| pool.place == device.into() && pool.kind == MemoryKind::Device);
    pool.map_or((0, 0), |pool| (pool.allocator.in_use, pool.allocator.peak_in_use))
}

/// What engines take is what plans promise: over all stages on one device, and for each stage on a device of its own. Rows are so many that
/// the allocator rounds nothing but the losses.
#[test]
fn plans_take_the_memory_that_they_promise() {
    let (rows, micro_batches) = (256, 4);
    let several = [0, 1, 2].map(DeviceId::cpu);
    let mut peaks = Vec::new();
    for devices in [[CPU; 3], several] {
        for schedule in 0..3 {
            let vm = Vm::builder().cpu_devices(3).build().expect("an engine");
            let network = Network::new(&vm, &[1, 1, 1], &devices, rows);
            let plan = &schedules(&network.pipeline(), micro_batches)[schedule];
            let jobs = Jobs::new(&vm, plan, &network.executables()).expect("it fits");
            let whole = [micro_batches * rows, WIDTH];
            let (x, target) = (whole_numbers(&vm, CPU, &whole, 3), whole_numbers(&vm, devices[2], &whole, 4));
            vm.wait_all().expect("it runs");
            let before = devices.map(|device| in_use(&vm, device).0);
            let run = jobs.run(&[("h0", &x), ("target", &target)]).expect("it is submitted");
            run.wait().expect("it runs");
            let taken: Vec<usize> = (0..3).map(|stage| in_use(&vm, devices[stage]).1 - before[stage]).collect();
            // Each loss is one element, in a block of its own.
            let rounding = micro_batches * 512;
            let near = |taken: usize, promised: usize| (promised..promised + rounding).contains(&taken);
            if devices == several {
                for (stage, taken) in plan.stages().iter().zip(&taken) {
                    assert!(near(*taken, stage.peak.bytes), "{taken} bytes were taken:\n{plan}");
                }
            } else {
                assert!(near(taken[0], plan.peak_bytes()), "{} bytes were taken:\n{plan}", taken[0]);
                peaks.push(plan.peak_bytes());
            }
            drop(run);
            for (device, before) in devices.into_iter().zip(before) {
                assert_eq!(in_use(&vm, device).0, before, "values that are no results were given back");
            }
        }
    }
    let [in_order, fthenb, one_f_one_b] = peaks[..] else { panic!("{peaks:?}") };
    assert!(in_order < one_f_one_b && one_f_one_b < fthenb, "{peaks:?}");
}

fn pending(vm: &Vm) -> u64 {
    vm.stats().in_flight
}

/// While the stream of the last stage is held, the first runs as far ahead as its schedule lets it: all forward jobs, or as many as there are
/// stages. So stages overlap, and 1F1B bounds what is alive.
#[test]
fn stages_overlap_as_far_as_the_schedule_lets_them() {
    let micro_batches = 6;
    // Of each stage: the jobs that need nothing of the last stage.
    for (schedule, ahead) in [(0, [1, 1]), (1, [micro_batches, micro_batches]), (2, [3, 2])] {
        let vm = Vm::builder().cpu_threads(3).build().expect("an engine");
        let gate = ClosedGate::new();
        let network = Network::new(&vm, &[1, 1, 1], &[CPU; 3], ROWS / micro_batches);
        let plan = &schedules(&network.pipeline(), micro_batches)[schedule];
        let jobs = Jobs::new(&vm, plan, &network.executables()).expect("it fits");
        let (x, target) = (whole_numbers(&vm, CPU, &[ROWS, WIDTH], 3), whole_numbers(&vm, CPU, &[ROWS, WIDTH], 4));
        vm.wait_all().expect("it runs");
        {
            let _lane = Lane(2).enter();
            vm.call_fn("gate", CPU, [], gate.function()).expect("it is submitted");
        }
        gate.wait_entered(1);
        let run = jobs.run(&[("h0", &x), ("target", &target)]).expect("it is submitted");
        // The resets and the forward jobs of the first two stages pass; all else, and the gate, is held.
        let passed = 2 + ahead[0] + ahead[1];
        let held = (plan.jobs().len() + 1 - passed) as u64;
        until("the first stages have run ahead", || pending(&vm) <= held);
        thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(pending(&vm), held, "{plan}");
        gate.open();
        run.wait().expect("it runs");
    }
}

/// An engine that takes three instructions: the run blocks until the first have passed, and no more than three are ever pending.
#[test]
fn the_bound_of_the_engine_bounds_the_jobs_in_flight() {
    let vm = Vm::builder().max_instructions(3).build().expect("an engine");
    let gate = ClosedGate::new();
    let network = Network::new(&vm, &[2, 1], &[CPU; 2], ROWS / 4);
    let plan = network.pipeline().one_f_one_b(4).expect("a plan");
    let jobs = Jobs::new(&vm, &plan, &network.executables()).expect("it fits");
    let (x, target) = (whole_numbers(&vm, CPU, &[ROWS, WIDTH], 3), whole_numbers(&vm, CPU, &[ROWS, WIDTH], 4));
    let expected = {
        let vm = Vm::builder().build().expect("an engine");
        let copy = |tensor: &Tensor| {
            vm.from_slice(&tensor.to_vec::<i64>().expect("it runs"), &[ROWS, WIDTH])
                .expect("a tensor")
                .to(CPU)
                .expect("a copy")
        };
        eager(&vm, &copy(&x), &copy(&target)).expect("it runs")[0].clone()
    };
    vm.call_fn("gate", CPU, [], gate.function()).expect("it is submitted");
    thread::scope(|scope| {
        let run = scope.spawn(|| jobs.run(&[("h0", &x), ("target", &target)]).expect("it is submitted"));
        until("the run is blocked", || vm.stats().blocked_submitters == 1);
        assert!(pending(&vm) <= 3 && !run.is_finished());
        gate.open();
        let run = run.join().expect("it is submitted");
        assert_eq!(elements(&run.joined("output").expect("it is submitted")), expected);
    });
}

/// Two plans of two threads on lanes of their own, over and over, and two runs of one plan in flight.
#[test]
fn two_plans_run_at_once() {
    let vm = Vm::builder().detect_races(true).build().expect("an engine");
    let (x, target) = (whole_numbers(&vm, CPU, &[ROWS, WIDTH], 3), whole_numbers(&vm, CPU, &[ROWS, WIDTH], 4));
    let expected = eager(&vm, &x, &target).expect("it runs");
    thread::scope(|scope| {
        for first_lane in [0, 2] {
            let (vm, x, target, expected) = (&vm, &x, &target, &expected);
            scope.spawn(move || {
                for _ in 0..10 {
                    let network = Network::new(vm, &[1, 2], &[CPU; 2], ROWS / 3);
                    let plan = network.pipeline().first_lane(Lane(first_lane)).one_f_one_b(3).expect("a plan");
                    let lanes: Vec<u32> = plan.stages().iter().map(|stage| stage.lane.0).collect();
                    assert_eq!(lanes, [first_lane, first_lane + 1]);
                    let jobs = Jobs::new(vm, &plan, &network.executables()).expect("it fits");
                    let runs = [(); 2].map(|()| jobs.run(&[("h0", x), ("target", target)]).expect("it is submitted"));
                    let outputs = runs.map(|run| elements(&run.joined("output").expect("it is submitted")));
                    let weights: Vec<Vec<i64>> = network.weights.iter().map(elements).collect();
                    assert!((&outputs[0], &outputs[1], &weights[..]) == (&expected[0], &expected[2], &expected[4..]));
                }
            });
        }
    });
    no_races(&vm);
}

/// Two stages of whole numbers. The second divides by the feed `d`, and adds the quotients up.
struct Divides {
    sum: Tensor,
    stages: Vec<Executable>,
    line: u32,
}

impl Divides {
    fn new(vm: &Vm) -> Divides {
        let sum = vm.zeros(CPU, DType::I32, &[2]).expect("a tensor");
        let mut line = 0;
        let doubles = recorded(vm, "doubles".to_owned(), |r| {
            let x = r.feed("x", CPU, DType::I32, &[2])?;
            r.fetch("h", &(&x + &x)?)
        });
        let divides = recorded(vm, "divides".to_owned(), |r| {
            let (h, d) = (r.feed("h", CPU, DType::I32, &[2])?, r.feed("d", CPU, DType::I32, &[2])?);
            line = line!() + 1;
            r.fetch("q", &(&h / &d)?)
        });
        let adds = recorded(vm, "adds".to_owned(), |r| {
            let (q, sum) = (r.feed("q", CPU, DType::I32, &[2])?, r.parameter("sum", &sum)?);
            sum.copy_from(&(&sum + &q)?)
        });
        let resets = recorded(vm, "resets".to_owned(), |r| r.parameter("sum", &sum)?.fill(0));
        let stages = [doubles, divides, adds, resets].map(|program| {
            let sum = [("sum", &sum)];
            let bound = if program.parameters.is_empty() { &[][..] } else { &sum };
            vm.compile(&program, bound, &CompileOptions::default()).expect("it compiles")
        });
        Divides { sum, stages: stages.into(), line }
    }

    fn plan(&self) -> JobPlan {
        let [doubles, divides, adds, resets] = &self.stages[..] else { panic!("there are four programs") };
        let first = PipelineStage::new(doubles.compiled());
        let second = PipelineStage::new(divides.compiled()).reset(resets.compiled()).backward(adds.compiled());
        Pipeline::new([first, second]).result("h").result("q").fthenb(4).expect("a plan")
    }

    fn jobs(&self, vm: &Vm) -> Jobs {
        Jobs::new(vm, &self.plan(), &self.stages.iter().collect::<Vec<_>>()).expect("it fits")
    }
}

fn whole(vm: &Vm, elements: &[i32]) -> Tensor {
    vm.from_slice(elements, &[elements.len()]).expect("a tensor").to(CPU).expect("a copy")
}

/// Micro-batch 2 divides by zero. What does not need it runs, and the next run of the plan heals the sum, because it begins with a reset.
#[test]
fn a_failure_names_stage_micro_batch_and_step_and_skips_what_depends_on_it() {
    let vm = Vm::builder().build().expect("an engine");
    let network = Divides::new(&vm);
    let jobs = network.jobs(&vm);
    let x = whole(&vm, &[1, 2, 3, 4, 5, 6, 7, 8]);
    let (good, bad) = (whole(&vm, &[1, 1, 1, 1, 2, 2, 1, 1]), whole(&vm, &[1, 1, 1, 1, 2, 0, 1, 1]));
    for _ in 0..2 {
        let run = jobs.run(&[("x", &x), ("d", &bad)]).expect("it is submitted");
        let failure = failure_of(run.wait());
        let text = failure.to_string();
        let line = format!("jobs.rs:{}", network.line);
        for part in ["divides, stage 1, micro-batch 2 failed on compute@cpu:0:1", "step 0 (div)", &line, "zero"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(run.wait(), Err(Error::Failed(failure.clone())), "on every call");
        for micro_batch in 0..4 {
            run[("h", micro_batch)].wait().expect("the first stage has not failed");
            let q = run.get("q", micro_batch).expect("a result").to_vec::<i32>();
            let rows = [4 * micro_batch as i32 + 2, 4 * micro_batch as i32 + 4];
            assert_eq!(q, if micro_batch == 2 { Err(Error::Failed(failure.clone())) } else { Ok(rows.to_vec()) });
        }
        assert_eq!(network.sum.wait(), Err(Error::Failed(failure)), "the sums behind it are skipped");
        vm.wait_all().expect("the failure was returned before, with all that it skipped");
        let run = jobs.run(&[("x", &x), ("d", &good)]).expect("it is submitted");
        run.wait().expect("it runs");
        assert_eq!(network.sum.to_vec::<i32>(), Ok(vec![2 + 6 + 5 + 14, 4 + 8 + 6 + 16]));
    }
}

/// The job of stage 0 fails while that of stage 1 is held: the wait is over when both have passed.
#[test]
fn a_wait_for_a_failed_run_waits_for_the_other_jobs_too() {
    let vm = Vm::builder().cpu_threads(2).build().expect("an engine");
    let gate = ClosedGate::new();
    let feed = |r: &streamvm::program::Recorder, name: &str| r.feed(name, CPU, DType::I32, &[2]);
    let divides = recorded(&vm, "divides".to_owned(), |r| r.fetch("one", &(&feed(r, "a")? / &feed(r, "a2")?)?));
    let negates = recorded(&vm, "negates".to_owned(), |r| r.fetch("minus", &feed(r, "b")?.neg()?));
    let [divides, negates] =
        [divides, negates].map(|program| vm.compile(&program, &[], &CompileOptions::default()).expect("it compiles"));
    let mut plan = JobPlanBuilder::new(1);
    for (lane, (label, executable)) in [("D", &divides), ("N", &negates)].into_iter().enumerate() {
        let (program, stage) = (plan.program(label, executable.compiled()), plan.stage(Lane(lane as u32)));
        plan.job(stage, program, None);
    }
    let plan = plan.result("one").result("minus").finish().expect("a plan");
    let jobs = Jobs::new(&vm, &plan, &[&divides, &negates]).expect("it fits");
    let zeros = whole(&vm, &[0, 0]);
    vm.wait_all().expect("it runs");
    {
        let _lane = Lane(1).enter();
        vm.call_fn("gate", CPU, [], gate.function()).expect("it is submitted");
    }
    let run = jobs.run(&[("a", &zeros), ("a2", &zeros), ("b", &zeros)]).expect("it is submitted");
    let expected = failure_of(run[("one", 0)].wait());
    thread::scope(|scope| {
        let waiter = scope.spawn(|| run.wait());
        thread::sleep(std::time::Duration::from_millis(50));
        assert!(!waiter.is_finished(), "the other job is held");
        gate.open();
        assert_eq!(waiter.join().expect("it does not panic"), Err(Error::Failed(expected)));
    });
}

/// An input without gaps is used where it lies: there are as many instructions as jobs. Parts of a transposed input have gaps, and are copied.
#[test]
fn micro_batches_are_views_of_the_batch() {
    let vm = Vm::builder().build().expect("an engine");
    let program = recorded(&vm, "negates".to_owned(), |r| r.fetch("y", &r.feed("x", CPU, DType::I32, &[2, 4])?.neg()?));
    let negates = vm.compile(&program, &[], &CompileOptions::default()).expect("it compiles");
    let plan = Pipeline::new([PipelineStage::new(negates.compiled())]).result("y").in_order(2).expect("a plan");
    let jobs = Jobs::new(&vm, &plan, &[&negates]).expect("it fits");
    let x = vm.from_slice(&(0..16).collect::<Vec<i32>>(), &[4, 4]).expect("a tensor").to(CPU).expect("a copy");
    let instructions = || vm.stats().streams.iter().map(|stream| stream.instructions).sum::<u64>();
    for (x, copies) in [(x.clone(), 0), (x.transpose(0, 1).expect("a view"), 2)] {
        let before = instructions();
        let run = jobs.run(&[("x", &x)]).expect("it is submitted");
        assert_eq!(instructions() - before, 2 + copies);
        let expected: Vec<i32> = x.to_vec::<i32>().expect("it runs").iter().map(|it| -it).collect();
        assert_eq!(run.joined("y").and_then(|y| Ok(y.to_vec::<i32>()?)), Ok(expected));
    }
}

/// A stage without micro-batches before the others, a shared input, and results of some micro-batches alone.
#[test]
fn plans_by_hand_have_jobs_for_the_batch_and_shared_inputs() {
    for devices in [[CPU, CPU], [CPU, DeviceId::cpu(1)]] {
        let vm = Vm::builder().cpu_devices(2).build().expect("an engine");
        let scales = recorded(&vm, "scales".to_owned(), |r| {
            r.fetch("scale", &r.feed("s", devices[0], DType::I32, &[])?.neg()?)?;
            r.fetch("twice", &(&r.feed("bias", devices[0], DType::I32, &[2])? * 2)?)
        });
        let each = recorded(&vm, "each".to_owned(), |r| {
            let feed = |name: &str, shape: &[usize]| r.feed(name, devices[1], DType::I32, shape);
            r.fetch("y", &(&(&feed("x", &[2])? * &feed("scale", &[])?)? + &feed("bias", &[2])?)?)
        });
        let [scales, each] =
            [scales, each].map(|program| vm.compile(&program, &[], &CompileOptions::default()).expect("it compiles"));
        let mut plan = JobPlanBuilder::new(3);
        let (s, e) = (plan.program("S", scales.compiled()), plan.program("E", each.compiled()));
        let (first, second) = (plan.stage(Lane(0)), plan.stage(Lane(1)));
        plan.job(first, s, None).job(second, e, Some(2)).job(second, e, Some(0));
        let plan = plan.result("y").result("twice").shared("bias").finish().expect("a plan");
        let jobs = Jobs::new(&vm, &plan, &[&each, &scales]).expect("executables are found by name");
        let x = vm.from_slice(&[1, 2, 3, 4, 5, 6], &[6]).expect("a tensor").to(devices[1]).expect("a copy");
        let s = vm.from_slice(&[10], &[]).expect("a tensor").to(CPU).expect("a copy");
        let run = jobs.run(&[("bias", &whole(&vm, &[7, 8])), ("x", &x), ("s", &s)]).expect("it is submitted");
        assert_eq!(run[("y", 0)].to_vec::<i32>(), Ok(vec![-3, -12]));
        assert!(run.get("y", 1).is_none() && run.get("z", 0).is_none());
        let found: Vec<Vec<i32>> = run.iter("y").map(|y| y.to_vec::<i32>().expect("it runs")).collect();
        assert_eq!(found, [vec![-3, -12], vec![-43, -52]], "in the order of the micro-batches");
        assert_eq!(run[("y", 2)].place(), devices[1].into());
        assert_eq!(run.joined("y").and_then(|y| Ok(y.to_vec::<i32>()?)), Ok(vec![-3, -12, -43, -52]));
        assert_eq!(run[("twice", 2)].to_vec::<i32>(), Ok(vec![14, 16]));
        assert_eq!(run.joined("twice").and_then(|y| Ok(y.to_vec::<i32>()?)), Ok(vec![14, 16]), "it is made once");
        let refused = run.joined("z").expect_err("there is no such result").to_string();
        assert!(refused.contains("there is no result \"z\"; its results are y, twice"), "{refused}");
    }
}

fn job_plan_error<T: std::fmt::Debug>(result: Result<T, JobPlanError>) -> JobPlanError {
    match result {
        Err(error) => error,
        other => panic!("an error was expected: {other:?}"),
    }
}

#[test]
fn executables_and_inputs_that_do_not_fit_are_refused() {
    let (vm, other) =
        (Vm::builder().cpu_devices(2).build().expect("an engine"), Vm::builder().build().expect("an engine"));
    let network = Divides::new(&vm);
    let plan = network.plan();
    let [doubles, divides, adds, resets] = &network.stages[..] else { panic!("there are four programs") };
    let foreign = Divides::new(&other);
    let longer = recorded(&vm, "doubles".to_owned(), |r| r.fetch("h", &r.feed("x", CPU, DType::I32, &[3])?.neg()?));
    let longer = vm.compile(&longer, &[], &CompileOptions::default()).expect("it compiles");
    let unrelated = recorded(&vm, "unrelated".to_owned(), |r| r.fetch("y", &r.full(CPU, DType::I32, &[], 1)?));
    let unrelated = vm.compile(&unrelated, &[], &CompileOptions::default()).expect("it compiles");
    let again = Divides::new(&vm);
    let cases: [(&[&Executable], &str); 6] = [
        (&[doubles, divides, adds], "program \"resets\" is missing; its programs are doubles, resets, divides, adds"),
        (&[doubles, divides, adds, resets, adds], "program \"adds\" is given twice"),
        (&[doubles, divides, adds, resets, &unrelated], "there is no program \"unrelated\""),
        (&[&longer, divides, adds, resets], "executable \"doubles\" differs from the program that was planned"),
        (&[&foreign.stages[0], divides, adds, resets], "executable \"doubles\" was compiled by another engine"),
        (
            &[doubles, divides, adds, &again.stages[3]],
            "two executables of stage 1 have different tensors for parameter \"sum\"",
        ),
    ];
    for (executables, expected) in cases {
        let refused = job_plan_error(Jobs::new(&vm, &plan, executables)).to_string();
        assert!(refused.contains(expected), "{expected}\n{refused}");
    }
    let jobs = network.jobs(&vm);
    let (x, short) = (whole(&vm, &[1; 8]), whole(&vm, &[1; 6]));
    let elsewhere = x.to(DeviceId::cpu(1)).expect("a copy");
    let inputs: [(&[(&str, &Tensor)], &str); 5] = [
        (&[("x", &x)], "input \"d\" is missing; its inputs are x, d"),
        (&[("x", &x), ("d", &x), ("d", &x)], "input \"d\" is given twice"),
        (&[("x", &x), ("d", &x), ("e", &x)], "there is no input \"e\""),
        (
            &[("x", &short), ("d", &x)],
            "a batch of 4 micro-batches: feed \"x\" needs i32[8], and the tensor that is given for it is i32[6]",
        ),
        (&[("x", &x), ("d", &elsewhere)], "input \"d\" must be on cpu:0, and the tensor given for it is on cpu:1"),
    ];
    vm.wait_all().expect("it runs");
    let instructions = || vm.stats().streams.iter().map(|stream| stream.instructions).sum::<u64>();
    let before = instructions();
    for (inputs, expected) in inputs {
        let refused = job_plan_error(jobs.run(inputs)).to_string();
        assert!(refused.contains(expected), "{expected}\n{refused}");
    }
    let foreign = jobs.run(&[("x", &x), ("d", &whole(&other, &[1; 8]))]);
    assert!(matches!(foreign, Err(JobPlanError::Engine(Error::Foreign { .. }))), "{foreign:?}");
    assert_eq!(instructions(), before, "nothing was submitted");
}

#[test]
fn runs_after_the_engine_has_ended_are_refused() {
    within("an engine that ends", || {
        let vm = Vm::builder().build().expect("an engine");
        let network = Divides::new(&vm);
        let jobs = network.jobs(&vm);
        let x = whole(&vm, &[1; 8]);
        let run = jobs.run(&[("x", &x), ("d", &x)]).expect("it is submitted");
        drop(vm);
        run.wait().expect("the engine has ended its work first");
        let refused = jobs.run(&[("x", &x), ("d", &x)]).map(drop);
        assert!(matches!(refused, Err(JobPlanError::Engine(Error::Shutdown { .. }))), "{refused:?}");
    });
}
