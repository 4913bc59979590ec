//! Memory of a GPU that is lent. The host cannot read that of the driver that stands in for NVIDIA's, so what is compared is addresses.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use streamvm::{DeviceId, Error, InstructionsBuilder, Vm};
use streamvm_standin::Standin;

const CUDA: DeviceId = DeviceId::cuda(0);

/// The kernel takes 50 ms, which the caller waits for.
#[test]
fn memory_of_a_gpu_is_lent_once_it_is_written() -> Result<(), Error> {
    let driver = Standin::load("devices=1;slow=1:50");
    let vm = Vm::builder().build()?;
    let x = vm.from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[4])?.to(CUDA)?;
    let sum = (&x + &x)?;
    let view = sum.slice(0, 1..4)?;
    assert!(!view.is_ready());
    let lent = vm.lend(&view)?;
    let address = lent.wait()?.addr();
    assert!(view.is_ready());
    assert!(matches!(sum.add_assign(&x), Err(Error::Lent { .. })));
    let seen = Arc::new(AtomicUsize::new(0));
    let noted = seen.clone();
    let mut b = InstructionsBuilder::new();
    b.call_cuda("reads", CUDA, [view.read()], move |raw| {
        noted.store(raw.operands[0].ptr().addr(), Ordering::Relaxed);
        Ok(())
    })?;
    vm.submit(b.finish())?.wait()?;
    assert_eq!(address, seen.load(Ordering::Relaxed));
    assert_eq!(sum.to_vec::<f32>()?, [2.0, 4.0, 6.0, 8.0], "it is read");
    drop((x, sum, view));
    vm.shutdown(Duration::from_secs(60))?;
    assert_ne!(driver.leaks(), "", "the memory outlives the engine");
    drop(lent);
    assert_eq!(driver.leaks(), "");
    Ok(())
}

/// The copy to the GPU takes 50 ms.
#[test]
fn memory_of_others_goes_to_a_gpu() -> Result<(), Error> {
    let _driver = Standin::load("devices=1;slow=1:50");
    let (vm, elements) = (Vm::builder().build()?, Arc::<[f32]>::from(vec![1.0, 2.0]));
    let x = vm.adopt(CUDA, elements.clone(), &[2])?;
    assert_eq!((x.device(), Arc::strong_count(&elements)), (Some(CUDA), 2));
    x.add_assign(1.0)?;
    assert_eq!(x.to_vec::<f32>()?, [2.0, 3.0]);
    for _ in 0..1_000 {
        if Arc::strong_count(&elements) == 1 {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("its owner is not dropped");
}
