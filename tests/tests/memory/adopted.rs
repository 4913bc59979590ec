//! Tensors over memory that others own: it is read where it is, nothing writes it, and its owner is dropped once all that was submitted has read it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use streamvm::ep::{Element, Layout, Op, Shape};
use streamvm::program::CompileOptions;
use streamvm::{DType, DeviceId, Error, InstructionsBuilder, Mode, Params, Place, Tensor, Vm};
use streamvm_tests::{CPU, engines};

use super::lent::submitted;

const WAIT: Duration = Duration::from_secs(60);

/// An owner of elements that tells when it is dropped.
struct Owner<T>(Vec<T>, mpsc::Sender<()>);

impl<T> AsRef<[T]> for Owner<T> {
    fn as_ref(&self) -> &[T] {
        &self.0
    }
}

impl<T> Drop for Owner<T> {
    fn drop(&mut self) {
        self.0.clear();
        // The test may not care.
        let _ = self.1.send(());
    }
}

fn owner<T>(elements: Vec<T>) -> (Owner<T>, mpsc::Receiver<()>) {
    let (sender, receiver) = mpsc::channel();
    (Owner(elements, sender), receiver)
}

#[test]
fn memory_of_others_is_read_and_not_written() -> Result<(), Error> {
    for (name, vm) in engines() {
        for place in [Place::Host, CPU.into()] {
            let (owner, dropped) = owner(vec![1.0f32, 2.0, 3.0, 4.0]);
            let x = vm.adopt(place, owner, &[2, 2])?;
            assert_eq!((x.place(), x.dims()), (place, &[2, 2][..]), "{name}");
            assert!(x.is_ready(), "{name}: nothing is to be waited for");
            let y = x.to(CPU)?;
            assert_eq!((&y * 2.0)?.to_vec::<f32>()?, [2.0, 4.0, 6.0, 8.0], "{name}");
            let columns = x.view(Layout::with_strides(Shape::new(&[2, 2])?, &[1, 2], 0)?)?;
            assert_eq!(columns.to_vec::<f32>()?, [1.0, 3.0, 2.0, 4.0], "{name}");
            let row = x.slice(0, 1..2)?;
            let released = submitted(&vm, |b| {
                b.release(&x);
                Ok(())
            });
            for refused in [x.fill(0.0), row.fill(0.0), x.copy_from(&columns.contiguous()?), released] {
                assert!(matches!(refused, Err(Error::Lent { .. })), "{name}: {refused:?}");
            }
            assert_eq!(row.to_vec::<f32>()?, [3.0, 4.0], "{name}");
            drop((x, y, columns));
            assert!(dropped.try_recv().is_err(), "{name}: a view is left");
            drop(row);
            vm.wait_all()?;
            dropped.recv_timeout(WAIT).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
    Ok(())
}

#[test]
fn it_is_the_same_memory() -> Result<(), Error> {
    let vm = Vm::builder().build()?;
    let elements = Arc::<[f32]>::from(vec![1.0, 2.0, 3.0]);
    let x = vm.adopt(CPU, elements.clone(), &[3])?;
    assert_eq!(vm.lend(&x)?.wait()?.addr(), elements.as_ptr().addr());
    // Elements within their owner.
    let inside = vm.adopt(CPU, [5i64, 6, 7], &[3])?;
    assert_eq!(inside.to_vec::<i64>()?, [5, 6, 7]);
    Ok(())
}

/// Nothing is submitted after the drop of the tensor.
#[test]
fn an_owner_stays_until_all_reads_have_passed() -> Result<(), Error> {
    for (name, vm) in engines() {
        let (owner, dropped) = owner(vec![7u8; 100]);
        let dropped = Arc::new(std::sync::Mutex::new(dropped));
        let x = vm.adopt(CPU, owner, &[100])?;
        let seen = dropped.clone();
        let read = vm.call_fn("slow", CPU, [x.read()], move |context| {
            std::thread::sleep(Duration::from_millis(30));
            assert_eq!(context.reads.get::<u8>(0)?, [7; 100]);
            assert!(seen.lock().expect("nobody panics").try_recv().is_err());
            Ok(())
        })?;
        drop(x);
        read.wait().unwrap_or_else(|error| panic!("{name}: {error}"));
        if name.starts_with("seed") {
            vm.wait_all()?;
        }
        let dropped = dropped.lock().expect("nobody panics");
        dropped.recv_timeout(WAIT).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    Ok(())
}

#[test]
fn the_end_of_an_engine_drops_owners() -> Result<(), Error> {
    for mode in [Mode::Threaded, Mode::Inline, Mode::Simulated { seed: 5 }] {
        let vm = Vm::builder().mode(mode).build()?;
        let (owner, dropped) = owner(vec![1.0f32]);
        let (x, lent) = (vm.adopt(CPU, owner, &[1])?, vm.adopt(CPU, vec![2.0f32], &[1])?);
        let lent = vm.lend(&lent)?;
        drop(vm);
        assert!(dropped.try_recv().is_err(), "{mode:?}: what is lent keeps the engine");
        // SAFETY: nothing writes it.
        assert_eq!(unsafe { *lent.wait()?.cast::<f32>() }, 2.0, "{mode:?}");
        drop(lent);
        dropped.recv_timeout(WAIT).unwrap_or_else(|error| panic!("{mode:?}: {error}"));
        assert!(matches!(x.to_vec::<f32>(), Err(Error::Shutdown { .. })), "{mode:?}");
        drop(x);
    }
    Ok(())
}

/// After an engine is dropped, no caller steps a simulated one, and the threads of others end; the last handles are dropped then, and must still drop the owners.
#[test]
fn a_handle_that_is_dropped_late_keeps_no_engine() -> Result<(), Error> {
    for mode in [Mode::Threaded, Mode::Inline, Mode::Simulated { seed: 5 }] {
        let vm = Vm::builder().mode(mode).build()?;
        let ((first, dropped), (second, other)) = (owner(vec![1.0f32]), owner(vec![2.0f32]));
        let (x, lent) = (vm.adopt(CPU, first, &[1])?, vm.lend(&vm.adopt(CPU, second, &[1])?)?);
        drop(vm);
        drop(x);
        drop(lent);
        for dropped in [dropped, other] {
            dropped.recv_timeout(WAIT).unwrap_or_else(|error| panic!("{mode:?}: {error}"));
        }
    }
    Ok(())
}

#[test]
fn owners_that_panic_at_the_end_of_an_engine_harm_no_other() -> Result<(), Error> {
    struct Panics(Arc<AtomicUsize>);
    impl AsRef<[f32]> for Panics {
        fn as_ref(&self) -> &[f32] {
            &[1.0]
        }
    }
    impl Drop for Panics {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
            panic!("as expected");
        }
    }
    let (vm, dropped) = (Vm::builder().build()?, Arc::new(AtomicUsize::new(0)));
    let tensors: Vec<Tensor> =
        (0..5).map(|_| vm.adopt(CPU, Panics(dropped.clone()), &[1])).collect::<Result<_, _>>()?;
    drop(vm);
    assert_eq!(dropped.load(Ordering::Relaxed), 5);
    drop(tensors);
    Ok(())
}

#[test]
fn what_is_lent_keeps_its_owner() -> Result<(), Error> {
    let vm = Vm::builder().build()?;
    let (owner, dropped) = owner(vec![1.0f32, 2.0]);
    let x = vm.adopt(CPU, owner, &[2])?;
    let (first, second) = (vm.lend(&x)?, vm.lend(&x.slice(0, 1..2)?)?);
    drop((x, first));
    // SAFETY: nothing writes it.
    assert_eq!(unsafe { *second.wait()?.cast::<f32>() }, 2.0);
    assert!(matches!(second.tensor().fill(0.0), Err(Error::Lent { .. })));
    assert!(dropped.try_recv().is_err());
    drop(second);
    dropped.recv_timeout(WAIT).expect("nobody needs it");
    Ok(())
}

#[test]
fn an_end_of_a_loan_does_not_let_memory_of_others_be_written() -> Result<(), Error> {
    let vm = Vm::builder().build()?;
    let x = vm.adopt(CPU, vec![1.0f32], &[1])?;
    drop(vm.lend(&x)?);
    assert!(matches!(x.fill(0.0), Err(Error::Lent { .. })));
    assert_eq!(x.to_vec::<f32>()?, [1.0]);
    Ok(())
}

#[test]
fn every_dtype_and_no_elements() -> Result<(), Error> {
    fn check<T: Element + PartialEq + std::fmt::Debug>(vm: &Vm, elements: Vec<T>) -> Result<(), Error> {
        let x = vm.adopt(CPU, elements.clone(), &[elements.len()])?;
        assert_eq!(x.dtype(), T::DTYPE);
        assert_eq!(x.contiguous()?.to_vec::<T>()?, elements);
        Ok(())
    }
    for (_, vm) in engines() {
        check(&vm, vec![true, false])?;
        check(&vm, vec![1i8, -2])?;
        check(&vm, vec![1i16, -2])?;
        check(&vm, vec![1i32, -2])?;
        check(&vm, vec![1i64, -2])?;
        check(&vm, vec![1u8, 2])?;
        check(&vm, vec![1u16, 2])?;
        check(&vm, vec![1u32, 2])?;
        check(&vm, vec![1u64, 2])?;
        check(&vm, vec![1.5f32, -2.0])?;
        check(&vm, vec![1.5f64, -2.0])?;
        check(&vm, [1.5, -2.0].map(streamvm::f16::from_f32).to_vec())?;
        check(&vm, [1.5, -2.0].map(streamvm::bf16::from_f32).to_vec())?;
        let (owner, dropped) = owner(Vec::<f32>::new());
        let nothing = vm.adopt(CPU, owner, &[0, 3])?;
        assert_eq!((&nothing + 1.0)?.to_vec::<f32>()?, Vec::<f32>::new());
        drop(nothing);
        vm.wait_all()?;
        dropped.recv_timeout(WAIT).expect("it is dropped");
    }
    Ok(())
}

#[test]
fn what_cannot_be_adopted_is_told_and_dropped() -> Result<(), Error> {
    let vm = Vm::builder().build()?;
    let adopted = |place: Place, shape: &[usize]| {
        let (owner, dropped) = owner(vec![1.0f32, 2.0]);
        let error = vm.adopt(place, owner, shape).map(drop).expect_err("it is refused");
        dropped.try_recv().expect("its owner is dropped");
        error.to_string()
    };
    let text = adopted(CPU.into(), &[3]);
    assert!(text.contains("adopt") && text.contains("adopted.rs:"), "{text}");
    assert!(adopted(CPU.into(), &[usize::MAX, 2]).contains("adopt"));
    let text = adopted(DeviceId::cpu(9).into(), &[2]);
    assert!(text.contains("cpu:9") && text.contains("adopt"), "{text}");
    vm.close();
    assert!(adopted(CPU.into(), &[2]).contains("adopt"));
    Ok(())
}

#[test]
fn a_program_reads_memory_of_others() -> Result<(), Error> {
    for (name, vm) in engines() {
        let weights = vm.adopt(CPU, vec![1.0f32, 2.0], &[2])?;
        let x = vm.adopt(CPU, vec![10.0f32, 20.0], &[2])?;
        let program = vm.record("scales", |r| {
            let (weights, x) = (r.parameter("weights", &weights)?, r.feed("x", CPU, DType::F32, &[2])?);
            r.fetch("y", &(&weights * &x)?)
        })?;
        let executable = vm.compile(program, &[("weights", &weights)], &CompileOptions::default())?;
        drop(weights);
        for _ in 0..3 {
            assert_eq!(executable.run(&[("x", &x)])?["y"].to_vec::<f32>()?, [10.0, 40.0], "{name}");
        }
        let program = vm.record("counts", |r| {
            let state = r.parameter("state", &x)?;
            r.fetch("y", &(&state * 2.0)?)?;
            state.add_assign(1.0)
        })?;
        let executable = vm.compile(program, &[("state", &x)], &CompileOptions::default())?;
        let refused = executable.run(&[]).map(drop);
        assert!(matches!(refused, Err(Error::Lent { .. })), "{name}: {refused:?}");
    }
    Ok(())
}

/// Code of the owner runs under no lock of the engine, and its panic harms nobody.
#[test]
fn an_owner_may_use_the_engine_and_panic() -> Result<(), Error> {
    struct Uses(Vm, Tensor, mpsc::Sender<Result<Tensor, Error>>);
    impl AsRef<[f32]> for Uses {
        fn as_ref(&self) -> &[f32] {
            &[3.0]
        }
    }
    impl Drop for Uses {
        fn drop(&mut self) {
            let _ = self.2.send(self.0.adopt(CPU, vec![4.0f32], &[1]).and_then(|x| &x + &self.1));
            panic!("as expected");
        }
    }
    let vm = Vm::builder().build()?;
    let (sender, receiver) = mpsc::channel();
    drop(vm.adopt(CPU, Uses(vm.clone(), vm.adopt(CPU, vec![1.0f32], &[1])?, sender), &[1])?);
    let sum = receiver.recv_timeout(WAIT).expect("it is dropped")?;
    assert_eq!(sum.to_vec::<f32>()?, [5.0]);
    vm.shutdown(WAIT)
}

#[test]
fn threads_adopt_and_drop_at_once() -> Result<(), Error> {
    struct Counted(Vec<f32>, Arc<AtomicUsize>);
    impl AsRef<[f32]> for Counted {
        fn as_ref(&self) -> &[f32] {
            &self.0
        }
    }
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fill(f32::NAN);
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }
    let (vm, dropped) = (Vm::builder().build()?, Arc::new(AtomicUsize::new(0)));
    std::thread::scope(|threads| {
        for thread in 0..4 {
            let (vm, dropped) = (&vm, &dropped);
            threads.spawn(move || {
                let (mut last, mut sums) = (None, Vec::new());
                for number in 0..200 {
                    let value = (thread * 1_000 + number) as f32;
                    let x = vm.adopt(CPU, Counted(vec![value; 16], dropped.clone()), &[16]).expect("it is taken");
                    sums.push((value, (&x + 1.0).expect("an op")));
                    // Some live until the next one is there.
                    last = (number % 3 == 0).then_some(x).or(last.filter(|_| number % 2 == 0));
                }
                for (value, sum) in sums {
                    assert_eq!(sum.to_vec::<f32>().expect("it passes"), [value + 1.0; 16]);
                }
            });
        }
    });
    drop(vm);
    assert_eq!(dropped.load(Ordering::Relaxed), 800);
    Ok(())
}

/// A list that is being built has the only handle.
#[test]
fn a_list_keeps_what_it_reads() -> Result<(), Error> {
    for (name, vm) in engines() {
        let (owner, dropped) = owner(vec![1.0f32, -2.0]);
        let mut b = InstructionsBuilder::new();
        let y = b.op(Op::Relu, &[&vm.adopt(CPU, owner, &[2])?], Params::default())?;
        assert!(dropped.try_recv().is_err(), "{name}");
        vm.submit(b.finish())?;
        assert_eq!(y.to_vec::<f32>()?, [1.0, 0.0], "{name}");
        vm.wait_all()?;
        dropped.recv_timeout(WAIT).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    Ok(())
}
