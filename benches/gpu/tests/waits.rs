//! Records and waits of the pipeline of batches, as the driver that stands in for NVIDIA's counts its calls: streamvm makes no
//! more of them than the code by hand, and cudarc's automatic tracking makes more.

#![cfg(target_os = "linux")]

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DriverError, PinnedHostSlice};
use streamvm_gpu::benches::{BUFFERS, Batches, HOSTS, Sizes, waits_of_streamvm};
use streamvm_gpu::hand::Cuda;
use streamvm_standin::Standin;

const SIZES: Sizes = Sizes { batches: 24, ..Sizes::QUICK };

/// Calls so far: records and waits.
fn calls(driver: &Standin) -> [u64; 2] {
    ["cuEventRecord", "cuStreamWaitEvent"].map(|name| driver.calls(name))
}

fn since(driver: &Standin, before: [u64; 2]) -> [u64; 2] {
    let after = calls(driver);
    [after[0] - before[0], after[1] - before[1]]
}

/// The same batches on three streams that cudarc keeps in order by itself. What computes is a copy within the device, which
/// touches what a product would.
fn tracked(driver: &Standin) -> Result<[u64; 2], DriverError> {
    let context = CudaContext::new(0)?;
    let [up, compute, down] = [context.new_stream()?, context.new_stream()?, context.new_stream()?];
    let elements = SIZES.n * SIZES.n;
    let device = |stream: &Arc<CudaStream>| -> Result<Vec<CudaSlice<f32>>, DriverError> {
        (0..BUFFERS).map(|_| stream.alloc_zeros(elements)).collect()
    };
    let (mut x, mut y) = (device(&up)?, device(&compute)?);
    let weights: CudaSlice<f32> = compute.alloc_zeros(elements)?;
    let host = || -> Result<Vec<PinnedHostSlice<f32>>, DriverError> {
        // SAFETY: it is written before it is read, below for inputs and by the device for outputs.
        (0..HOSTS).map(|_| unsafe { context.alloc_pinned_with_flags(elements, 0) }).collect()
    };
    let (mut inputs, mut outputs) = (host()?, host()?);
    for input in &mut inputs {
        input.as_mut_slice()?.fill(1.0);
    }
    context.synchronize()?;
    let before = calls(driver);
    for batch in 0..SIZES.batches {
        let (buffer, host) = (batch % BUFFERS, batch % HOSTS);
        up.memcpy_htod(&inputs[host], &mut x[buffer])?;
        for _ in 0..SIZES.products {
            let (_, _read_too) = weights.device_ptr(&compute);
            let (from, _read) = x[buffer].device_ptr(&compute);
            let (to, _written) = y[buffer].device_ptr_mut(&compute);
            // SAFETY: both are as long and alive, and cudarc orders their streams.
            unsafe { cudarc::driver::sys::cuMemcpyAsync(to, from, elements * 4, compute.cu_stream()) }.result()?;
        }
        down.memcpy_dtoh(&y[buffer], &mut outputs[host])?;
    }
    context.synchronize()?;
    let counted = since(driver, before);
    assert_eq!(outputs[0].as_slice()?[0], 1.0);
    Ok(counted)
}

#[test]
fn streamvm_records_and_waits_no_more_than_the_code_by_hand() {
    let driver = Standin::load("delay=5");
    let start = std::cell::Cell::new([0; 2]);
    let told = waits_of_streamvm(SIZES, || start.set(calls(&driver))).expect("the pipeline runs");
    let streamvm = since(&driver, start.get());

    let cuda = Cuda::open().expect("the stand-in");
    let by_hand = Batches::new(&cuda, SIZES).expect("memory");
    let before = calls(&driver);
    by_hand.three_streams().expect("the batches run");
    let hand = since(&driver, before);
    by_hand.check().expect("what goes in comes out");
    drop(by_hand);
    assert_eq!(hand, [cuda.records_and_waits().0, cuda.records_and_waits().1], "the counts by hand are the driver's");
    drop(cuda);
    assert_eq!((driver.findings(), driver.leaks()), (String::new(), String::new()));

    let tracked = tracked(&driver).expect("cudarc runs");
    // cudarc's own: it also waits for what was not used yet, which CUDA takes for over.
    let findings = driver.findings();
    assert!(findings.lines().all(|line| line.starts_with("wait for an event never recorded")), "{findings}");
    let counted = format!("records and waits: streamvm {streamvm:?}, by hand {hand:?}, cudarc {tracked:?}");
    // The engine counts what it has decided; what is over by then is not waited for.
    assert!(streamvm[1] <= told, "the engine says {told} waits; {counted}");
    assert!(streamvm[1] > 0, "a pipeline without a wait is none; {counted}");
    assert!(streamvm[0] <= hand[0] && streamvm[1] <= hand[1], "{counted}");
    assert!(tracked[0] > hand[0] && tracked[1] > hand[1], "{counted}");
}
