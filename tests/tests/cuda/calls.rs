//! Kernels of a caller's own on an engine's CUDA streams, over a driver that stands in for NVIDIA's.

#![cfg(target_os = "linux")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use streamvm::ep::cuda::{CudaGrid, Ptx};
use streamvm::ep::faults::{Fault, FaultPlan, Point, Rule};
use streamvm::program::CompileOptions;
use streamvm::{DType, DeviceId, Error, InstructionsBuilder, MemoryKind, Tensor, Vm};
use streamvm_standin::{EMPTY, EMPTY_PTX, Standin};
use streamvm_tests::CPU;

const CUDA: DeviceId = DeviceId::cuda(0);
const ONE: CudaGrid = CudaGrid { blocks: [1; 3], threads: [1; 3], shared_bytes: 0 };

fn engine() -> (Standin, Vm) {
    (Standin::load("devices=2"), Vm::builder().build().expect("an engine"))
}

/// A device was given the host's address of write-combined memory, where a driver may have another for kernels.
#[test]
fn a_kernel_of_ones_own_is_told_the_address_by_which_kernels_reach_write_combined_memory() {
    let (standin, vm) = engine();
    let at = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let mut b = InstructionsBuilder::new();
    let host = vm.from_slice(&[1.0f32; 4], &[4]).expect("memory");
    let memory = [MemoryKind::Upload, MemoryKind::Pinned].map(|memory| {
        let tensor = Tensor::unbound(CUDA.into(), memory, DType::F32, host.shape());
        b.copy_into(&host, &tensor).expect("a copy");
        tensor
    });
    let (shown, uses) = (at.clone(), [memory[0].read(), memory[1].read()]);
    b.call_cuda("mine", CUDA, uses, move |raw| {
        for (at, operand) in shown.iter().zip(raw.operands) {
            assert!(operand.slice::<f32>().is_err(), "the host makes no slice of it");
            at.store(operand.ptr().addr(), Ordering::SeqCst);
        }
        Ok(())
    })
    .expect("a call");
    let by_host = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let (shown, uses) = (by_host.clone(), [memory[0].read(), memory[1].read()]);
    b.call_fn("the host's", CPU, uses, move |context| {
        for (index, at) in shown.iter().enumerate() {
            at.store(context.reads.get::<f32>(index)?.as_ptr().addr(), Ordering::SeqCst);
        }
        Ok(())
    })
    .expect("the host reaches both");
    vm.submit(b.finish()).expect("it is taken").wait().expect("it passes");
    let of = |at: &[AtomicUsize; 2]| [0, 1].map(|index: usize| at[index].load(Ordering::SeqCst));
    let (kernels, host) = (of(&at), of(&by_host));
    assert_ne!(kernels[0], host[0], "the driver has another address for kernels");
    assert_eq!(kernels[1], host[1], "pinned memory has one address for both");
    drop((vm, memory, host));
    assert_eq!(standin.findings(), "");
}

