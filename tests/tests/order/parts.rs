//! Storages that are used in parts: disjoint parts are worked on side by side, and each has failures of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use streamvm::{DType, Mode, Place, Tensor, Ticket, TimeLimit, Vm};
use streamvm_tests::{CPU, ClosedGate, Gate, PATIENCE, failure_of, submit};

/// A matrix of zeros and its two rows.
fn rows(vm: &Vm) -> (Tensor, [Tensor; 2]) {
    let x = vm.full(CPU, DType::F32, &[2, 3], 0.0f32).expect("a fill");
    x.wait().expect("it passes");
    let rows = [0, 1].map(|row| x.slice(0, row..row + 1).expect("a row"));
    (x, rows)
}

/// An engine whose pushed functions hold up no lane, however few cores there are.
fn with_worker() -> Vm {
    Vm::builder().workers(1).build().expect("an engine")
}

/// Has a pushed function update `part`, and waits until it is held at the gate.
fn hold<'vm>(vm: &'vm Vm, part: &Tensor, gate: &Gate) -> Ticket<'vm> {
    let door = gate.clone();
    let held = vm.push("held", [part.update()], move || {
        door.pass();
        Ok(())
    });
    gate.wait_entered(1);
    held.expect("a push")
}

#[test]
fn a_lane_fills_its_row_while_another_lane_is_held_in_the_other_row() {
    let vm = with_worker();
    let gate = ClosedGate::new();
    let (x, [first, second]) = rows(&vm);
    let held = hold(&vm, &first, &gate);
    let filled = submit(&vm, |b| b.on_lane(1).fill(&second, 2.0f32));
    assert_eq!(TimeLimit(PATIENCE).run(|| filled.wait()), Ok(()), "the second row is filled while the first is held");
    assert_eq!(TimeLimit(PATIENCE).run(|| second.wait()), Ok(()), "a row is waited for by itself");
    assert!(!held.is_passed(), "the first row is still held");
    gate.open();
    assert_eq!(x.to_vec::<f32>(), Ok(vec![0.0, 0.0, 0.0, 2.0, 2.0, 2.0]));
}

/// The same for columns, whose bytes lie between each other.
#[test]
fn a_lane_fills_its_columns_while_another_lane_is_held_in_the_others() {
    let vm = with_worker();
    let gate = ClosedGate::new();
    let x = vm.full(CPU, DType::F32, &[3, 4], 0.0f32).expect("a fill");
    x.wait().expect("it passes");
    let [left, right] = [0..1, 1..4].map(|columns| x.slice(1, columns).expect("columns"));
    let held = hold(&vm, &left, &gate);
    let filled = submit(&vm, |b| b.on_lane(1).fill(&right, 2.0f32));
    assert_eq!(TimeLimit(PATIENCE).run(|| filled.wait()), Ok(()));
    assert!(!held.is_passed());
    // What overlaps the held columns waits for them.
    let waits = |vm: &Vm| vm.stats().streams.iter().map(|stream| stream.device_waits + stream.host_waits).sum::<u64>();
    let before = waits(&vm);
    submit(&vm, |b| b.on_lane(1).fill(&x.slice(1, 0..2)?, 3.0f32));
    assert_eq!(waits(&vm), before + 1);
    gate.open();
    assert_eq!(x.to_vec::<f32>(), Ok([3.0, 3.0, 2.0, 2.0].repeat(3)));
}

#[test]
fn pushed_functions_over_disjoint_rows_run_side_by_side() {
    let vm = Vm::builder().workers(2).build().expect("an engine");
    let gate = ClosedGate::new();
    let (_, [first, second]) = rows(&vm);
    let both = Arc::new(AtomicUsize::new(0));
    for row in [&first, &second] {
        let (door, both) = ((*gate).clone(), both.clone());
        vm.push("meet", [row.update()], move || {
            door.pass();
            both.fetch_add(1, Ordering::SeqCst);
            Ok(())
        })
        .expect("a push");
    }
    // Both are in their functions at once.
    gate.wait_entered(2);
    assert_eq!(both.load(Ordering::SeqCst), 0);
    gate.open();
    vm.wait_all().expect("both pass");
}

#[test]
fn a_failure_in_one_row_is_told_to_those_who_look_at_that_row() {
    for mode in [Mode::Threaded, Mode::Inline, Mode::Simulated { seed: 7 }] {
        let vm = Vm::builder().mode(mode).build().expect("an engine");
        let (x, [first, second]) = rows(&vm);
        submit(&vm, |b| b.call_fn("sour", CPU, [first.update()], |_| Err("no luck".into())));
        submit(&vm, |b| b.fill(&second, 2.0f32));
        assert_eq!(failure_of(first.wait()).what, "sour", "{mode:?}");
        assert_eq!(second.wait(), Ok(()), "{mode:?}");
        assert_eq!(second.to_vec::<f32>(), Ok(vec![2.0; 3]), "{mode:?}");
        assert_eq!(failure_of(x.wait()).what, "sour", "{mode:?}: the whole has that row");
        assert_eq!(failure_of(x.to_vec::<f32>()).what, "sour", "{mode:?}");
        // A write of the part alone does not heal: it also reads. One of the whole does.
        submit(&vm, |b| b.fill(&first, 1.0f32));
        assert_eq!(failure_of(first.wait()).what, "sour", "{mode:?}");
        submit(&vm, |b| b.fill(&x, 3.0f32));
        assert_eq!(x.to_vec::<f32>(), Ok(vec![3.0; 6]), "{mode:?}");
    }
}

/// Disjoint columns of one tensor may be copied into each other; overlapping ones may not.
#[test]
fn columns_are_copied_within_their_tensor() {
    for mode in [Mode::Threaded, Mode::Inline, Mode::Simulated { seed: 7 }] {
        let vm = Vm::builder().mode(mode).sim_devices(1).build().expect("an engine");
        for place in [Place::Host, Place::Device(CPU), Place::Device(streamvm::DeviceId::sim(0))] {
            let x =
                vm.from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]).and_then(|x| x.to(place)).expect("a tensor");
            submit(&vm, |b| b.copy_into(&x.slice(1, 0..1)?, &x.slice(1, 1..2)?));
            assert_eq!(x.to_vec::<f32>(), Ok(vec![1.0, 1.0, 3.0, 4.0, 4.0, 6.0]), "{mode:?} {place:?}");
            let mut builder = streamvm::InstructionsBuilder::new();
            let (from, to) = (x.slice(1, 0..2).expect("columns"), x.slice(1, 1..3).expect("columns"));
            builder.copy_into(&from, &to).expect_err("column 1 is read and written");
        }
    }
}
