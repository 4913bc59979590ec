//! What people reach for: sizes, copies in order, tensors like others, arithmetic in place, text, clones of the engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use streamvm::{BuildError, DType, DeviceId, Error, Generator, MemoryKind, Place, TimeLimit, Vm};
use streamvm_tests::{CPU, ClosedGate, engines};

#[test]
fn sizes_and_places_are_asked_of_the_tensor() -> Result<(), Error> {
    let vm = Vm::builder().build()?;
    let x = vm.from_slice(&[1i32, 2, 3, 4, 5, 6], &[2, 3])?;
    assert_eq!((x.dims(), x.rank(), x.numel(), x.device()), (&[2, 3][..], 2, 6, None));
    let y = x.to(CPU)?;
    assert_eq!((y.device(), y.t()?.dims()), (Some(CPU), &[3, 2][..]));
    assert_eq!(y.t()?.contiguous()?.to_vec::<i32>()?, [1, 4, 2, 5, 3, 6]);
    assert!(y.contiguous()?.shares_storage(&y) && !y.t()?.contiguous()?.shares_storage(&y));
    let scalar = vm.from_slice(&[7i32], &[])?;
    assert_eq!((scalar.rank(), scalar.numel(), scalar.to_scalar::<i32>()?), (0, 1, 7));
    for few in [scalar, vm.from_slice(&[7i32; 3], &[3])?] {
        assert!(matches!(few.t(), Err(Error::Build { error: BuildError::Shape(_), .. })), "{few:?}");
    }
    let refused = x.to_scalar::<i32>().expect_err("it has six").without_call();
    assert_eq!(
        refused,
        "to_scalar needs a tensor of one element, and [2,3] has 6; take one by `slice`, or all by `to_vec`"
    );
    Ok(())
}

#[test]
fn tensors_are_made_like_others_and_overwritten() -> Result<(), Error> {
    for (name, vm) in engines() {
        let x = vm.from_slice(&[1.5f32, -2.0, 3.0, 4.0], &[2, 2])?.to(CPU)?;
        let (zeros, ones) = (x.zeros_like()?, x.ones_like()?);
        assert_eq!((zeros.to_vec::<f32>()?, ones.to_vec::<f32>()?), (vec![0.0; 4], vec![1.0; 4]), "{name}");
        ones.add_assign(&x)?;
        ones.mul_assign(&x.slice(0, 0..1)?)?;
        ones.slice(1, 0..1)?.sub_assign(&ones.slice(1, 1..2)?)?;
        assert_eq!(ones.to_vec::<f32>()?, [1.75, 2.0, 16.0, -10.0], "{name}");
        x.div_assign(&x)?;
        assert_eq!(x.to_vec::<f32>()?, [1.0; 4], "{name}");
        // The elements are taken at the call, and what was issued before has the old ones.
        let before = x.neg()?;
        let mut elements = [5.0f32, 6.0, 7.0, 8.0];
        x.overwrite_from_slice(&elements)?;
        elements.fill(0.0);
        x.t()?.slice(0, 1..2)?.overwrite_from_slice(&[60.0f32, 80.0])?;
        assert_eq!(
            (x.to_vec::<f32>()?, before.to_vec::<f32>()?),
            (vec![5.0, 60.0, 7.0, 80.0], vec![-1.0; 4]),
            "{name}"
        );
        let host = vm.from_slice(&[true, false], &[2])?;
        host.overwrite_from_slice(&[false, true])?;
        assert_eq!(host.to_vec::<bool>()?, [false, true], "{name}");
        assert!(matches!(
            x.overwrite_from_slice(&[1.0f32]),
            Err(Error::Build { error: BuildError::Length { .. }, .. })
        ));
        assert!(matches!(x.overwrite_from_slice(&[1i32; 4]), Err(Error::WrongDType { .. })), "{name}");
    }
    Ok(())
}

