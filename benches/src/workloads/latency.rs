//! Latency: builds and submits one instruction and waits for it, then the next.

use std::time::{Duration, Instant};

use streamvm::{InstructionsBuilder, Op, Params, Ticket, Vm};

use super::DEVICE;
use crate::harness::case::{Sample, Sizes};
use crate::harness::error::Error;
use crate::harness::stats::median_and_p99;

/// Pause before a trip, after which the thread context has parked: it polls for work for some microseconds.
const PAUSE: Duration = Duration::from_micros(200);

/// Median and p99 of an empty function, of a built-in kernel over one element, and of this kernel after a pause.
///
/// # Errors
/// The engine failed.
pub fn latency(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let vm = Vm::builder().build()?;
    let variable = vm.var();
    let function = round_trips(sizes, || Ok(vm.call_fn("empty", DEVICE, [variable.update()], |_| Ok(()))?))?;

    let one = vm.from_slice(&[1.0f32], &[1])?.to(DEVICE)?;
    let sum = vm.from_slice(&[0.0f32], &[1])?.to(DEVICE)?;
    let add = || {
        let mut builder = InstructionsBuilder::new();
        builder.op_into(Op::Add, &[&sum, &one], Params::default(), &sum)?;
        Ok(vm.submit(builder.finish())?)
    };
    let kernel = round_trips(sizes, add)?;
    let mut after_pauses = Vec::new();
    for _ in 0..sizes.trips / 20 {
        std::thread::sleep(PAUSE);
        after_pauses.push(trip(add)?);
    }
    let after_pauses = median_and_p99(&mut after_pauses);
    let trips = sizes.warm_up().trips + sizes.trips + sizes.trips / 20;
    let (sums, expected) = (sum.to_vec::<f32>()?, trips as f32);
    if sums != [expected] {
        return Err(Error::Wrong { workload: "latency", found: format!("the sum is {sums:?}, not {expected}") });
    }
    Ok(vec![
        Sample::ns("median_function", function.0),
        Sample::ns("p99_function", function.1),
        Sample::ns("median_kernel", kernel.0),
        Sample::ns("p99_kernel", kernel.1),
        Sample::ns("median_kernel_after_a_pause", after_pauses.0),
        Sample::ns("p99_kernel_after_a_pause", after_pauses.1),
    ])
}

pub(super) fn round_trips<'vm>(
    sizes: &Sizes,
    submit: impl Fn() -> Result<Ticket<'vm>, Error>,
) -> Result<(f64, f64), Error> {
    for _ in 0..sizes.warm_up().trips {
        trip(&submit)?;
    }
    let mut durations = (0..sizes.trips).map(|_| trip(&submit)).collect::<Result<Vec<_>, Error>>()?;
    Ok(median_and_p99(&mut durations))
}

/// Nanoseconds to submit once and wait for it.
fn trip<'vm>(submit: impl Fn() -> Result<Ticket<'vm>, Error>) -> Result<u64, Error> {
    let start = Instant::now();
    submit()?.wait()?;
    Ok(start.elapsed().as_nanos() as u64)
}
