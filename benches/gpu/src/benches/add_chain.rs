//! Eager additions, each of the one before.

use streamvm::{Access, DType, Op};

use super::{Settings, engine};
use crate::CUDA;
use crate::contest::error::Error;
use crate::contest::{Contender, Outcome};
use crate::hand::{Cuda, DeviceMemory, Kernels, f32s};

/// Elements of an addition.
const ELEMENTS: usize = 1024;

/// `y = y + x` again and again, eagerly, beside PyTorch and beside bare launches of the same kernel into two buffers.
///
/// # Errors
/// There is no device.
pub fn add_chain(settings: &Settings) -> Result<Outcome, Error> {
    let count = settings.sizes.additions;
    let work = format!("{count} additions of {ELEMENTS} f32, each of the one before");
    let mut outcome = Outcome::new("add-chain", "ns an addition", work);
    let vm = engine()?;
    let x = vm.full(CUDA, DType::F32, &[ELEMENTS], 1.0)?;
    x.wait()?;
    let eager = || {
        let mut y = x.clone();
        for _ in 0..count {
            y = (&y + &x)?;
        }
        Ok(y)
    };
    // The figure is of what it says: sums this small are exact.
    let (sum, expected) = (eager().and_then(|y| y.to_vec::<f32>())?, count as f32 + 1.0);
    if sum.len() != ELEMENTS || sum.iter().any(|element| *element != expected) {
        let found = format!("{:?}, and {expected} is right", sum.first());
        return Err(Error::Wrong { who: "streamvm", found });
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
        for turn in 0..count {
            stream.launch(&turns[turn % 2])?;
        }
        Ok(stream.synchronize()?)
    };
    let mut contenders = vec![
        Contender::timed("streamvm, eager", || Ok(eager()?.wait()?)),
        Contender::timed("bare launches of the same kernel", bare),
    ];
    contenders.extend(settings.torch.contender(&mut outcome, "PyTorch, eager", "add_chain.py", &[count]));
    outcome.contest(settings.runs, count as f64, contenders);
    outcome.compare("streamvm, eager", &["PyTorch, eager", "bare launches of the same kernel"]);
    Ok(outcome)
}