#[test]
fn pinned_and_empty_tensors_are_made_without_elements_of_the_caller() -> Result<(), Error> {
    for (name, vm) in engines() {
        let zeros = vm.zeros_pinned(CPU, DType::I16, &[3])?;
        assert_eq!((zeros.memory(), zeros.to_vec::<i16>()?), (MemoryKind::Pinned, vec![0; 3]), "{name}");
        let empty = vm.empty_pinned(CPU, DType::I16, &[3])?;
        assert!(matches!(empty.to_vec::<i16>(), Err(Error::NeverWritten { .. })), "{name}");
        empty.copy_from(&zeros)?;
        assert_eq!((empty.memory(), empty.to_vec::<i16>()?), (MemoryKind::Pinned, vec![0; 3]), "{name}");
        let on_device = vm.empty(CPU, DType::F64, &[2, 2])?;
        assert!(matches!(on_device.relu(), Err(Error::NeverWritten { .. })), "{name}");
        on_device.fill(2.0)?;
        assert_eq!(on_device.to_vec::<f64>()?, [2.0; 4], "{name}");
        assert!(vm.zeros_pinned(DeviceId::cpu(7), DType::I16, &[3]).is_err(), "{name}");
    }
    Ok(())
}

/// On a CPU without an instruction; elsewhere as a copy.
#[test]
fn elements_of_the_caller_go_to_a_place() -> Result<(), Error> {
    let vm = Vm::builder().sim_devices(1).build()?;
    let issued = || vm.stats().streams.iter().map(|stream| stream.instructions).sum::<u64>();
    for place in [Place::Device(CPU), Place::Host, Place::Device(DeviceId::sim(0))] {
        let before = issued();
        let x = vm.from_slice_on(place, &[1i32, 2, 3, 4], &[2, 2])?;
        assert_eq!(issued() > before, place == Place::Device(DeviceId::sim(0)), "{place}");
        assert_eq!((x.place(), x.to_vec::<i32>()?), (place, vec![1, 2, 3, 4]));
        let none = vm.from_slice_on(place, &[] as &[bool], &[0, 3])?;
        assert_eq!((none.dims(), none.to_vec::<bool>()?), (&[0, 3][..], Vec::new()));
        assert!(matches!(
            vm.from_slice_on(place, &[1i32], &[2]),
            Err(Error::Build { error: BuildError::Length { .. }, .. })
        ));
    }
    // Memory that a pending instruction still uses is not written.
    let (gate, size) = (ClosedGate::new(), 1 << 10);
    let old = vm.zeros(CPU, DType::I32, &[size])?;
    vm.call_fn("held", CPU, [old.update()], gate.function())?;
    let copy = old.neg()?;
    drop(old);
    let new = vm.from_slice_on(CPU, &vec![7i32; size], &[size])?;
    gate.open();
    assert_eq!((copy.to_vec::<i32>()?, new.to_vec::<i32>()?), (vec![0; size], vec![7; size]));
    assert!(vm.from_slice_on(DeviceId::cpu(7), &[1i32], &[1]).is_err());
    assert_eq!(vm.races(), []);
    Ok(())
}

#[test]
fn reads_are_submitted_once_and_waited_for_later() -> Result<(), Error> {
    for (name, vm) in engines() {
        let (x, y) = (vm.from_slice_on(CPU, &[1i32, 2], &[2])?, vm.full(CPU, DType::I32, &[2], 5)?);
        let (first, second) = (x.start_read::<i32>()?, y.start_read::<i32>()?);
        // Later writes do not change what was read before.
        x.fill(9)?;
        assert_eq!((second.into_elements()?, first.into_elements()?), (vec![5, 5], vec![1, 2]), "{name}");
        assert!(matches!(x.start_read::<f32>(), Err(Error::WrongDType { .. })), "{name}");
        let failed = (&x / &vm.zeros(CPU, DType::I32, &[2])?)?.start_read::<i32>()?;
        assert!(matches!(failed.wait(), Err(Error::Failed(_))) && failed.wait().is_err(), "{name}");
    }
    let vm = Vm::builder().build()?;
    let (x, gate) = (vm.zeros(CPU, DType::I32, &[2])?, ClosedGate::new());
    vm.call_fn("held", CPU, [x.update()], gate.function())?;
    let read = x.start_read::<i32>()?;
    let issued = || vm.stats().streams.iter().map(|stream| stream.instructions).sum::<u64>();
    let before = issued();
    for _ in 0..3 {
        let _limit = TimeLimit(Duration::from_millis(1)).enter();
        assert!(matches!(read.wait(), Err(Error::Timeout { .. })));
    }
    assert_eq!(issued(), before);
    gate.open();
    assert_eq!(read.into_elements()?, [0, 0]);
    Ok(())
}

