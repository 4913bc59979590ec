//! Copies from and to pageable memory, on devices that reach pinned memory only.

use std::sync::{Arc, Mutex};

use streamvm::ep::faults::{Fault, FaultPlan, Point, Rule};
use streamvm::{DType, DeviceId, Error, InstructionsBuilder, MemoryKind, Mode, Tensor, Vm, VmBuilder};
use streamvm_tests::{CPU, no_races, submit, within};

const SIM: DeviceId = DeviceId::sim(0);

fn builder() -> VmBuilder {
    Vm::builder().sim_devices(1).sim_pinned_only(true)
}

fn pinned_bytes(vm: &Vm) -> usize {
    let stats = vm.stats();
    let pools = stats.memory.iter().filter(|pool| pool.place == SIM.into() && pool.kind == MemoryKind::Pinned);
    pools.map(|pool| pool.allocator.in_use).sum()
}

#[test]
fn a_round_trip_goes_through_pinned_memory_that_comes_back() {
    let vm = builder().build().expect("an engine");
    let x = vm.from_slice(&[1.0f32, -2.0, 3.0], &[3]).expect("memory");
    for _ in 0..3 {
        let there = x.to(SIM).expect("a copy");
        assert_eq!(there.relu().expect("an op").to_vec::<f32>(), Ok(vec![1.0, 0.0, 3.0]));
    }
    let from_cpu = vm.full(CPU, DType::F32, &[2], 7.0).expect("memory").to(SIM).expect("a copy");
    assert_eq!(from_cpu.to(CPU).expect("a copy").to_vec::<f32>(), Ok(vec![7.0; 2]));
    let stats = vm.stats();
    let of = |name: &str| stats.streams.iter().find(|s| s.stream.to_string() == name).map(|s| s.instructions);
    assert_eq!(of("h2d@cpu:0:0"), of("h2d@sim:0:0"), "each copy to the device has two halves");
    assert_eq!(of("d2h@cpu:0:0"), of("d2h@sim:0:0"), "each copy from it, too");
    drop((x, from_cpu));
    vm.wait_all().expect("all is well");
    vm.full(CPU, DType::F32, &[1], 0.0).expect("what was dropped is freed by the next submission");
    assert_eq!(pinned_bytes(&vm), 0);
    assert_eq!(vm.races(), []);
}

#[test]
fn copies_of_a_list_go_through_pinned_memory_though_its_handles_are_gone() {
    let vm = builder().build().expect("an engine");
    let x = vm.from_slice(&[1.0f32, -2.0], &[2]).expect("memory");
    let (there, back) = (x.to(SIM).expect("a copy"), vm.from_slice(&[0.0f32; 2], &[2]).expect("memory"));
    let mut b = InstructionsBuilder::new();
    b.fill(&x, 3.0).expect("it fits");
    b.copy_into(&x, &there).expect("a copy");
    b.copy_into(&there, &back).expect("a copy");
    vm.submit(b.finish()).expect("it is taken");
    drop((x, there));
    assert_eq!(back.to_vec::<f32>(), Ok(vec![3.0; 2]));
    let stats = vm.stats();
    let of = |name: &str| stats.streams.iter().find(|s| s.stream.to_string() == name).map(|s| s.instructions);
    assert_eq!((of("h2d@cpu:0:0"), of("d2h@cpu:0:0")), (Some(2), Some(1)));
    assert_eq!(vm.races(), []);
}

#[test]
fn pinned_tensors_are_reached_from_both_sides_without_staging() {
    let vm = builder().build().expect("an engine");
    let up = vm.from_slice_pinned(SIM, &[1.0f32, -2.0], &[2]).expect("memory");
    let down = vm.from_slice_pinned(SIM, &[0.0f32; 2], &[2]).expect("memory");
    let mut b = InstructionsBuilder::new();
    let there = b.copy(&up, SIM).expect("a copy");
    let sum = b.add(&there, &there).expect("an op");
    b.copy_into(&sum, &down).expect("a copy");
    b.access("negate", down.update(), |context| {
        context.writes.take::<f32>(0)?.iter_mut().for_each(|element| *element = -*element);
        Ok(())
    })
    .expect("a function");
    vm.submit(b.finish()).expect("it is taken");
    assert_eq!(down.to_vec::<f32>(), Ok(vec![-2.0, 4.0]));
    let streams: Vec<String> = vm.stats().streams.iter().map(|stream| stream.stream.to_string()).collect();
    assert!(!streams.contains(&"h2d@cpu:0:0".to_owned()), "{streams:?}");
    assert!(vm.from_slice_pinned(DeviceId::sim(9), &[0u8], &[1]).is_err());
    assert_eq!(vm.races(), []);
}

