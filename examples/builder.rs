//! Explicit lists: built without an engine, shown with the waits that they need, then submitted as a whole.
//!
//! Run with `cargo run --example builder -p streamvm`.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use streamvm::{DeviceId, Error, InstructionList, InstructionsBuilder, PlanOptions, Tensor, Vm, plan};

/// Copies two batches in, one ahead of the other, computes on each, and copies the results back.
fn two_batches(device: DeviceId, batches: [&Tensor; 2]) -> Result<(InstructionList, Vec<Tensor>), Error> {
    let mut b = InstructionsBuilder::new();
    let first = b.copy(batches[0], device)?;
    let second = b.copy(batches[1], device)?;
    let mut results = Vec::new();
    for batch in [first, second] {
        let doubled = b.add(&batch, &batch)?;
        results.push(b.copy(&doubled, streamvm::Place::Host)?);
        b.release(&batch);
    }
    Ok((b.finish(), results))
}

fn main() -> Result<(), Error> {
    env_logger::init();
    let vm = Vm::builder().build()?;
    let batches = [vm.from_slice(&[1.0f32, 2.0], &[2])?, vm.from_slice(&[3.0f32, 4.0], &[2])?];

    // What the list would get on a GPU, which need not be there: events recorded after each copy.
    let (list, _) = two_batches(DeviceId::cuda(0), [&batches[0], &batches[1]])?;
    println!("on cuda:0\n{}", plan(list, &PlanOptions::default())?.list);

    // The same on the CPU, for real. CPU streams show their progress by numbers, so there are no events.
    let (list, results) = two_batches(DeviceId::cpu(0), [&batches[0], &batches[1]])?;
    let ticket = vm.submit(list)?;
    ticket.wait()?;
    for (batch, result) in results.iter().enumerate() {
        println!("batch {batch}: {:?}", result.to_vec::<f32>()?);
    }
    for stream in vm.stats().streams {
        let waits = stream.device_waits + stream.host_waits;
        println!("{:<18} {:>3} instructions {:>3} waits", stream.stream.to_string(), stream.instructions, waits);
    }
    Ok(())
}
