//! Batches through a device: copied in, computed on, copied out, each lane beside the other.
//!
//! On the first GPU if there is one, else on the CPU: the program is the same. Run with
//! `cargo run --example pipeline -p streamvm`.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::collections::BTreeMap;

use streamvm::{DeviceId, Error, InstructionsBuilder, Vm};

const BATCHES: usize = 8;
/// Rows of a batch, and rows and columns of the weights.
const SIDE: usize = 32;

fn main() -> Result<(), Error> {
    env_logger::init();
    let vm = Vm::builder().build()?;
    let device = match vm.cuda_absence() {
        None => DeviceId::cuda(0),
        Some(reason) => {
            log::info!("on the CPU: {reason}");
            DeviceId::cpu(0)
        }
    };
    println!("on {device}");

    // Pinned memory is what a GPU's copies reach by themselves: nothing is staged. It is made once and used again.
    let inputs: Vec<_> = (0..BATCHES)
        .map(|batch| vm.from_slice_pinned(device, &[batch as f32; SIDE * SIDE], &[SIDE, SIDE]))
        .collect::<Result<_, _>>()?;
    let outputs: Vec<_> = (0..BATCHES)
        .map(|_| vm.from_slice_pinned(device, &[0.0f32; SIDE * SIDE], &[SIDE, SIDE]))
        .collect::<Result<_, _>>()?;
    let weights = vm.from_slice(&[0.5f32; SIDE * SIDE], &[SIDE, SIDE])?.to(device)?;

    // Batches take turns on two lanes. Each lane has three streams: copies in, kernels, copies out. So the next batch is
    // copied in while this one is computed and the last one copied out; only what needs a result waits for it.
    let mut b = InstructionsBuilder::new();
    for (batch, (input, output)) in inputs.iter().zip(&outputs).enumerate() {
        let mut b = b.on_lane(batch as u32 % 2);
        let x = b.copy(input, device)?;
        let h = b.matmul(&x, &weights)?;
        let sum = b.add(&h, &x)?;
        let y = b.relu(&sum)?;
        b.copy_into(&y, output)?;
    }
    let list = b.finish();
    let mut streams = BTreeMap::new();
    for instruction in list.instructions() {
        *streams.entry(instruction.stream.to_string()).or_insert(0) += 1;
    }
    for (stream, count) in streams {
        println!("{count:>3} instructions on {stream}");
    }
    vm.submit(list)?;

    // Each read waits for its own batch, and so for those before it on its lane; later ones go on.
    for (batch, output) in outputs.iter().enumerate() {
        println!("batch {batch}: {:?}", output.to_vec::<f32>()?[0]);
    }
    Ok(())
}