#[test]
fn errors_name_the_line_that_was_written() {
    let vm = builder().build().expect("an engine");
    let x = vm.from_slice(&[1.0f32; 4], &[4]).expect("memory");
    let mut b = InstructionsBuilder::new();
    b.copy(&x, SIM).expect("a copy");
    b.copy(&x, SIM).expect("a copy");
    let nothing = Tensor::unbound(SIM.into(), MemoryKind::Device, DType::F32, x.shape());
    b.relu(&nothing).expect("an op");
    let error = vm.submit(b.finish()).map(|_| ()).expect_err("nothing has written it");
    assert!(matches!(error, Error::NeverWritten { line: 2, .. }), "{error:?}");
}

/// Either half fails: the target carries the root cause, with the place of the copy in the program.
#[test]
fn a_half_that_fails_poisons_the_target() {
    for half in [CPU, SIM] {
        let plan = FaultPlan::new();
        let rule = Rule::new(Point::Copy, Fault::Error).device(half);
        plan.add(rule.nth(0)).expect("a rule");
        let vm = builder().faults(plan.clone()).build().expect("an engine");
        let x = vm.from_slice(&[1.0f32; 4], &[4]).expect("memory");
        let there = x.to(SIM).expect("a copy");
        let line = line!() - 1;
        let Err(Error::Failed(failure)) = within("a failed copy", move || there.to_vec::<f32>()) else {
            panic!("{half}: it must fail");
        };
        assert_eq!((failure.what.as_str(), failure.stream.device), ("copy", half));
        assert_eq!((failure.site.file(), failure.site.line()), (file!(), line));
        assert_eq!(x.to(SIM).expect("a copy").to_vec::<f32>(), Ok(vec![1.0; 4]), "the next one is fine");
    }
}

/// What tensors hold is the same, however small the pieces are, in every mode; whatever their views are.
#[test]
fn copies_in_pieces_hold_what_copies_of_a_whole_do() -> Result<(), Error> {
    for (mode, piece) in [Mode::Threaded, Mode::Inline, Mode::Simulated { seed: 3 }, Mode::Simulated { seed: 8 }]
        .into_iter()
        .flat_map(|mode| [1, 4, 12, 20, 64, 1000].map(|piece| (mode, piece)))
    {
        let vm = builder().mode(mode).staging_piece(piece).build()?;
        let elements: Vec<f32> = (0..24).map(|i| i as f32).collect();
        let x = vm.from_slice(&elements, &[2, 3, 4])?;
        let turned = x.permute(&[2, 0, 1]).expect("a view");
        let wide = vm.from_slice(&[5.0f32, 6.0], &[2, 1])?.broadcast_to(&[2, 7]).expect("a view");
        // Up and down, of views, with what is empty, has one element and is a scalar between.
        let nothing = vm.from_slice::<f32>(&[], &[0, 9])?.to(SIM)?;
        let scalar = vm.from_slice(&[7.0f32], &[])?.to(SIM)?;
        let (there, turned, wide) = (x.to(SIM)?, turned.to(SIM)?, wide.to(SIM)?);
        // Into a part of a tensor, and from one with gaps.
        let all = vm.full(SIM, DType::F32, &[4, 6], -1.0)?;
        let part = all.slice(0, 1..3).and_then(|rows| rows.slice(1, 2..5)).expect("a view");
        submit(&vm, |b| {
            b.copy_into(
                &x.slice(2, 1..2).and_then(|x| x.try_reshape(&[2, 3])).expect("a view").expect("strides"),
                &part,
            )?;
            b.touch(SIM, &[&part]);
            Ok(())
        });
        let case = format!("{mode:?}, pieces of {piece} bytes");
        assert_eq!(there.to_vec::<f32>()?, elements, "{case}");
        assert_eq!(turned.to_vec::<f32>()?[..7], [0.0, 4.0, 8.0, 12.0, 16.0, 20.0, 1.0], "{case}");
        assert_eq!(wide.to_vec::<f32>()?, [[5.0; 7], [6.0; 7]].concat(), "{case}");
        assert_eq!(there.permute(&[1, 2, 0]).expect("a view").to_vec::<f32>()?[..4], [0.0, 12.0, 1.0, 13.0], "{case}");
        let mut expected = [[-1.0; 6]; 4];
        expected[1][2..5].copy_from_slice(&[1.0, 5.0, 9.0]);
        expected[2][2..5].copy_from_slice(&[13.0, 17.0, 21.0]);
        assert_eq!(all.to_vec::<f32>()?, expected.concat(), "{case}");
        assert_eq!((nothing.to_vec::<f32>()?, scalar.to_vec::<f32>()?), (vec![], vec![7.0]), "{case}");
        no_races(&vm);
    }
    Ok(())
}

