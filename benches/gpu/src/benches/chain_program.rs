//! A compiled chain of small additions: launched as a graph, launched one by one, and made eagerly, beside a graph that is captured by hand.

use streamvm::program::CompileOptions;
use streamvm::{Access, DType, Executable, Op, Tensor};

use super::{Settings, engine};
use crate::CUDA;
use crate::contest::error::Error;
use crate::contest::{Contender, Outcome};
use crate::hand::{Cuda, DeviceMemory, Kernels, f32s};

/// Elements of an addition.
const ELEMENTS: usize = 1024;

/// `y = y + x` a few times as a program, which runs again and again: with and without capture, beside the same calls made eagerly and
/// beside a graph of the same launches that is captured by hand once, and bare launches, both into two buffers.
///
/// # Errors
/// There is no device; a result is wrong.
pub fn chain_program(settings: &Settings) -> Result<Outcome, Error> {
    let steps = settings.sizes.steps;
    let runs = (settings.sizes.additions / steps).max(1);
    let work = format!("{runs} runs of {steps} additions of {ELEMENTS} f32, each of the one before");
    let mut outcome = Outcome::new("chain-program", "ns an addition", work);
    let vm = engine()?;
    let x = vm.full(CUDA, DType::F32, &[ELEMENTS], 1.0)?;
    x.wait()?;
    let chain = |x: &Tensor| {
        let mut y = x.clone();
        for _ in 0..steps {
            y = (&y + x)?;
        }
        Ok::<Tensor, streamvm::Error>(y)
    };
    let program = vm.record("chain", |r| {
        let x = r.feed("x", CUDA, DType::F32, &[ELEMENTS])?;
        r.fetch("y", &chain(&x)?)
    })?;
    // Fusion leaves a few kernels, of which the default makes no graph.
    let compile = |capture| {
        let options = CompileOptions { capture, smallest_graph: 1, ..CompileOptions::default() };
        vm.compile(&program, &[], &options)
    };
    let (captured, one_by_one) = (compile(true)?, compile(false)?);
    let run = |executable: &Executable| {
        let mut last = executable.run(&[("x", &x)])?["y"].clone();
        for _ in 1..runs {
            last = executable.run(&[("x", &x)])?["y"].clone();
        }
        Ok(last)
    };
    // The figures are of what they say: sums this small are exact.
    let expected = steps as f32 + 1.0;
    for (who, y) in [("captured", run(&captured)?), ("one by one", run(&one_by_one)?), ("eager", chain(&x)?)] {
        let sum = y.to_vec::<f32>()?;
        if sum.len() != ELEMENTS || sum.iter().any(|element| *element != expected) {
            let found = format!("{who}: {:?}, and {expected} is right", sum.first());
            return Err(Error::Wrong { who: "streamvm", found });
        }
    }

    let cuda = Cuda::open()?;
    let (kernels, stream) = (Kernels::new(&cuda), cuda.stream()?);
    let memory = cuda.several(3, |cuda| DeviceMemory::new(cuda, ELEMENTS * 4))?;
    let view = |index: usize, access| f32s(memory[index].address(), [1, ELEMENTS], access);
    for of in &memory {
        stream.launch(&kernels.fill(&f32s(of.address(), [1, ELEMENTS], Access::Write)?, 1.0)?)?;
    }
    let add =
        |from, to| kernels.binary(Op::Add, view(from, Access::Read)?, view(0, Access::Read)?, view(to, Access::Write)?);
    let turns = [add(1, 2)?, add(2, 1)?];
    let bare = || {
        for turn in 0..runs * steps {
            stream.launch(&turns[turn % 2])?;
        }
        Ok(stream.synchronize()?)
    };
    let graph = stream.capture(|| (0..steps).try_for_each(|turn| Ok(stream.launch(&turns[turn % 2])?)))?;
    let by_hand = || {
        for _ in 0..runs {
            stream.launch_graph(&graph)?;
        }
        Ok(stream.synchronize()?)
    };
    let eager = || {
        let mut last = chain(&x)?;
        for _ in 1..runs {
            last = chain(&x)?;
        }
        Ok(last.wait()?)
    };
    let contenders = vec![
        Contender::timed("streamvm, captured", || Ok(run(&captured).and_then(|y| y.wait())?)),
        Contender::timed("streamvm, one by one", || Ok(run(&one_by_one).and_then(|y| y.wait())?)),
        Contender::timed("streamvm, eager", eager),
        Contender::timed("graph captured by hand", by_hand),
        Contender::timed("bare launches of the same kernel", bare),
    ];
    outcome.contest(settings.runs, (runs * steps) as f64, contenders);
    let others =
        ["streamvm, one by one", "streamvm, eager", "graph captured by hand", "bare launches of the same kernel"];
    outcome.compare("streamvm, captured", &others);
    Ok(outcome)
}
