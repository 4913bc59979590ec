//! A loop on a device whose condition is computed there: as a program, made eagerly, and by hand.

use streamvm::ep::Operand;
use streamvm::program::{CompileOptions, Recorder};
use streamvm::{
    Access, DType, Executable, InstructionList, InstructionsBuilder, Layout, Op, Params, Shape, Tensor, Vm,
};

use super::{Settings, engine};
use crate::CUDA;
use crate::contest::error::Error;
use crate::contest::{Contender, Outcome};
use crate::hand::{Cuda, DeviceMemory, Kernels, PinnedMemory, SetCondition, f32s};

/// Elements of the addition of a round.
const ELEMENTS: usize = 1024;

/// The tensors of a loop.
struct Loop {
    y: Tensor,
    x: Tensor,
    round: Tensor,
    one: Tensor,
    most: Tensor,
    goes_on: Tensor,
}

impl Loop {
    /// The tensors at the beginning of a loop of so many rounds; `full` makes one of this shape and value.
    fn begin(
        x: Tensor,
        rounds: usize,
        full: impl Fn(&[usize], f32) -> Result<Tensor, streamvm::Error>,
    ) -> Result<Loop, streamvm::Error> {
        let (round, one, most) = (full(&[1], 0.0)?, full(&[1], 1.0)?, full(&[1], rounds as f32)?);
        let (y, goes_on) = (full(&[ELEMENTS], 0.0)?, round.lt(&most)?);
        Ok(Loop { y, x, round, one, most, goes_on })
    }

    /// The instructions of a round.
    fn body(&self) -> Result<InstructionList, streamvm::Error> {
        let mut builder = InstructionsBuilder::new();
        builder.op_into(Op::Add, &[&self.y, &self.x], Params::default(), &self.y)?;
        builder.op_into(Op::Add, &[&self.round, &self.one], Params::default(), &self.round)?;
        builder.op_into(Op::Lt, &[&self.round, &self.most], Params::default(), &self.goes_on)?;
        Ok(builder.finish())
    }
}

fn record(r: &Recorder, rounds: usize) -> Result<(), streamvm::Error> {
    let x = r.feed("x", CUDA, DType::F32, &[ELEMENTS])?;
    let of = Loop::begin(x, rounds, |shape, value| r.full(CUDA, DType::F32, shape, value))?;
    r.while_true(&of.goes_on, || r.submit(of.body()?))?;
    r.fetch("y", &of.y)
}

fn eagerly(vm: &Vm, x: &Tensor, rounds: usize) -> Result<Tensor, streamvm::Error> {
    let of = Loop::begin(x.clone(), rounds, |shape, value| vm.full(CUDA, DType::F32, shape, value))?;
    while of.goes_on.slice(0, 0..1)?.to_vec::<bool>()? == [true] {
        vm.submit(of.body()?)?;
    }
    Ok(of.y)
}

/// The bool at the begin of memory of the device, as a matrix to be written.
fn one_bool(memory: &DeviceMemory) -> Result<Operand<'static>, Error> {
    let layout = Layout::contiguous(Shape::new(&[1, 1]).map_err(streamvm::BuildError::from)?);
    let base = std::ptr::with_exposed_provenance_mut(memory.address() as usize);
    // SAFETY: what is made of it is a plan, which reads no element; the launch is in the bench's own order.
    Ok(unsafe { Operand::new(base, DType::Bool, layout, Access::Write) })
}