/// Whichever half of whichever piece fails, the target fails as a whole, with the place of the copy in the program; the next
/// copy of all of it heals.
#[test]
fn a_piece_that_fails_poisons_all_of_the_target_and_a_copy_heals_it() -> Result<(), Error> {
    const PIECES: u64 = 5;
    let halves = || [(CPU, Fault::Error), (SIM, Fault::Error), (SIM, Fault::Late)];
    let cases = [true, false].into_iter().flat_map(|up| halves().map(|(half, fault)| (up, half, fault)));
    for ((up, half, fault), nth) in cases.flat_map(|case| (0..PIECES).map(move |nth| (case.clone(), nth))) {
        let plan = FaultPlan::new();
        let vm = builder().faults(plan.clone()).staging_piece(8).build()?;
        let (host, device) = (vm.from_slice(&[1.0f32; 10], &[10])?, vm.full(SIM, DType::F32, &[10], 2.0)?);
        let (source, target) = if up { (&host, &device) } else { (&device, &host) };
        vm.wait_all()?;
        plan.add(Rule::new(Point::Copy, fault.clone()).device(half).nth(nth)).expect("a rule");
        let case = format!("up {up}, {fault:?} in the half of {half}, piece {nth}");
        submit(&vm, |b| b.copy_into(source, target));
        let line = line!() - 1;
        let Err(Error::Failed(failure)) = target.wait() else { panic!("{case}: it must fail") };
        assert_eq!((failure.what.as_str(), failure.stream.device), ("copy", half), "{case}");
        assert_eq!((failure.site.file(), failure.site.line()), (file!(), line), "{case}");
        // A part says the same, whichever it is: they are one storage.
        for part in [0..2, 8..10] {
            let Err(Error::Failed(part)) = target.slice(0, part).expect("a view").to(CPU).and_then(|part| part.wait())
            else {
                panic!("{case}: a part of it must fail")
            };
            assert_eq!(part.point, failure.point, "{case}");
        }
        assert_eq!(source.to(CPU)?.wait(), Ok(()), "{case}: the source is fine");
        // A copy of a part does not heal it, one of all of it does.
        let part = |tensor: &Tensor| tensor.slice(0, 0..7).expect("a view");
        submit(&vm, |b| b.copy_into(&part(source), &part(target)));
        assert!(target.wait().is_err(), "{case}");
        submit(&vm, |b| b.copy_into(source, target));
        assert_eq!(target.wait(), Ok(()), "{case}");
        assert_eq!(target.to_vec::<f32>()?, vec![if up { 1.0 } else { 2.0 }; 10], "{case}");
        no_races(&vm);
    }
    Ok(())
}

/// What is to be copied has failed: so has the copy, with that cause, and its pieces are not run.
#[test]
fn a_copy_in_pieces_of_what_has_failed_is_skipped() -> Result<(), Error> {
    let vm = builder().staging_piece(8).build()?;
    let (zero, one) = (vm.full(SIM, DType::I32, &[6], 0i64)?, vm.full(SIM, DType::I32, &[6], 1i64)?);
    let bad = (&one / &zero)?;
    for tensor in [bad.to(CPU)?, bad.to(CPU)?.to(SIM)?] {
        let Err(Error::Failed(failure)) = tensor.wait() else { panic!("it must fail") };
        assert_eq!(failure.what, "div");
    }
    Ok(())
}

/// Many pieces would be more than an engine's thread may add to the queue, and it cannot wait for room.
#[test]
fn a_function_may_submit_a_copy_of_any_size() {
    let vm = Arc::new(builder().max_instructions(8).staging_piece(8).build().expect("an engine"));
    let numbers: Vec<f32> = (0..100u8).map(f32::from).collect();
    let x = vm.from_slice(&numbers, &[100]).expect("memory");
    let (of_function, there) = (vm.clone(), Arc::new(Mutex::new(None)));
    let into = there.clone();
    let copy = move || {
        *into.lock().expect("nobody panics") = Some(x.to(SIM)?);
        drop(of_function);
        Ok(())
    };
    vm.push("copies", [], copy).expect("a push").wait().expect("it is let in");
    let there = there.lock().expect("nobody panics").take().expect("a tensor");
    assert_eq!(there.to_vec::<f32>(), Ok(numbers));
}
