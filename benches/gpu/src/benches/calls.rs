//! How many records and waits the batches of `overlap` take, counted where they arrive: by a driver that stands in for NVIDIA's
//! and counts its calls. That tells of all alike, code that cannot count its own among it.
//!
//! The driver takes the place of the process's own, so the program `gpu-calls` is a process of its own ([`Counted::of_program`]).

use std::cell::Cell;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DriverError, PinnedHostSlice};
use serde_json::{Value, json};
use streamvm::Vm;
use streamvm::ep::cuda::CudaConfig;
use streamvm_standin::Standin;

use crate::benches::{BUFFERS, Batches, HOSTS, Sizes, calls_of_streamvm};
use crate::contest::error::Error;
use crate::hand::{Cuda, Products};

/// The longest that a program of streamvm takes to be given to a device.
const PATIENCE: Duration = Duration::from_secs(10);

/// Calls of one contender.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Of `cuEventRecord`.
    pub records: u64,
    /// Of `cuStreamWaitEvent`.
    pub waits: u64,
}

/// Calls of all who run the batches.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// A program of streamvm.
    pub streamvm: Calls,
    /// Streams and events by hand.
    pub by_hand: Calls,
    /// cudarc's safe interface, which keeps its streams in order by itself.
    pub cudarc: Calls,
}

impl Calls {
    fn so_far() -> Calls {
        Calls { records: Standin::count("cuEventRecord"), waits: Standin::count("cuStreamWaitEvent") }
    }

    fn since(before: Calls) -> Calls {
        let now = Calls::so_far();
        Calls { records: now.records - before.records, waits: now.waits - before.waits }
    }
}

impl Counted {
    /// Runs the batches over `driver`, each contender once. The stand-in finds waits for events that nothing has recorded in
    /// cudarc's, which CUDA takes for over; what else it finds is an error.
    ///
    /// # Errors
    /// The driver's; what it objects to; somebody computes the wrong thing.
    pub fn over(driver: &Standin, sizes: Sizes) -> Result<Counted, Error> {
        let streamvm = streamvm(driver, sizes)?;

        let cuda = Cuda::open()?;
        // NVIDIA's cuBLAS, which may be there, does not run over the stand-in.
        let products = Products::own(&cuda, "the driver is a stand-in");
        let batches = Batches::new(&cuda, sizes, products)?;
        let before = Calls::so_far();
        batches.three_streams()?;
        let by_hand = Calls::since(before);
        batches.check()?;
        drop(batches);
        if (by_hand.records, by_hand.waits) != cuda.records_and_waits() {
            return Err(Error::Wrong { who: "the code by hand", found: format!("{by_hand:?}, and it counts others") });
        }
        drop(cuda);
        let objections = driver.findings() + &driver.leaks();
        let cudarc = tracked(sizes)?;
        let known = |line: &&str| !line.starts_with("wait for an event never recorded");
        let found: String = objections.lines().chain(driver.findings().lines().filter(known)).collect();
        if !found.is_empty() {
            return Err(Error::Missing(format!("the driver objects: {found}")));
        }
        Ok(Counted { streamvm, by_hand, cudarc })
    }

    /// What the program `gpu-calls` beside this one counts for so many batches and products of each.
    ///
    /// # Errors
    /// It is not there, or fails.
    pub fn of_program(sizes: Sizes) -> Result<Counted, Error> {
        let own = std::env::current_exe().map_err(|error| Error::Missing(error.to_string()))?;
        Counted::of(&own.with_file_name("gpu-calls"), sizes)
    }

    fn of(program: &Path, sizes: Sizes) -> Result<Counted, Error> {
        let missing = |why: &dyn std::fmt::Display| Error::Missing(format!("{}: {why}", program.display()));
        // The machine's driver, and what it is set up by, have no part in it.
        let mut command = Command::new(program);
        command.env_clear().args([sizes.batches, sizes.products].map(|number| number.to_string()));
        let output = command.output().map_err(|error| missing(&error))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let counted = serde_json::from_str(&text).ok().and_then(|value| Counted::from_json(&value));
        counted.ok_or_else(|| {
            let said = String::from_utf8_lossy(&output.stderr);
            missing(&format!("{}: {}", output.status, said.lines().last().unwrap_or("it says nothing")))
        })
    }

