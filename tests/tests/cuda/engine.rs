//! The engine on CUDA devices, over a driver that stands in for NVIDIA's.

#![cfg(target_os = "linux")]

use std::time::Duration;

use streamvm::ep::cuda::CudaConfig;
use streamvm::{DeviceId, Error, Mode, Vm};
use streamvm_ep as ep;
use streamvm_standin::Standin;

const CUDA: [DeviceId; 2] = [DeviceId::cuda(0), DeviceId::cuda(1)];

/// The engine's host memory is pageable, and copies of it are the driver's to stage.
fn standin(settings: &str) -> Standin {
    Standin::load(&format!("devices=2;pageable=1;{settings}"))
}

fn modes() -> [Mode; 2] {
    [Mode::Threaded, Mode::Inline]
}

fn engine(mode: Mode) -> Vm {
    Vm::builder().mode(mode).build().expect("an engine")
}

fn end(vm: Vm) {
    vm.shutdown(Duration::from_secs(60)).expect("it ends");
}

#[test]
fn a_program_computes_on_two_devices_what_plain_arithmetic_gives() -> Result<(), Error> {
    for mode in modes() {
        let _driver = standin("");
        let vm = engine(mode);
        let x = vm.from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?.to(CUDA[0])?;
        let sum = (&x.matmul(&x)? + &x)?;
        let there = sum.to(CUDA[1])?;
        let twice = (&there + &there)?;
        assert_eq!(twice.to_vec::<f32>()?, [16.0, 24.0, 36.0, 52.0], "{mode:?}");
        assert_eq!(sum.to_vec::<f32>()?, [8.0, 12.0, 18.0, 26.0], "{mode:?}");
        drop((x, sum, there, twice));
        end(vm);
    }
    Ok(())
}

#[test]
fn a_kernel_that_fails_late_names_its_instruction_and_what_reads_it_is_skipped() -> Result<(), Error> {
    for mode in modes() {
        let _driver = standin("");
        let vm = engine(mode);
        let ones = vm.from_slice(&[1i32, 2], &[2])?.to(CUDA[0])?;
        let zeros = vm.from_slice(&[1i32, 0], &[2])?.to(CUDA[0])?;
        let quotient = (&ones / &zeros)?;
        let line = line!() - 1;
        let after = (&quotient + &ones)?;
        let fine = (&ones + &ones)?;
        let error = after.to_vec::<i32>().unwrap_err().to_string();
        assert!(error.contains("div divides by zero at element 1"), "{mode:?}: {error}");
        assert!(error.contains(&format!("cuda/engine.rs:{line}")), "{mode:?}: {error}");
        assert_eq!(fine.to_vec::<i32>()?, [2, 4], "{mode:?}");
        drop((ones, zeros, quotient, after, fine));
        let _ = vm.shutdown(Duration::from_secs(60));
    }
    Ok(())
}

#[test]
fn a_device_that_is_lost_fails_what_is_on_it_and_nothing_else() -> Result<(), Error> {
    let driver = standin("illegal=1@0");
    let vm = engine(Mode::Threaded);
    let good = vm.from_slice(&[1.0f32, 2.0], &[2])?.to(CUDA[1])?;
    let bad = vm.from_slice(&[1.0f32, 2.0], &[2])?.to(CUDA[0])?;
    let sum = (&bad + &bad)?;
    let error = sum.to_vec::<f32>().unwrap_err().to_string();
    assert!(error.contains("cuda:0 is lost") && error.contains("ILLEGAL_ADDRESS"), "{error}");
    assert_eq!((&good + &good)?.to_vec::<f32>()?, [2.0, 4.0]);
    drop((good, bad, sum));
    let _ = vm.shutdown(Duration::from_secs(60));
    // What a lost device had is not given back.
    driver.leaks();
    Ok(())
}

#[test]
fn a_thread_that_launches_is_bound_once() -> Result<(), Error> {
    let driver = standin("");
    let vm = engine(Mode::Threaded);
    let x = vm.from_slice(&[1.0f32, 2.0], &[2])?.to(CUDA[0])?;
    let first = (&x + &x)?;
    first.wait()?;
    let calls = || ["cuLaunchKernel", "cuCtxSetCurrent"].map(|name| driver.calls(name));
    let [launched, bound] = calls();
    let mut sum = first;
    for _ in 0..200 {
        sum = (&sum + &x)?;
    }
    vm.wait_all()?;
    assert_eq!(calls(), [launched + 200, bound], "the launching thread was bound before");
    assert_eq!(sum.to_vec::<f32>()?, [202.0, 404.0]);
    drop((x, sum));
    end(vm);
    Ok(())
}

#[test]
fn a_device_past_the_last_and_an_engine_without_are_told_apart() {
    let _driver = standin("");
    let vm = engine(Mode::Threaded);
    let host = vm.from_slice(&[1.0f32], &[1]).expect("a tensor");
    let error = host.to(DeviceId::cuda(9)).and_then(|there| there.wait()).unwrap_err();
    assert!(error.to_string().contains("no device cuda:9; available: cpu:0, cuda:0, cuda:1"), "{error}");
    assert_eq!(vm.devices().len(), 3);
    drop(host);
    end(vm);
    let vm = Vm::builder().cuda(None).build().expect("an engine");
    let host = vm.from_slice(&[1.0f32], &[1]).expect("a tensor");
    let error = host.to(CUDA[0]).and_then(|there| there.wait()).unwrap_err();
    assert!(matches!(error, Error::Device { error: ep::Error::NoCuda { .. }, .. }), "{error}");
    let limited = CudaConfig { memory_limit: Some(1 << 20), ..CudaConfig::default() };
    let vm = Vm::builder().cuda(Some(limited)).build().expect("an engine");
    assert!(vm.devices().iter().any(|device| device.memory_limit == Some(1 << 20) && device.id == CUDA[1]));
}
