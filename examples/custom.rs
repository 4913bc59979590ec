//! A function of one's own between kernels: it declares what it reads and writes, and gets slices of just that.
//!
//! Run with `cargo run --example custom -p streamvm`.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use streamvm::{DType, DeviceId, Error, InstructionsBuilder, Vm};

fn main() -> Result<(), Error> {
    env_logger::init();
    let vm = Vm::builder().build()?;
    let cpu = DeviceId::cpu(0);
    let x = vm.from_slice(&[3.0f32, 1.0, 2.0], &[3])?;
    let calls = Arc::new(AtomicU64::new(0));
    // A variable stands for anything that streamvm does not know: here, a counter.
    let counter = vm.var();

    let mut b = InstructionsBuilder::new();
    let on_device = b.copy(&x, cpu)?;
    let sorted = b.allocate(cpu, DType::F32, &[3])?;
    let counted = calls.clone();
    b.call_fn("sort", cpu, [on_device.read(), sorted.write(), counter.update()], move |context| {
        let input = context.reads.get::<f32>(0)?;
        let output = context.writes.take::<f32>(0)?;
        output.copy_from_slice(input);
        output.sort_by(f32::total_cmp);
        counted.fetch_add(1, Ordering::Relaxed);
        Ok(())
    })?;
    let doubled = b.add(&sorted, &sorted)?;
    vm.submit(b.finish())?;
    println!("sorted and doubled {:?}", doubled.to_vec::<f32>()?);

    // A function that fails poisons what it should have written: every reader learns the cause, each time it asks.
    // One function alone needs no list.
    let ticket = vm.call_fn("refuse", cpu, [sorted.update(), counter.update()], |_| Err("not today".into()))?;
    let after = sorted.neg()?;
    println!("the call           {}", ticket.wait().map_or_else(|error| error.to_string(), |()| "fine".to_owned()));
    println!("its reader         {}", after.wait().map_or_else(|error| error.to_string(), |()| "fine".to_owned()));
    println!("calls              {}", calls.load(Ordering::Relaxed));
    Ok(())
}
