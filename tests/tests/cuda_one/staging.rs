//! Copies between host tensors and GPUs, by way of page-locked memory. Over a driver that stands in for NVIDIA's, to which a
//! device's write into write-combined memory is a finding.

#![cfg(target_os = "linux")]

use std::thread;
use std::time::{Duration, Instant};

use streamvm::ep::cuda::CudaConfig;
use streamvm::{DType, DeviceId, Error, InstructionsBuilder, MemoryKind, Mode, Vm};
use streamvm_standin::Standin;
use streamvm_tests::Text;
use streamvm_verify::{Trace, verify};

const CUDA: DeviceId = DeviceId::cuda(0);

/// All tests of one process see the same number of devices.
fn standin(settings: &str) -> Standin {
    Standin::load(&format!("devices=1;{settings}"))
}

fn end(vm: Vm) {
    vm.shutdown(Duration::from_secs(60)).expect("it ends");
}

/// Bytes that the engine has of this kind, in use and cached.
fn reserved(vm: &Vm, kind: MemoryKind) -> usize {
    let stats = vm.stats();
    let pools = stats.memory.iter().filter(|pool| pool.place == CUDA.into() && pool.kind == kind);
    pools.map(|pool| pool.allocator.reserved).sum()
}

fn round_trip(vm: &Vm, elements: usize) -> Result<(), Error> {
    let there = vm.from_slice(&vec![-2.0f32; elements], &[elements])?.to(CUDA)?;
    assert_eq!(there.neg()?.to_vec::<f32>()?, vec![2.0; elements]);
    Ok(())
}

#[test]
fn uploads_go_through_write_combined_memory_and_downloads_through_plain() -> Result<(), Error> {
    for mode in [Mode::Threaded, Mode::Inline] {
        let driver = standin("");
        let allocated = || ["cuMemHostAlloc, write-combined", "cuMemHostAlloc"].map(|name| driver.calls(name));
        let vm = Vm::builder().mode(mode).build()?;
        let there = vm.from_slice(&[1.0f32, 2.0], &[2])?.to(CUDA)?;
        there.wait()?;
        assert_eq!(allocated(), [1, 1], "{mode:?}: the way there");
        assert_eq!(there.to_vec::<f32>()?, [1.0, 2.0]);
        assert_eq!(allocated(), [1, 2], "{mode:?}: the way back");
        // Blocks are used again, each the way that it was made for: others would be a finding.
        for _ in 0..20 {
            round_trip(&vm, 2)?;
        }
        assert_eq!(allocated(), [1, 2], "{mode:?}");
        // What a caller may read is plain.
        let own = vm.from_slice_pinned(CUDA, &[3.0f32; 4], &[4])?;
        assert_eq!(own.to(CUDA)?.neg()?.to_vec::<f32>()?, [-3.0; 4]);
        assert_eq!(allocated()[0], 1, "{mode:?}");
        drop((there, own));
        end(vm);
    }
    Ok(())
}

/// A kernel, not the driver, copies to a view with gaps: it reads the write-combined memory by the address that kernels have.
#[test]
fn a_view_with_gaps_is_uploaded_to() -> Result<(), Error> {
    let _driver = standin("");
    let vm = Vm::builder().build()?;
    let there = vm.full(CUDA, DType::F32, &[4, 3], 0.0)?;
    let column = there.slice(1, 1..2).expect("it is there");
    let mut builder = InstructionsBuilder::new();
    builder.copy_into(&vm.from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[4, 1])?, &column)?;
    vm.submit(builder.finish())?;
    let expected = [1.0, 2.0, 3.0, 4.0].map(|element| [0.0, element, 0.0]);
    assert_eq!(there.to_vec::<f32>()?, expected.concat());
    assert!(reserved(&vm, MemoryKind::Upload) > 0, "by way of write-combined memory");
    drop((there, column));
    end(vm);
    Ok(())
}