    /// For another process.
    pub fn to_json(&self) -> Value {
        let of = |calls: Calls| json!({ "records": calls.records, "waits": calls.waits });
        json!({ "streamvm": of(self.streamvm), "by hand": of(self.by_hand), "cudarc": of(self.cudarc) })
    }

    fn from_json(value: &Value) -> Option<Counted> {
        let of = |who: &str| -> Option<Calls> {
            Some(Calls { records: value[who]["records"].as_u64()?, waits: value[who]["waits"].as_u64()? })
        };
        Some(Counted { streamvm: of("streamvm")?, by_hand: of("by hand")?, cudarc: of("cudarc")? })
    }
}

/// The batches as a program of streamvm, over a device that finishes nothing until all of it has been given: streamvm waits for
/// nothing that it has seen to be over, and what it sees would hang on the time.
fn streamvm(driver: &Standin, sizes: Sizes) -> Result<Calls, Error> {
    let copies = || Standin::count("cuMemcpyAsync");
    let config = CudaConfig { own_matmul: true, ..CudaConfig::default() };
    let vm = Vm::builder().cuda(Some(config)).build()?;
    let (start, before, held) = (Cell::new(Calls::default()), Cell::new(0), Cell::new(None));
    let all_given = |most: Instant| {
        while copies() < before.get() + 2 * sizes.batches as u64 && Instant::now() < most {
            std::thread::yield_now();
        }
    };
    calls_of_streamvm(
        &vm,
        sizes,
        || {
            held.set(Some(driver.hold()));
            before.set(copies());
            start.set(Calls::so_far());
        },
        || {
            all_given(Instant::now() + PATIENCE);
            drop(held.take());
        },
    )?;
    Ok(Calls::since(start.get()))
}

/// The batches on three streams that cudarc keeps in order by itself. What computes is a copy within the device, which touches
/// what a product would.
fn tracked(sizes: Sizes) -> Result<Calls, Error> {
    let context = CudaContext::new(0)?;
    let [up, compute, down] = [context.new_stream()?, context.new_stream()?, context.new_stream()?];
    let elements = sizes.n * sizes.n;
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
    let before = Calls::so_far();
    for batch in 0..sizes.batches {
        let (buffer, host) = (batch % BUFFERS, batch % HOSTS);
        up.memcpy_htod(&inputs[host], &mut x[buffer])?;
        for _ in 0..sizes.products {
            let (_, _read_too) = weights.device_ptr(&compute);
            let (from, _read) = x[buffer].device_ptr(&compute);
            let (to, _written) = y[buffer].device_ptr_mut(&compute);
            // SAFETY: both are as long and alive, and cudarc orders their streams.
            unsafe { cudarc::driver::sys::cuMemcpyAsync(to, from, elements * 4, compute.cu_stream()) }.result()?;
        }
        down.memcpy_dtoh(&y[buffer], &mut outputs[host])?;
    }
    context.synchronize()?;
    let counted = Calls::since(before);
    match outputs[0].as_slice()?[0] {
        1.0 => Ok(counted),
        other => Err(Error::Wrong { who: "cudarc", found: format!("{other}, and 1 is right") }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_go_to_another_process_and_back() {
        let calls = |records| Calls { records, waits: records + 1 };
        let counted = Counted { streamvm: calls(1), by_hand: calls(3), cudarc: calls(5) };
        assert_eq!(Counted::from_json(&counted.to_json()), Some(counted));
        assert_eq!(Counted::from_json(&json!({ "streamvm": {} })), None);
    }

    #[test]
    fn a_program_that_is_not_there_is_told() {
        let error = Counted::of(Path::new("/nowhere/gpu-calls"), Sizes::QUICK).unwrap_err().to_string();
        assert!(error.contains("/nowhere/gpu-calls: "), "{error}");
    }
}
