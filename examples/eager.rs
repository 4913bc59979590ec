//! Eager calls: each returns at once, and the engine orders the work by what it reads and writes.
//!
//! Run with `cargo run --example eager -p streamvm`.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use streamvm::{DType, DeviceId, Error, Lane, Vm};

fn main() -> Result<(), Error> {
    env_logger::init();
    let vm = Vm::builder().build()?;
    // The first GPU if there is one, else the CPU.
    let device = if vm.cuda_available() { DeviceId::cuda(0) } else { DeviceId::cpu(0) };

    // Copies go by the host-to-device stream, kernels by the compute stream; nothing waits here.
    let x = vm.from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?.to(device)?;
    let w = vm.full(device, DType::F32, &[3, 2], 0.5)?;
    let h = x.matmul(&w)?.relu()?;

    // Another lane of the compute stream: this runs beside `h`.
    let squared = {
        let _lane = Lane(1).enter();
        (&x * &x)?
    };

    // Views share memory. Reading back is the only call that waits.
    println!("h         {:?}", h.to_vec::<f32>()?);
    println!("squared   {:?}", squared.to_vec::<f32>()?);
    println!("transpose {:?}", x.permute(&[1, 0])?.to_vec::<f32>()?);

    // An error comes back with the operation that caused it, and the engine goes on.
    let ones = vm.full(device, DType::I32, &[2], 1)?;
    let zeros = vm.full(device, DType::I32, &[2], 0)?;
    match (&ones / &zeros)?.to_vec::<i32>() {
        Err(error) => println!("division  {error}"),
        Ok(values) => println!("division  {values:?}"),
    }
    println!("sum       {:?}", h.sum(&[])?.to_vec::<f32>()?);
    Ok(())
}
