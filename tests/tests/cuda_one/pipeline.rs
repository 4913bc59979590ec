//! Batches of tensors that fill a region each, with new tensors for each batch: what comes in next does not wait for what is
//! computed now, memory has a bound all the same, and where there is none to spare the batches wait. Over a driver that stands
//! in for NVIDIA's.

#![cfg(target_os = "linux")]

use std::time::Duration;

use streamvm::ep::cuda::CudaConfig;
use streamvm::{DType, DeviceId, Error, InstructionsBuilder, MemoryKind, StreamKey, StreamType, Tensor, TimeLimit, Vm};
use streamvm_standin::Standin;
use streamvm_tests::{CPU, ClosedGate, PATIENCE, submit};

const CUDA: DeviceId = DeviceId::cuda(0);

/// Of one tensor: as much as the smallest region.
const BYTES: usize = 2 << 20;

/// Of 4 bytes.
const ELEMENTS: usize = BYTES / 4;

/// Tensors that the device has memory for at most: two in use, four that are free but for a wait.
const TENSORS: usize = 6;

fn standin() -> Standin {
    Standin::load("devices=1;delay=5")
}

fn end(vm: Vm) {
    vm.shutdown(Duration::from_secs(60)).expect("it ends");
}

/// Pinned tensors to copy from and to, and what is done with them.
struct Pipeline<'v> {
    vm: &'v Vm,
    input: Tensor,
    output: Tensor,
}

impl Pipeline<'_> {
    fn new(vm: &Vm) -> Result<Pipeline<'_>, Error> {
        let pinned = |value: i32| vm.from_slice_pinned(CUDA, &vec![value; ELEMENTS], &[ELEMENTS]);
        Ok(Pipeline { vm, input: pinned(7)?, output: pinned(0)? })
    }

    /// Copy in, kernel, copy out; what has come in is given.
    fn batch(&self) -> Result<Tensor, Error> {
        let mut list = InstructionsBuilder::new();
        let x = list.copy(&self.input, CUDA)?;
        let y = list.neg(&x)?;
        list.copy_into(&y, &self.output)?;
        self.vm.submit(list.finish())?;
        Ok(x)
    }

    /// Lets the kernels go, waits for all, and looks at what came out.
    fn finish(&self, gate: &ClosedGate) -> Result<(), Error> {
        gate.open();
        self.vm.wait_all()?;
        assert!(self.output.to_vec::<i32>()? == vec![-7; ELEMENTS]);
        Ok(())
    }
}

/// Bytes of the device that the engine has, in use and cached.
fn reserved(vm: &Vm) -> usize {
    let stats = vm.stats();
    let pools = stats.memory.iter().filter(|pool| pool.place == CUDA.into() && pool.kind == MemoryKind::Device);
    pools.map(|pool| pool.allocator.reserved).sum()
}

/// Waits of the stream that copies in.
fn waits(vm: &Vm) -> u64 {
    let copies = StreamKey::new(CUDA, StreamType::HostToDevice, 0);
    let stats = vm.stats();
    stats
        .streams
        .iter()
        .filter(|stream| stream.stream == copies)
        .map(|stream| stream.device_waits + stream.host_waits)
        .sum()
}

/// Holds kernels back until the gate is open. What the driver does by itself goes on, such as zeroing fresh memory.
fn held_kernels(vm: &Vm) -> ClosedGate {
    let gate = ClosedGate::new();
    let host = StreamKey::new(CPU, StreamType::Compute, 0);
    submit(vm, |b| {
        b.call_fn("held", CPU, [], gate.function())?;
        let event = b.record(host);
        b.wait(StreamKey::new(CUDA, StreamType::Compute, 0), host, &event);
        Ok(())
    });
    gate
}

#[test]
fn a_copy_in_ends_while_the_kernel_before_it_is_held_back() -> Result<(), Error> {
    let _driver = standin();
    let vm = Vm::builder().build()?;
    let pipeline = Pipeline::new(&vm)?;
    let gate = held_kernels(&vm);
    for batch in 0..3 {
        let x = pipeline.batch()?;
        TimeLimit(PATIENCE)
            .run(|| x.wait())
            .unwrap_or_else(|error| panic!("batch {batch} waits for a kernel: {error}"));
    }
    assert_eq!(waits(&vm), 0);
    pipeline.finish(&gate)?;
    drop(pipeline);
    end(vm);
    Ok(())
}

#[test]
fn memory_of_a_pipeline_has_a_bound_however_far_it_runs_ahead() -> Result<(), Error> {
    let driver = standin();
    let vm = Vm::builder().build()?;
    let pipeline = Pipeline::new(&vm)?;
    for round in 0..3 {
        // No kernel passes meanwhile: the farthest that a caller can be ahead.
        let gate = held_kernels(&vm);
        let allocated = driver.calls("cuMemAlloc_v2");
        assert!(round == 0 || allocated > 0);
        for _ in 0..16 {
            pipeline.batch()?;
        }
        assert!(reserved(&vm) <= TENSORS * BYTES, "{}", reserved(&vm));
        assert!(waits(&vm) > 0, "one of sixteen waits for memory");
        if round > 0 {
            assert_eq!(driver.calls("cuMemAlloc_v2"), allocated, "nothing in steady state");
        }
        pipeline.finish(&gate)?;
    }
    drop(pipeline);
    end(vm);
    Ok(())
}

#[test]
fn without_memory_to_spare_a_pipeline_waits_and_goes_on_beside_others_again() -> Result<(), Error> {
    let _driver = standin();
    // Two tensors of one batch, those on the host, and one that is in the way.
    let config = CudaConfig { memory_limit: Some(5 * BYTES as u64), ..CudaConfig::default() };
    let vm = Vm::builder().cuda(Some(config)).build()?;
    let pipeline = Pipeline::new(&vm)?;
    let other = vm.full(CUDA, DType::I32, &[ELEMENTS], 1)?;
    let gate = held_kernels(&vm);
    for _ in 0..10 {
        pipeline.batch()?;
    }
    let before = waits(&vm);
    assert!(before > 0, "there is no other way");
    pipeline.finish(&gate)?;
    assert_eq!(reserved(&vm), 3 * BYTES);

    // What is given back may be asked for again.
    drop(other);
    vm.empty_cache();
    assert_eq!(reserved(&vm), 0);
    let gate = held_kernels(&vm);
    for _ in 0..2 {
        pipeline.batch()?;
    }
    assert_eq!(waits(&vm), before, "the second has memory of its own");
    pipeline.finish(&gate)?;
    drop(pipeline);
    end(vm);
    Ok(())
}