#[test]
fn a_kernel_of_ones_own_runs_between_what_comes_before_and_after() {
    let (standin, vm) = engine();
    let kernel = vm.load_cuda(CUDA, &Ptx::new(EMPTY_PTX).expect("a text"), EMPTY).expect("a kernel");
    let mut b = InstructionsBuilder::new();
    let x = b.full(CUDA, DType::F32, &[4], 3.0).expect("memory");
    let (calls, shown) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    for _ in 0..3 {
        let (kernel, calls, shown) = (kernel.clone(), calls.clone(), shown.clone());
        b.call_cuda("mine", CUDA, [x.update()], move |raw| {
            assert_eq!((raw.device, raw.operands.len()), (CUDA, 1));
            shown.store(raw.operands[0].ptr().addr(), Ordering::SeqCst);
            calls.fetch_add(1, Ordering::SeqCst);
            // SAFETY: the call is under way, and the kernel takes nothing and touches nothing.
            unsafe { kernel.launch(raw, &ONE, &[]) }.map_err(Into::into)
        })
        .expect("a call");
    }
    let pinned = vm.from_slice_pinned(CUDA, &[0.0f32; 4], &[4]).expect("memory");
    b.call_cuda("no slices", CUDA, [x.read(), pinned.update()], |raw| {
        // Of memory that the host does not reach, or that is still being written.
        assert!(raw.operands.iter().all(|operand| operand.slice::<f32>().is_err() && operand.bytes().is_err()));
        Ok(())
    })
    .expect("a call");
    let y = b.neg(&x).expect("an op");
    let list = b.finish();
    assert!(list.to_string().contains("cuda     compute@cuda:0:0      \"mine\" update t0"), "{list}");
    let text = list.to_string();
    assert_eq!(streamvm::InstructionList::parse(&text).expect("it reads back").to_string(), text);
    vm.submit(list).expect("it is taken");
    assert_eq!(y.to_vec::<f32>(), Ok(vec![-3.0; 4]));
    assert_eq!(calls.load(Ordering::SeqCst), 3);
    assert_ne!(shown.load(Ordering::SeqCst), 0);
    assert_eq!(pinned.to_vec::<f32>(), Ok(vec![0.0; 4]));
    drop((vm, kernel, x, y, pinned));
    assert_eq!(standin.findings(), "");
}

#[test]
fn what_a_function_reports_fails_what_it_should_have_written() {
    let (standin, vm) = engine();
    let x = vm.full(CUDA, DType::F32, &[4], 1.0).expect("memory");
    let kernel = vm.load_cuda(DeviceId::cuda(1), &Ptx::new(EMPTY_PTX).expect("a text"), EMPTY).expect("a kernel");
    let mut b = InstructionsBuilder::new();
    b.call_cuda("elsewhere", CUDA, [x.update()], move |raw| {
        // SAFETY: the call is under way, and the kernel takes nothing and touches nothing.
        unsafe { kernel.launch(raw, &ONE, &[]) }.map_err(Into::into)
    })
    .expect("a call");
    vm.submit(b.finish()).expect("it is taken");
    let error = x.to_vec::<f32>().expect_err("the kernel is loaded on another device");
    assert!(error.to_string().contains("loaded on cuda:1 cannot run on cuda:0"), "{error}");
    drop((vm, x));
    assert_eq!(standin.findings(), "");
}

#[test]
fn wrong_devices_and_kernels_are_typed_errors() {
    let (standin, vm) = engine();
    let ptx = Ptx::new(EMPTY_PTX).expect("a text");
    let no_gpu = vm.load_cuda(CPU, &ptx, EMPTY).expect_err("a CPU");
    assert!(no_gpu.to_string().contains("cannot run on cpu:0"), "{no_gpu}");
    assert!(vm.load_cuda(DeviceId::cuda(7), &ptx, EMPTY).is_err());
    assert!(vm.load_cuda(CUDA, &ptx, "missing").is_err());
    // On a CPU's stream there is no driver; operands of elsewhere are seen when the list is built.
    let x = vm.full(CPU, DType::F32, &[1], 0.0).expect("memory");
    let mut b = InstructionsBuilder::new();
    b.call_cuda("on a CPU", CPU, [x.update()], |_| Ok(())).expect("a call");
    assert!(b.call_cuda("elsewhere", CUDA, [x.read()], |_| Ok(())).is_err());
    vm.submit(b.finish()).expect("it is taken");
    assert!(matches!(x.to_vec::<f32>(), Err(Error::Failed(_))));
    let _ = vm.wait_all();
    drop((vm, x));
    assert_eq!(standin.findings(), "");
}

/// What makes another context current when it goes, as a guard of another library may.
#[derive(Debug)]
struct Leaves(usize);

impl Drop for Leaves {
    fn drop(&mut self) {
        Standin::make_current(std::ptr::without_provenance_mut(self.0));
    }
}

impl std::fmt::Display for Leaves {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("it leaves")
    }
}