#[test]
fn a_tensor_is_ready_when_its_last_write_has_passed() -> Result<(), Error> {
    let vm = Vm::builder().build()?;
    let x = vm.ones(CPU, DType::F32, &[4])?;
    let gate = ClosedGate::new();
    vm.call_fn("held", CPU, [x.slice(0, 0..2)?.update()], gate.function())?;
    assert!(!x.is_ready() && !x.slice(0, 0..1)?.is_ready());
    let other = x.slice(0, 2..4)?;
    other.wait()?;
    assert!(other.is_ready(), "the other half is not written");
    gate.open();
    x.wait()?;
    assert!(x.is_ready());
    vm.call_fn("fails", CPU, [x.update()], |_| Err("no".into()))?;
    assert!(x.wait().is_err() && x.is_ready(), "a failure is an outcome");
    let unknown = streamvm::Tensor::unbound(Place::Host, MemoryKind::Pageable, DType::F32, x.shape());
    assert!(!unknown.is_ready());
    drop(vm);
    assert!(x.is_ready(), "the engine has ended its work");
    Ok(())
}

#[test]
fn a_tensor_is_printed_with_its_elements() -> Result<(), Error> {
    let vm = Vm::builder().build()?;
    let x = vm.from_slice(&[1.0f32, -2.5, 1.0 / 3.0, 1.999_999_8], &[2, 2])?.to(CPU)?;
    assert_eq!(x.to_string(), "[[ 1.0000 -2.5000]\n [ 0.3333  2.0000]]");
    assert_eq!(format!("{:.7}", x.slice(0, 1..2)?), "[[0.3333333 1.9999998]]");
    assert_eq!(x.t()?.cast(DType::I64)?.to_string(), "[[ 1  0]\n [-2  1]]");
    assert_eq!(vm.full(CPU, DType::Bool, &[], true)?.to_string(), "true");
    assert_eq!(vm.zeros(CPU, DType::BF16, &[0, 3])?.to_string(), "[]");
    assert_eq!(vm.full(CPU, DType::U64, &[1], u64::MAX)?.to_string(), format!("[{}]", u64::MAX));
    vm.call_fn("fails", CPU, [x.update()], |_| Err("it broke".into()))?;
    let text = x.to_string();
    assert!(text.starts_with('<') && text.contains("it broke"), "{text}");
    Ok(())
}

#[test]
fn recordings_draw_random_numbers_under_the_names_of_engines() -> Result<(), Error> {
    let vm = Vm::builder().build()?;
    let generator = Generator::new(7);
    let program = vm.record("draws", |r| {
        let u = r.rand(&generator, CPU, DType::F32, &[1000])?;
        let n = r.randn(&generator, CPU, DType::F64, &[10])?;
        let sum = (&r.ones(CPU, DType::F64, &[10])? + &r.zeros(CPU, DType::F64, &[10])?)?;
        r.fetch("u", &u)?;
        r.fetch("n", &(&n + &sum)?)
    })?;
    let run = vm.compile(program, &[], &Default::default())?.run(&[])?;
    let same = Generator::new(7);
    assert_eq!(run["u"].to_vec::<f32>()?, vm.rand(&same, CPU, DType::F32, &[1000])?.to_vec::<f32>()?);
    let normal = vm.randn(&same, CPU, DType::F64, &[10])?.to_vec::<f64>()?;
    assert_eq!(run["n"].to_vec::<f64>()?, normal.iter().map(|x| x + 1.0).collect::<Vec<_>>());
    // A closure that gives an error of its own needs no variant of the engine's.
    let refused = vm.record("refuses", |_| Err("no such layer".into())).expect_err("it is refused");
    assert_eq!(refused.to_string(), "no such layer");
    Ok(())
}

