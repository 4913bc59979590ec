//! Faults that a real device allows, and what must come of them.

use std::time::Duration;

use streamvm::ep::RawCall;
use streamvm::ep::cuda::{CudaArgument, CudaGrid, Ptx};
use streamvm::ep::{Error as DeviceError, KernelError};
use streamvm::{Cause, DType, DeviceId, Error, InstructionsBuilder, TimeLimit, Vm};

use crate::{CUDA, EMPTY, EMPTY_PTX};

const CPU: DeviceId = DeviceId::cpu(0);

const ONE: CudaGrid = CudaGrid { blocks: [1; 3], threads: [1; 3], shared_bytes: 0 };

/// A kernel that writes where there is no memory. A driver that stands in for NVIDIA's runs no PTX and knows the name as that
/// of a kernel that does nothing; it is told to end the context at this launch.
const WILD_PTX: &str = "\
.version 7.0
.target sm_70
.address_size 64
.visible .entry standin_empty()
{
\t.reg .b64 %rd<2>;
\t.reg .b32 %r<2>;
\tmov.u64 %rd1, 16;
\tmov.u32 %r1, 1;
\tst.global.u32 [%rd1], %r1;
\tret;
}
";

/// After this, a wait that should have ended has not.
const PATIENCE: Duration = Duration::from_secs(60);

/// Pieces of memory that a device is filled with, in bytes.
const PIECE: usize = 256 << 20;

/// More of them than any device has.
const MOST_PIECES: usize = 4096;

/// A case: its name, and what it does; the text says what did not hold.
pub type Case = (&'static str, fn() -> Result<(), String>);

/// All cases. The last one leaves this process without its device: nothing comes after it.
pub const ALL: [Case; 4] = [
    ("out of device memory", out_of_memory),
    ("division by zero", division_by_zero),
    ("wrong PTX", wrong_ptx),
    ("illegal address", illegal_address),
];

fn engine() -> Result<Vm, String> {
    let vm = Vm::builder().build().map_err(|error| error.to_string())?;
    vm.cuda_absence().map_or(Ok(()), |absent| Err(absent.to_string()))?;
    Ok(vm)
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

/// `device` computes what it should.
fn goes_on(vm: &Vm, device: DeviceId) -> Result<(), String> {
    let x = vm.from_slice(&[1.0f32, 2.0, 3.0], &[3]).and_then(|x| x.to(device)).map_err(text)?;
    let sum = (&x + &x).and_then(|sum| TimeLimit(PATIENCE).run(|| sum.to_vec::<f32>())).map_err(text)?;
    if sum == [2.0, 4.0, 6.0] { Ok(()) } else { Err(format!("{device} computes {sum:?}, and [2, 4, 6] is right")) }
}

/// More than there is is a typed error, and what fits still fits.
fn out_of_memory() -> Result<(), String> {
    let vm = engine()?;
    let take = |bytes: usize| {
        let mut builder = InstructionsBuilder::new();
        let taken = builder.allocate(CUDA, DType::U8, &[bytes])?;
        vm.submit(builder.finish()).map(|_| taken)
    };
    // What never fits, and then pieces until there is no more.
    match take(1 << 40) {
        Err(Error::OutOfMemory { source, .. }) if matches!(*source, DeviceError::OutOfMemory { device: CUDA, .. }) => {}
        other => return Err(format!("1 TiB gave {other:?}")),
    }
    goes_on(&vm, CUDA)?;
    let mut held = Vec::new();
    let refused = loop {
        match take(PIECE) {
            Ok(tensor) if held.len() < MOST_PIECES => held.push(tensor),
            other => break other,
        }
    };
    if !matches!(refused, Err(Error::OutOfMemory { .. })) {
        return Err(format!("behind {} times {PIECE} bytes came {refused:?}", held.len()));
    }
    drop(held);
    vm.wait_all().map_err(text)?;
    goes_on(&vm, CUDA)
}

/// An integer division tells the first element that it cannot do, and what comes next is fine.
fn division_by_zero() -> Result<(), String> {
    let vm = engine()?;
    let on_device =
        |elements: &[i32]| vm.from_slice(elements, &[elements.len()]).and_then(|x| x.to(CUDA)).map_err(text);
    let (mut divisors, first) = ([7; 1000], 613);
    divisors[first] = 0;
    divisors[900] = 0;
    let quotient = (&on_device(&[42; 1000])? / &on_device(&divisors)?).map_err(text)?;
    match TimeLimit(PATIENCE).run(|| quotient.to_vec::<i32>()) {
        Err(Error::Failed(failure)) => match &failure.cause {
            Cause::Device(DeviceError::Kernel(KernelError::DivisionByZero { index, .. })) if *index == first => {}
            other => return Err(format!("the cause is {other:?}")),
        },
        other => return Err(format!("the quotient is {other:?}")),
    }
    // It is told once more to whoever waits for all.
    let _ = vm.wait_all();
    goes_on(&vm, CUDA)
}

/// What the driver's compiler refuses, and a kernel that is not there, are typed errors.
fn wrong_ptx() -> Result<(), String> {
    let vm = engine()?;
    for (ptx, kernel) in [("this is no PTX", EMPTY), (EMPTY_PTX, "missing")] {
        match vm.load_cuda(CUDA, &Ptx::new(ptx).map_err(text)?, kernel) {
            Err(Error::Device { error: DeviceError::Driver { device: CUDA, .. }, .. }) => {}
            other => return Err(format!("`{kernel}` of {ptx:?} gave {other:?}")),
        }
    }
    goes_on(&vm, CUDA)
}

/// A kernel that goes astray takes its device with it: all that depends on it fails with the one root, and the CPU of the
/// same engine goes on.
fn illegal_address() -> Result<(), String> {
    let vm = engine()?;
    let kernel = vm.load_cuda(CUDA, &Ptx::new(WILD_PTX).map_err(text)?, EMPTY).map_err(text)?;
    let x = vm.full(CUDA, DType::F32, &[16], 1.0).map_err(text)?;
    TimeLimit(PATIENCE).run(|| x.wait()).map_err(text)?;
    let mut builder = InstructionsBuilder::new();
    let arguments: [CudaArgument; 0] = [];
    let wild = move |raw: &RawCall<'_>| {
        // SAFETY: the call is under way, and the kernel takes nothing. What it touches is nobody's, which is the point: the
        // device refuses it.
        unsafe { kernel.launch(raw, &ONE, &arguments) }.map_err(Into::into)
    };
    builder.call_cuda("astray", CUDA, [x.update()], wild).map_err(text)?;
    let behind = builder.neg(&x).map_err(text)?;
    let further = builder.add(&behind, &x).map_err(text)?;
    vm.submit(builder.finish()).map_err(text)?;
    for (name, tensor) in [("what it wrote", &x), ("what came behind", &behind), ("what came further behind", &further)]
    {
        // Waited for and not read: a copy that comes when the loss is known is refused by itself, whatever it copies.
        match TimeLimit(PATIENCE).run(|| tensor.wait()) {
            Err(Error::Failed(failure)) => match &failure.cause {
                Cause::Device(DeviceError::DeviceLost { device: CUDA, .. }) => {}
                other => return Err(format!("the cause of {name} is {other:?}")),
            },
            other => return Err(format!("{name} is {other:?}")),
        }
    }
    goes_on(&vm, CPU)?;
    match goes_on(&vm, CUDA) {
        Ok(()) => Err("the device computes on, and was lost".to_owned()),
        Err(error) if error.contains("lost") => Ok(()),
        Err(error) => Err(format!("new work on the device says: {error}")),
    }
}