impl std::error::Error for Leaves {}

/// The contexts of a raw call on this device: its own, and the one that is current when the function begins.
fn contexts(vm: &Vm, device: DeviceId) -> [usize; 2] {
    let seen = Arc::new([const { AtomicUsize::new(0) }; 2]);
    let (told, x) = (seen.clone(), vm.full(device, DType::F32, &[1], 0.0).expect("memory"));
    let mut b = InstructionsBuilder::new();
    b.call_cuda("look", device, [x.update()], move |raw| {
        told[0].store(raw.context.addr(), Ordering::SeqCst);
        told[1].store(Standin::current().addr(), Ordering::SeqCst);
        Ok(())
    })
    .expect("a call");
    vm.submit(b.finish()).expect("it is taken").wait().expect("it ran");
    [0, 1].map(|which| seen[which].load(Ordering::SeqCst))
}

/// Whatever of a caller's runs on the thread that launches, and whenever: the commands after it find their own context.
#[test]
fn no_code_of_a_callers_leaves_its_context_to_the_next_command() {
    let (standin, faults) = (Standin::load("devices=2"), FaultPlan::new());
    let vm = Vm::builder().faults(faults.clone()).build().expect("an engine");
    let [there, _] = contexts(&vm, DeviceId::cuda(1));
    let [here, _] = contexts(&vm, CUDA);
    assert!(there != here && there != 0);
    type Body = Box<dyn FnOnce(Leaves) -> Result<(), streamvm::FnError> + Send>;
    let ways: [(&str, &str, Body); 5] = [
        (
            "the function",
            "",
            Box::new(move |_| {
                Standin::make_current(std::ptr::without_provenance_mut(there));
                Ok(())
            }),
        ),
        (
            "a capture that it drops",
            "",
            Box::new(|leaves| {
                drop(leaves);
                Ok(())
            }),
        ),
        ("its error", "it leaves", Box::new(|leaves| Err(leaves.into()))),
        ("what it panics with", "a value that is no text", Box::new(|leaves| std::panic::panic_any(leaves))),
        ("a capture of one that is refused", "injected", Box::new(|_| unreachable!("it does not run"))),
    ];
    for (way, fails, body) in ways {
        let (leaves, x) = (Leaves(there), vm.full(CUDA, DType::F32, &[4], 1.0).expect("memory"));
        if fails == "injected" {
            faults.add(Rule::new(Point::Call, Fault::Error).nth(0)).expect("a rule");
        }
        let mut b = InstructionsBuilder::new();
        b.call_cuda(way, CUDA, [x.update()], move |_| body(leaves)).expect("a call");
        let ended = vm.submit(b.finish()).expect("it is taken").wait().map_err(|error| error.to_string());
        match ended {
            Ok(()) => assert_eq!(fails, "", "{way} fails"),
            Err(text) => assert!(!fails.is_empty() && text.contains(fails), "{way}: {text}"),
        }
        // The same thread, and nothing in between.
        assert_eq!(contexts(&vm, CUDA), [here; 2], "{way} left another context current");
        assert_eq!(vm.full(CUDA, DType::F32, &[2], 5.0).expect("memory").to_vec::<f32>(), Ok(vec![5.0; 2]), "{way}");
        assert_eq!(standin.findings(), "", "{way}");
    }
    // A function of a loop, which the host calls between two commands.
    for panics in [false, true] {
        let program = vm.record("loop", |r| {
            let (x, yes) = (r.full(CUDA, DType::F32, &[2], 1.0)?, r.full(DeviceId::cpu(0), DType::Bool, &[], true)?);
            r.while_true(&yes, || {
                r.call_fn("leaves", DeviceId::cpu(0), [yes.write()], move |context| {
                    Standin::make_current(std::ptr::without_provenance_mut(there));
                    context.writes.take::<bool>(0)?[0] = false;
                    assert!(!panics, "on purpose");
                    Ok(())
                })?;
                x.copy_from(&(&x + 1.0)?)
            })?;
            r.fetch("x", &x)
        });
        let program = program.expect("it can be recorded");
        let executable = vm.compile(program, &[], &CompileOptions::default()).expect("it compiles");
        let run = executable.run(&[]).expect("it is submitted");
        assert_eq!(run["x"].to_vec::<f32>().ok(), (!panics).then(|| vec![2.0; 2]));
        assert_eq!(contexts(&vm, CUDA), [here; 2], "a function of a loop left another context current");
        assert_eq!(standin.findings(), "");
    }
    let _ = vm.wait_all();
}

