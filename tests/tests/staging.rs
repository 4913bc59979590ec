//! Copies from and to pageable memory, on devices that reach pinned memory only.

use streamvm::ep::faults::{Fault, FaultPlan, Point, Rule};
use streamvm::{DType, DeviceId, Error, InstructionsBuilder, MemoryKind, Tensor, Vm, VmBuilder};
use streamvm_tests::{CPU, within};

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
    let x = vm.tensor(&[1.0f32, -2.0, 3.0], &[3]).expect("memory");
    for _ in 0..3 {
        let there = x.to(SIM).expect("a copy");
        assert_eq!(there.relu().expect("an op").to_vec::<f32>(), Ok(vec![1.0, 0.0, 3.0]));
    }
    let from_cpu = vm.fill(CPU, DType::F32, &[2], 7.0).expect("memory").to(SIM).expect("a copy");
    assert_eq!(from_cpu.to(CPU).expect("a copy").to_vec::<f32>(), Ok(vec![7.0; 2]));
    let stats = vm.stats();
    let of = |name: &str| stats.streams.iter().find(|s| s.stream.to_string() == name).map(|s| s.instructions);
    assert_eq!(of("h2d@cpu:0:0"), of("h2d@sim:0:0"), "each copy to the device has two halves");
    assert_eq!(of("d2h@cpu:0:0"), of("d2h@sim:0:0"), "each copy from it, too");
    drop((x, from_cpu));
    vm.wait_all().expect("all is well");
    vm.fill(CPU, DType::F32, &[1], 0.0).expect("what was dropped is freed by the next submission");
    assert_eq!(pinned_bytes(&vm), 0);
    assert_eq!(vm.races(), []);
}

#[test]
fn pinned_tensors_are_reached_from_both_sides_without_staging() {
    let vm = builder().build().expect("an engine");
    let up = vm.pinned_tensor(SIM, &[1.0f32, -2.0], &[2]).expect("memory");
    let down = vm.pinned_tensor(SIM, &[0.0f32; 2], &[2]).expect("memory");
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
    assert!(vm.pinned_tensor(DeviceId::sim(9), &[0u8], &[1]).is_err());
    assert_eq!(vm.races(), []);
}

#[test]
fn errors_name_the_line_that_was_written() {
    let vm = builder().build().expect("an engine");
    let x = vm.tensor(&[1.0f32; 4], &[4]).expect("memory");
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
        let x = vm.tensor(&[1.0f32; 4], &[4]).expect("memory");
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