/// A round adds, counts, and computes whether there is another: the loop as a program, with and without capture, beside the same calls with a
/// condition that the caller reads, beside bare launches and a copy of the count, which the host waits for, and beside a graph whose conditional node the device
/// decides about, if the driver has such nodes.
///
/// # Errors
/// There is no device; a result is wrong.
pub fn loop_program(settings: &Settings) -> Result<Outcome, Error> {
    let rounds = settings.sizes.steps;
    let runs = (settings.sizes.additions / rounds / 8).max(1);
    let work = format!("{runs} loops of {rounds} rounds, each with an addition of {ELEMENTS} f32");
    let mut outcome = Outcome::new("loop-program", "ns a round", work);
    let vm = engine()?;
    let x = vm.full(CUDA, DType::F32, &[ELEMENTS], 1.0)?;
    x.wait()?;
    let program = vm.record("loop", |r| record(r, rounds))?;
    let compile = |capture| vm.compile(&program, &[], &CompileOptions { capture, ..CompileOptions::default() });
    let (captured, one_by_one) = (compile(true)?, compile(false)?);
    let run = |executable: &Executable| {
        let mut last = executable.run(&[("x", &x)])?["y"].clone();
        for _ in 1..runs {
            last = executable.run(&[("x", &x)])?["y"].clone();
        }
        Ok::<Tensor, streamvm::Error>(last)
    };

    let cuda = Cuda::open()?;
    let (kernels, stream) = (Kernels::new(&cuda), cuda.stream()?);
    let of = |elements: usize| DeviceMemory::new(&cuda, elements * 4);
    let (y, ones, count) = (of(ELEMENTS)?, of(ELEMENTS)?, of(1)?);
    let found = PinnedMemory::filled(&cuda, 1, 0.0)?;
    let view = |memory: &DeviceMemory, elements, access| f32s(memory.address(), [1, elements], access);
    let fill = |memory, elements, value: f32| kernels.fill(&view(memory, elements, Access::Write)?, value);
    let add = |memory, elements| {
        let (read, write) = (view(memory, elements, Access::Read)?, view(memory, elements, Access::Write)?);
        kernels.binary(Op::Add, read, view(&ones, elements, Access::Read)?, write)
    };
    stream.launch(&fill(&ones, ELEMENTS, 1.0)?)?;
    let starts = [fill(&y, ELEMENTS, 0.0)?, fill(&count, 1, 0.0)?];
    let round = [add(&y, ELEMENTS)?, add(&count, 1)?];
    let by_hand = || {
        for _ in 0..runs {
            starts.iter().try_for_each(|ready| stream.launch(ready))?;
            loop {
                round.iter().try_for_each(|ready| stream.launch(ready))?;
                stream.to_host(&count, &found)?;
                stream.synchronize()?;
                if found.as_slice()[0] >= rounds as f32 {
                    break;
                }
            }
        }
        Ok(())
    };

    // A loop that the device runs alone.
    let (most, goes_on, state) = (of(1)?, of(1)?, of(4)?);
    let stop = PinnedMemory::filled(&cuda, 1, 0.0)?;
    for ready in [fill(&most, 1, rounds as f32)?, fill(&state, 4, 0.0)?] {
        stream.launch(&ready)?;
    }
    let compared = {
        let (read, bound) = (view(&count, 1, Access::Read)?, view(&most, 1, Access::Read)?);
        kernels.binary(Op::Lt, read, bound, one_bool(&goes_on)?)?
    };
    let body = cuda.stream()?;
    let set = SetCondition::new(&kernels, &goes_on, &state, &stop)?;
    let launch = |stream: &crate::hand::Stream<'_>, all: &[&crate::hand::Ready]| -> Result<(), Error> {
        Ok(all.iter().try_for_each(|ready| stream.launch(ready))?)
    };
    let graph = set
        .map(|set| {
            let before = || launch(&stream, &[&starts[0], &starts[1], &compared]);
            stream.capture_loop(&body, &set, before, || launch(&body, &[&round[0], &round[1], &compared]))
        })
        .transpose()?;
    let as_graph = graph.as_ref().map(|graph| {
        || {
            (0..runs).try_for_each(|_| stream.launch_graph(graph))?;
            Ok(stream.synchronize()?)
        }
    });
    if let Some(run) = &as_graph {
        run()?;
        stream.to_host(&count, &found)?;
        stream.synchronize()?;
        if found.as_slice() != [rounds as f32] {
            let found = format!("a graph: {:?} rounds, and {rounds} is right", found.as_slice());
            return Err(Error::Wrong { who: "the loop by hand", found });
        }
    }

    // The figures are of what they say.
    for (who, y) in
        [("captured", run(&captured)?), ("one by one", run(&one_by_one)?), ("eager", eagerly(&vm, &x, rounds)?)]
    {
        let sum = y.to_vec::<f32>()?;
        if sum.len() != ELEMENTS || sum.iter().any(|element| *element != rounds as f32) {
            let found = format!("{who}: {:?}, and {rounds} is right", sum.first());
            return Err(Error::Wrong { who: "streamvm", found });
        }
    }
    let eager = || {
        let mut last = eagerly(&vm, &x, rounds)?;
        for _ in 1..runs {
            last = eagerly(&vm, &x, rounds)?;
        }
        Ok(last.wait()?)
    };
    let mut contenders = vec![
        Contender::timed("streamvm, captured", || Ok(run(&captured).and_then(|y| y.wait())?)),
        Contender::timed("streamvm, one by one", || Ok(run(&one_by_one).and_then(|y| y.wait())?)),
        Contender::timed("streamvm, eager", eager),
        Contender::timed("by hand", by_hand),
    ];
    let mut others = vec!["streamvm, one by one", "streamvm, eager", "by hand"];
    if let Some(run) = as_graph {
        contenders.push(Contender::timed("by hand, a conditional node", run));
        others.push("by hand, a conditional node");
    }
    outcome.contest(settings.runs, (runs * rounds) as f64, contenders);
    outcome.compare("streamvm, captured", &others);
    Ok(outcome)
}