/// One record and one wait for each copy that a computation needs, and no more.
#[test]
fn a_pipeline_records_and_waits_as_one_would_by_hand() {
    let (standin, vm) = engine();
    let batches: Vec<_> =
        (0..8).map(|i| vm.from_slice_pinned(CUDA, &[i as f32; 16], &[4, 4]).expect("memory")).collect();
    let weights = batches[1].to(CUDA).expect("a copy");
    vm.wait_all().expect("all is well");
    let before = vm.stats();
    let mut b = InstructionsBuilder::new();
    let outputs: Vec<_> = batches
        .iter()
        .map(|batch| {
            let x = b.copy(batch, CUDA).expect("a copy");
            let y = b.matmul(&x, &weights).expect("a product");
            b.copy(&y, streamvm::Place::Host).expect("a copy")
        })
        .collect();
    vm.submit(b.finish()).expect("it is taken");
    for (i, output) in outputs.iter().enumerate() {
        assert_eq!(output.to_vec::<f32>(), Ok(vec![4.0 * i as f32; 16]));
    }
    let after = vm.stats();
    let count = |stats: &streamvm::Stats, of: fn(&streamvm::report::SyncCounts) -> u64| -> u64 {
        stats.streams.iter().filter(|s| s.stream.device == CUDA).map(of).sum()
    };
    // By hand: a record after each copy to the device, each product, and each copy back, which the host waits for; and a
    // wait of the device for each of the first two.
    assert_eq!(count(&after, |s| s.records) - count(&before, |s| s.records), 24);
    assert_eq!(count(&after, |s| s.device_waits) - count(&before, |s| s.device_waits), 16);
    drop((vm, batches, weights, outputs));
    assert_eq!(standin.findings(), "");
}

/// A copy that reuses a buffer waits for the kernel that used it: the compute stream records after each list, once a wait was too long.
#[test]
fn layers_over_a_few_buffers_record_after_each_kernel() {
    let (standin, vm) = engine();
    let weights = vm.from_slice_pinned(CUDA, &[2.0f32; 16], &[4, 4]).expect("memory");
    let buffers = [(); 3].map(|()| vm.full(CUDA, DType::F32, &[4, 4], 0.0).expect("memory"));
    let mut x = vm.full(CUDA, DType::F32, &[4, 4], 1.0).expect("memory");
    vm.wait_all().expect("all is well");
    let records = || -> u64 {
        let of = vm.stats().streams.into_iter().filter(|s| s.stream.to_string() == "compute@cuda:0:0");
        of.map(|s| s.records).sum()
    };
    let before = records();
    // Nothing passes meanwhile, so each copy needs the wait.
    let held = standin.hold();
    for layer in 0..12 {
        let mut b = InstructionsBuilder::new();
        b.copy_into(&weights, &buffers[layer % 3]).expect("a copy");
        x = b.add(&x, &buffers[layer % 3]).expect("a sum");
        vm.submit(b.finish()).expect("it is taken");
    }
    // The fourth copy is the first that waits, for a record that comes too late; nine layers have early ones. Without these there would be three records, before the
    // layers 3, 6 and 9.
    assert_eq!(records() - before, 10);
    drop(held);
    assert_eq!(x.to_vec::<f32>(), Ok(vec![25.0; 16]));
    drop((vm, weights, buffers, x));
    assert_eq!(standin.findings(), "");
}
