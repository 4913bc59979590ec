//! How fast kernels that do next to nothing are launched, each after the one before.

use streamvm::ep::RawCall;
use streamvm::ep::cuda::{CudaGrid, Ptx};
use streamvm::{Access, DType, InstructionsBuilder};

use super::{LIST, Settings, engine, in_lists};
use crate::contest::error::Error;
use crate::contest::{Contender, Outcome};
use crate::hand::{Cuda, DeviceMemory, Kernels, Ready, Stream, f32s};
use crate::{CUDA, EMPTY, EMPTY_PTX};

const ONE: CudaGrid = CudaGrid { blocks: [1; 3], threads: [1; 3], shared_bytes: 0 };

/// An empty kernel by `call_cuda` and a fill of one element, beside a loop of the same launches on one stream.
///
/// # Errors
/// There is no device.
pub fn launch(settings: &Settings) -> Result<Outcome, Error> {
    let count = settings.sizes.launches;
    let mut outcome = Outcome::new("launch", "ns a launch", format!("{count} launches, each after the one before"));
    let vm = engine()?;
    vm.cuda_absence().map_or(Ok(()), |absent| Err(Error::Missing(absent.to_string())))?;
    let kernel = vm.load_cuda(CUDA, &Ptx::new(EMPTY_PTX)?, EMPTY)?;
    let x = vm.full(CUDA, DType::F32, &[1], 0.0)?;
    let empty = |builder: &mut InstructionsBuilder| {
        let kernel = kernel.clone();
        // SAFETY: the call is under way, and the kernel takes nothing and touches nothing.
        let body = move |raw: &RawCall<'_>| unsafe { kernel.launch(raw, &ONE, &[]) }.map_err(Into::into);
        Ok(builder.call_cuda("empty", CUDA, [x.update()], body)?)
    };
    let fill = |builder: &mut InstructionsBuilder| Ok(builder.fill(&x, 1.0)?);

    let cuda = Cuda::open()?;
    let (kernels, stream, memory) = (Kernels::new(&cuda), cuda.stream()?, DeviceMemory::new(&cuda, 4)?);
    let bare_empty = kernels.empty()?;
    let bare_fill = kernels.fill(&f32s(memory.address(), [1, 1], Access::Write)?, 1.0)?;
    let contenders = vec![
        Contender::timed("streamvm, call_cuda, lists of 64", || in_lists(&vm, count, LIST, empty)),
        Contender::timed("streamvm, call_cuda, one at a time", || in_lists(&vm, count, 1, empty)),
        Contender::timed("bare launches of the same kernel", || bare(&stream, &bare_empty, count)),
        Contender::timed("streamvm, fill, lists of 64", || in_lists(&vm, count, LIST, fill)),
        Contender::timed("streamvm, fill, one at a time", || in_lists(&vm, count, 1, fill)),
        Contender::timed("bare launches of the fill", || bare(&stream, &bare_fill, count)),
    ];
    outcome.contest(settings.runs, count as f64, contenders);
    for (kind, bare) in [("call_cuda", "bare launches of the same kernel"), ("fill", "bare launches of the fill")] {
        for how in ["lists of 64", "one at a time"] {
            outcome.compare(&format!("streamvm, {kind}, {how}"), &[bare]);
        }
    }
    Ok(outcome)
}

/// The loop that a program without an engine has.
pub(super) fn bare(stream: &Stream<'_>, kernel: &Ready, count: usize) -> Result<(), Error> {
    for _ in 0..count {
        stream.launch(kernel)?;
    }
    Ok(stream.synchronize()?)
}
