//! Single ops over large tensors, beside PyTorch and a copy of as many bytes.

use std::cell::RefCell;

use streamvm::{Access, Convolution, DType, Generator, Pooling, Tensor, Vm};

use super::{Settings, Sizes, engine};
use crate::CUDA;
use crate::contest::error::Error;
use crate::contest::{Contender, Outcome};
use crate::hand::{Cuda, DeviceMemory, Kernels, f32s};

/// The tensors that the ops read.
struct Inputs {
    /// `[n, n]`, from -0.5 to 0.5.
    x: Tensor,
    /// `[n]`.
    row: Tensor,
    /// `x` in `f16`.
    half: Tensor,
    /// `[n]`, rows of `x`.
    integers: Tensor,
    /// `[32, 64, n / 128, n / 128]`.
    images: Tensor,
    /// `[64, 64, 3, 3]`.
    filters: Tensor,
}

const COPY: &str = "copy by hand";

type Call = fn(&Inputs) -> Result<Tensor, streamvm::Error>;

/// The ops: their name in `kernels.py` and what a table calls both sides, and the call.
const OPS: [(&str, [&str; 2], Call); 17] = [
    ("add", ["streamvm, add", "PyTorch, add"], |of| &of.x + &of.x),
    ("exp", ["streamvm, exp", "PyTorch, exp"], |of| of.x.exp()),
    ("gelu", ["streamvm, gelu", "PyTorch, gelu"], |of| of.x.gelu()),
    ("add a row", ["streamvm, add a row", "PyTorch, add a row"], |of| &of.x + &of.row),
    ("cast to f16", ["streamvm, cast to f16", "PyTorch, cast to f16"], |of| of.x.cast(DType::F16)),
    ("transposed copy", ["streamvm, transposed copy", "PyTorch, transposed copy"], |of| of.x.transpose(0, 1)?.to(CUDA)),
    ("sum", ["streamvm, sum", "PyTorch, sum"], |of| of.x.sum(&[])),
    ("sum of rows", ["streamvm, sum of rows", "PyTorch, sum of rows"], |of| of.x.sum(&[1])),
    ("sum of columns", ["streamvm, sum of columns", "PyTorch, sum of columns"], |of| of.x.sum(&[0])),
    ("argmax of rows", ["streamvm, argmax of rows", "PyTorch, argmax of rows"], |of| of.x.argmax(1)),
    ("softmax of rows", ["streamvm, softmax of rows", "PyTorch, softmax of rows"], |of| of.x.softmax(1)),
    ("layer norm", ["streamvm, layer norm", "PyTorch, layer norm"], |of| of.x.layer_norm(&of.row, &of.row, 1e-5)),
    ("cumsum of rows", ["streamvm, cumsum of rows", "PyTorch, cumsum of rows"], |of| of.x.cumsum(1)),
    ("index_select", ["streamvm, index_select", "PyTorch, index_select"], |of| of.x.index_select(&of.integers)),
    ("matmul f16", ["streamvm, matmul f16", "PyTorch, matmul f16"], |of| of.half.matmul(&of.half)),
    ("conv2d", ["streamvm, conv2d", "PyTorch, conv2d"], |of| {
        of.images.conv2d(&of.filters, Convolution { padding: [1; 2], ..Convolution::default() })
    }),
    ("max_pool2d", ["streamvm, max_pool2d", "PyTorch, max_pool2d"], |of| of.images.max_pool2d(Pooling::square(2))),
];

impl Inputs {
    fn new(vm: &Vm, n: usize) -> Result<Inputs, Error> {
        let generator = Generator::new(1);
        let random = |shape: &[usize]| vm.rand(&generator, CUDA, DType::F32, shape);
        let x = random(&[n, n])?;
        let half = vm.full(CUDA, DType::F32, &[], 0.5)?;
        let x = (&x - &half)?;
        let rows = vm.full(CUDA, DType::F32, &[], n as f32)?;
        Ok(Inputs {
            row: random(&[n])?,
            half: x.cast(DType::F16)?,
            integers: (&random(&[n])? * &rows)?.cast(DType::I64)?,
            images: random(&[32, 64, n / 128, n / 128])?,
            filters: random(&[64, 64, 3, 3])?,
            x,
        })
    }
}

/// Single ops beside PyTorch, each `repetitions` times in a run.
///
/// # Errors
/// There is no device; an op is refused.
pub fn kernels(settings: &Settings) -> Result<Outcome, Error> {
    let Sizes { kernel_n: n, repetitions, .. } = settings.sizes;
    let work = format!("ops over {n} x {n} f32, images of 32 x 64 x {0} x {0}, {repetitions} calls a run", n / 128);
    let mut outcome = Outcome::new("kernels", "ns a call", work);
    let vm = engine()?;
    let inputs = Inputs::new(&vm, n)?;
    let started = settings.torch.start("kernels.py", &[n, repetitions]);
    let script = match started {
        Ok(script) => {
            outcome.notes.push(script.about.clone());
            Some(RefCell::new(script))
        }
        Err(error) => {
            outcome.add_missing("PyTorch", error);
            None
        }
    };
    let cuda = Cuda::open()?;
    let stream = cuda.stream()?;
    let memory = cuda.several(2, |cuda| DeviceMemory::new(cuda, n * n * 4))?;
    let kernels = Kernels::new(&cuda);
    stream.launch(&kernels.fill(&f32s(memory[0].address(), [n, n], Access::Write)?, 0.5)?)?;
    let copy = || {
        (0..repetitions).try_for_each(|_| stream.within_device(&memory[0], &memory[1]))?;
        Ok(stream.synchronize()?)
    };
    let mut copy = Some(Contender::timed(COPY, copy));
    for (op, [ours, theirs], call) in OPS {
        let mut contenders = vec![Contender::timed(ours, || {
            for _ in 1..repetitions {
                call(&inputs)?;
            }
            Ok(call(&inputs)?.wait()?)
        })];
        // The first op is an addition of a tensor to itself, which moves as many bytes.
        contenders.extend(copy.take());
        if let Some(script) = &script {
            contenders.push(Contender { name: theirs, run: Box::new(move || script.borrow_mut().run(op)) });
        }
        outcome.contest(settings.runs, repetitions as f64, contenders);
        outcome.compare(ours, &[theirs]);
    }
    outcome.compare("streamvm, add", &[COPY]);
    Ok(outcome)
}