#[test]
fn the_last_clone_of_an_engine_ends_it() -> Result<(), Error> {
    let vm = Vm::builder().build()?;
    let (clone, x) = (vm.clone(), vm.ones(CPU, DType::F32, &[2])?);
    drop(vm);
    let y = (&x + &clone.ones(CPU, DType::F32, &[2])?)?;
    // A function may keep a clone: what it submits is done before the engine ends.
    let (inside, z) = (clone.clone(), y.clone());
    clone.push("submits", [], move || {
        inside.call_fn("more", CPU, [z.update()], |_| Ok(())).map(drop).map_err(Into::into)
    })?;
    let also = clone.clone();
    std::thread::spawn(move || also.wait_all()).join().expect("no panic")?;
    assert_eq!(y.to_vec::<f32>()?, [2.0; 2]);
    let (kept, asked) = (clone.clone(), clone.clone());
    clone.shutdown(Duration::from_secs(60))?;
    assert!(kept.is_closed() && matches!(asked.ones(CPU, DType::F32, &[1]), Err(Error::Shutdown { .. })));
    drop((kept, asked));
    assert!(matches!(x.neg(), Err(Error::Shutdown { .. })));
    Ok(())
}

/// A function cannot wait for the end of its engine; the last clone elsewhere does.
#[test]
fn a_shutdown_within_a_function_leaves_the_wait_to_the_last_clone() -> Result<(), Error> {
    let vm = Vm::builder().workers(2).build()?;
    let (inside, over) = (vm.clone(), Arc::new(AtomicBool::new(false)));
    let note = over.clone();
    vm.push("slow", [], move || {
        std::thread::sleep(Duration::from_millis(50));
        note.store(true, Ordering::SeqCst);
        Ok(())
    })?;
    let ends = vm.push("ends", [], move || match inside.shutdown(Duration::from_secs(60)) {
        Err(Error::WouldDeadlock { .. }) => Ok(()),
        other => Err(format!("{other:?}").into()),
    })?;
    ends.wait()?;
    drop(vm);
    assert!(over.load(Ordering::SeqCst), "the drop has waited");
    Ok(())
}

/// A function that blocks on the workers does not hold a thread that runs kernels.
#[test]
fn functions_over_tensors_run_on_workers() -> Result<(), Error> {
    for (name, vm) in engines() {
        let x = vm.zeros(CPU, DType::I32, &[3])?;
        for step in 0..10 {
            let worker = move |context: &mut streamvm::FnContext<'_>| -> Result<(), streamvm::FnError> {
                let on = std::thread::current().name().unwrap_or_default().to_owned();
                context.writes.take::<i32>(0)?.iter_mut().for_each(|x| *x += step);
                if on.starts_with("cpu:0.") { Err(format!("it runs on {on}").into()) } else { Ok(()) }
            };
            vm.call_fn_on_workers("adds", CPU, [x.update()], worker)?;
            x.add_assign(1)?;
        }
        assert_eq!(x.to_vec::<i32>()?, [55; 3], "{name}");
        let failed = vm.call_fn_on_workers("fails", CPU, [x.write()], |_| Err("no file".into()))?.wait();
        assert!(failed.is_err_and(|error| error.to_string().contains("no file")), "{name}");
        assert!(x.to_vec::<i32>().is_err(), "{name}");
    }
    let vm = Vm::builder().cpu_threads(1).build()?;
    let (gate, x) = (ClosedGate::new(), vm.zeros(CPU, DType::I32, &[3])?);
    vm.call_fn_on_workers("held", CPU, [x.update()], gate.function())?;
    gate.wait_entered(1);
    assert_eq!(vm.ones(CPU, DType::I32, &[2])?.neg()?.to_vec::<i32>()?, [-1; 2], "the only thread of the CPU is free");
    gate.open();
    vm.wait_all()
}