#[test]
fn what_one_way_has_cached_is_given_back_for_the_other() -> Result<(), Error> {
    let bytes = 1 << 20;
    // Of the machine's memory; or of what the engine may have: for the tensor, its copy, and one way.
    for (settings, memory_limit) in [("pinned=1100K", None), ("", Some(7 * bytes as u64 / 2))] {
        let _driver = standin(settings);
        let config = CudaConfig { memory_limit, ..CudaConfig::default() };
        let vm = Vm::builder().cuda(Some(config)).build()?;
        let there = vm.full(CUDA, DType::U8, &[bytes], 1)?;
        for round in 0..3 {
            let kinds = || [MemoryKind::Upload, MemoryKind::Pinned].map(|kind| reserved(&vm, kind));
            assert_eq!(there.to_vec::<u8>()?, vec![1; bytes], "{settings} {round}");
            assert_eq!(kinds(), [0, bytes], "{settings} {round}");
            vm.from_slice(&vec![2u8; bytes], &[bytes])?.to(CUDA)?.wait()?;
            assert_eq!(kinds(), [bytes, 0], "{settings} {round}");
        }
        // More than there is, either way, is an error that says so; what was there stays.
        let error = vm.from_slice(&vec![0u8; 4 * bytes], &[4 * bytes])?.to(CUDA).map(drop).unwrap_err();
        assert!(error.to_string().contains("memory"), "{settings}: {error}");
        assert_eq!(there.to_vec::<u8>()?, vec![1; bytes], "{settings}");
        drop(there);
        end(vm);
    }
    Ok(())
}

#[test]
fn memory_that_the_driver_refuses_once_is_asked_for_again() -> Result<(), Error> {
    for nth in [1, 2] {
        let _driver = standin(&format!("fail=cuMemHostAlloc:{nth}:OUT_OF_MEMORY"));
        let vm = Vm::builder().build()?;
        round_trip(&vm, 100)?;
        end(vm);
    }
    Ok(())
}

#[test]
fn a_large_copy_takes_memory_for_two_pieces() -> Result<(), Error> {
    let (piece, bytes) = (1 << 20, 12 << 20);
    for mode in [Mode::Threaded, Mode::Inline] {
        // For two pieces of one way and two of the other, and no more.
        let _driver = standin("pinned=4100K");
        let vm = Vm::builder().mode(mode).staging_piece(piece).build()?;
        let elements: Vec<u8> = (0..bytes).map(|i| (i / 4099) as u8).collect();
        let there = vm.from_slice(&elements, &[bytes])?.to(CUDA)?;
        assert!(there.to_vec::<u8>()? == elements, "{mode:?}");
        let kinds = [MemoryKind::Upload, MemoryKind::Pinned].map(|kind| reserved(&vm, kind));
        assert!(kinds.iter().all(|&reserved| reserved <= 2 * piece), "{mode:?}: {kinds:?}");
        drop(there);
        end(vm);
    }
    Ok(())
}

/// While the device has not run the copy of the first piece, the host has copied the second and the device has been given it;
/// the third waits for the block of the first.
#[test]
fn the_host_copies_a_piece_while_the_device_copies_another() -> Result<(), Error> {
    let driver = standin("");
    let copies = || driver.calls("cuMemcpyAsync");
    let vm = Vm::builder().staging_piece(400).build()?;
    let x = vm.from_slice(&[1.0f32; 600], &[600])?;
    let there = x.to(CUDA)?;
    assert_eq!(there.to_vec::<f32>()?, [1.0; 600]);
    for up in [true, false] {
        let before = copies();
        let held = driver.hold();
        let mut b = InstructionsBuilder::new();
        let (source, target) = if up { (&x, &there) } else { (&there, &x) };
        b.copy_into(source, target)?;
        vm.submit(b.finish())?;
        let patience = Instant::now() + Duration::from_secs(60);
        while copies() < before + 2 {
            assert!(Instant::now() < patience, "up {up}: the second piece waits for the first");
            thread::yield_now();
        }
        thread::sleep(Duration::from_millis(30));
        assert_eq!(copies(), before + 2, "up {up}: the third has no block");
        drop(held);
        target.wait()?;
        assert_eq!(copies(), before + 6, "up {up}");
    }
    drop((x, there));
    end(vm);
    Ok(())
}

#[test]
fn pieces_are_ordered_by_no_wait_too_few_and_none_too_many() -> Result<(), Error> {
    for mode in [Mode::Threaded, Mode::Inline] {
        let _driver = standin("");
        let text = Text::default();
        let vm = Vm::builder().mode(mode).staging_piece(400).record(text.clone()).build()?;
        let x = vm.from_slice(&[1.0f32; 600], &[600])?;
        for _ in 0..3 {
            let there = x.to(CUDA)?;
            assert_eq!((&there + &there)?.to_vec::<f32>()?, [2.0; 600]);
        }
        drop(x);
        end(vm);
        let text = text.written();
        let report = verify(&Trace::read(text.as_bytes()).expect("a trace")).expect("small enough");
        assert!(report.is_ok() && report.complete, "{mode:?}: {report}");
        assert_eq!(report.excess.waits.total, 0, "{mode:?}: {report}");
    }
    Ok(())
}
