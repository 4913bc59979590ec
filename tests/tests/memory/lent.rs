//! Memory that is lent to code outside of the engine: nothing writes it meanwhile, and it stays.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use streamvm::ep::Op;
use streamvm::program::CompileOptions;
use streamvm::{Critical, DType, Error, InstructionsBuilder, Lent, Mode, Params, Tensor, Vm};
use streamvm_tests::{CPU, engines, on_device};

/// The elements of what is lent, which has no gaps.
fn elements(lent: &Lent) -> Vec<f32> {
    assert!(lent.tensor().layout().is_contiguous());
    let address = lent.wait().expect("it is written").cast::<f32>();
    // SAFETY: nothing writes them while they are lent, and they are in memory of the host.
    unsafe { std::slice::from_raw_parts(address, lent.tensor().numel()) }.to_vec()
}

pub(super) fn submitted(
    vm: &Vm,
    fill: impl FnOnce(&mut InstructionsBuilder) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut b = InstructionsBuilder::new();
    fill(&mut b)?;
    vm.submit(b.finish())?.wait()
}

#[test]
fn what_is_lent_is_written_and_stays_as_it_is() -> Result<(), Error> {
    for (name, vm) in engines() {
        let x = on_device(&vm, &[1.0, 2.0, 3.0, 4.0]);
        let slow = |context: &mut streamvm::FnContext<'_>| {
            std::thread::sleep(Duration::from_millis(20));
            context.writes.take::<f32>(0)?.iter_mut().for_each(|x| *x *= 10.0);
            Ok(())
        };
        vm.call_fn("slow", CPU, [x.update()], slow)?;
        let lent = [vm.lend(&x)?, vm.lend(&x.slice(0, 1..3)?)?];
        assert_eq!(lent.each_ref().map(elements), [vec![10.0, 20.0, 30.0, 40.0], vec![20.0, 30.0]], "{name}");
        let y = on_device(&vm, &[5.0; 4]);
        type Write = fn(&Vm, &Tensor, &Tensor) -> Result<(), Error>;
        let writes: [(&str, Write); 7] = [
            ("fill", |_, x, _| x.fill(0.0)),
            ("add", |_, x, y| x.add_assign(y)),
            ("copy", |_, x, y| x.copy_from(y)),
            ("a view", |_, x, _| x.slice(0, 0..1)?.fill(0.0)),
            ("a list", |vm, x, y| submitted(vm, |b| b.op_into(Op::Relu, &[y], Params::default(), x))),
            ("release", |vm, x, _| {
                submitted(vm, |b| {
                    b.release(x);
                    Ok(())
                })
            }),
            ("f", |vm, x, _| vm.call_fn("f", CPU, [x.write()], |_| Ok(())).map(drop)),
        ];
        for lent in lent {
            for (what, write) in writes {
                let refused = write(&vm, &x, &y);
                assert!(matches!(refused, Err(Error::Lent { .. })), "{name}, {what}: {refused:?}");
            }
            assert_eq!((&x + &y)?.to_vec::<f32>()?, [15.0, 25.0, 35.0, 45.0], "{name}: it is read");
            assert_eq!(elements(&lent)[0], if lent.tensor().numel() == 4 { 10.0 } else { 20.0 }, "{name}");
        }
        for (what, write) in &writes[..5] {
            write(&vm, &x, &y).unwrap_or_else(|error| panic!("{name}, {what}: {error}"));
        }
        assert_eq!(x.to_vec::<f32>()?, [5.0; 4], "{name}");
    }
    Ok(())
}

/// A list is refused as a whole.
#[test]
fn a_list_that_writes_what_is_lent_does_nothing() -> Result<(), Error> {
    let vm = Vm::builder().build()?;
    let (x, y) = (on_device(&vm, &[1.0]), on_device(&vm, &[2.0]));
    let lent = vm.lend(&x)?;
    let refused = submitted(&vm, |b| {
        b.fill(&y, 7.0)?;
        b.fill(&x, 7.0)
    });
    let Err(error @ Error::Lent { line: 1, .. }) = refused else { panic!("{refused:?}") };
    let text = error.to_string();
    assert!(text.contains("fill") && text.contains("lent.rs:") && text.contains("drop what it is lent to"), "{text}");
    assert_eq!((y.to_vec::<f32>()?, elements(&lent)), (vec![2.0], vec![1.0]));
    Ok(())
}

#[test]
fn a_program_reads_what_is_lent_and_does_not_write_it() -> Result<(), Error> {
    let vm = Vm::builder().build()?;
    let (state, x) = (on_device(&vm, &[1.0, 2.0]), on_device(&vm, &[3.0, 4.0]));
    let program = vm.record("counts", |r| {
        let (state, x) = (r.parameter("state", &state)?, r.feed("x", CPU, DType::F32, &[2])?);
        r.fetch("y", &(&x * 2.0)?)?;
        state.add_assign(&x)
    })?;
    let executable = vm.compile(program, &[("state", &state)], &CompileOptions::default())?;
    let lent = vm.lend(&x)?;
    assert_eq!(executable.run(&[("x", &x)])?["y"].to_vec::<f32>()?, [6.0, 8.0]);
    drop(lent);
    let lent = vm.lend(&state)?;
    assert_eq!(elements(&lent), [4.0, 6.0]);
    let refused = executable.run(&[("x", &x)]).map(|_| ());
    assert!(matches!(refused, Err(Error::Lent { .. })), "{refused:?}");
    assert_eq!(elements(&lent), [4.0, 6.0]);
    drop(lent);
    executable.run(&[("x", &x)])?;
    assert_eq!(state.to_vec::<f32>()?, [7.0, 10.0]);
    Ok(())
}

#[test]
fn what_cannot_be_lent_is_told() -> Result<(), Error> {
    let vm = Vm::builder().build()?;
    let new = InstructionsBuilder::new().allocate(CPU, DType::F32, &[2])?;
    assert!(matches!(vm.lend(&new).map(drop), Err(Error::NeverWritten { .. })));
    let other = Vm::builder().build()?;
    assert!(matches!(other.lend(&on_device(&vm, &[1.0])).map(drop), Err(Error::Foreign { .. })));
    let released = on_device(&vm, &[1.0]);
    submitted(&vm, |b| {
        b.release(&released);
        Ok(())
    })?;
    assert!(matches!(vm.lend(&released).map(drop), Err(Error::Released { .. })));
    let failed = on_device(&vm, &[1.0]);
    vm.call_fn("fails", CPU, [failed.write()], |_| Err("no".into()))?;
    let lent = vm.lend(&failed)?;
    assert!((0..2).all(|_| matches!(lent.wait(), Err(Error::Failed(_)))));
    drop(lent);
    failed.fill(2.0)?;
    assert_eq!(elements(&vm.lend(&failed)?), [2.0], "nothing of the failure is left");
    for nothing in [vm.full(CPU, DType::F32, &[0, 3], 1.0)?, vm.empty(CPU, DType::F32, &[0])?] {
        let lent = vm.lend(&nothing)?;
        assert!(lent.wait().is_ok());
        nothing.fill(2.0)?;
    }
    let inside = vm.clone();
    vm.call_fn("waits", CPU, [], move |_| {
        let lent = inside.lend(&failed).map_err(|error| error.to_string())?;
        assert!(matches!(lent.wait(), Err(Error::WouldDeadlock { .. })));
        Ok(())
    })?
    .wait()?;
    Ok(())
}

#[test]
fn memory_stays_while_it_is_lent() -> Result<(), Error> {
    for mode in [Mode::Threaded, Mode::Inline, Mode::Simulated { seed: 3 }] {
        let vm = Vm::builder().mode(mode).build()?;
        let lent = vm.lend(&(&on_device(&vm, &[1.0; 1000]) + 1.0)?)?;
        // Others do not get it, nor does the device.
        for number in 0..50 {
            assert_eq!(on_device(&vm, &[number as f32; 1000]).to_vec::<f32>()?[999], number as f32);
        }
        vm.empty_cache();
        assert_eq!(elements(&lent), [2.0; 1000], "{mode:?}");
        vm.shutdown(Duration::from_secs(60))?;
        assert_eq!(elements(&lent), [2.0; 1000], "{mode:?}");
        std::thread::spawn(move || drop(lent)).join().expect("any thread drops it");
    }
    Ok(())
}

/// Touches order alone; a critical section ends with one.
#[test]
fn what_is_lent_can_be_the_result_of_a_section() -> Result<(), Error> {
    let vm = Vm::builder().build()?;
    let (x, section) = (on_device(&vm, &[1.0]), Critical::new("section"));
    let lent = {
        let entered = vm.enter_section(&[&section], &[&x])?;
        let lent = vm.lend(&x)?;
        entered.end(&[&x])?;
        lent
    };
    submitted(&vm, |b| {
        b.touch(CPU, &[&x]);
        Ok(())
    })?;
    assert_eq!(elements(&lent), [1.0]);
    Ok(())
}

/// A refused list makes and releases nothing, and ends no loan.
#[test]
fn a_refused_list_leaves_loans_alone() -> Result<(), Error> {
    let vm = Vm::builder().build()?;
    let (x, y) = (on_device(&vm, &[1.0, 2.0]), on_device(&vm, &[3.0, 4.0]));
    let lent = vm.lend(&x)?;
    for _ in 0..3 {
        let refused = submitted(&vm, |b| {
            let made = b.op(Op::Relu, &[&x], Params::default())?;
            b.release(&y);
            b.copy_into(&made, &x)
        });
        assert!(matches!(refused, Err(Error::Lent { line: 2, .. })), "{refused:?}");
        assert!(matches!(x.fill(0.0), Err(Error::Lent { .. })));
    }
    // A copy of the host's, which is staged in pieces.
    let host = vm.from_slice(&[7.0f32, 8.0], &[2])?;
    let staged = submitted(&vm, |b| b.copy_into(&host, &x));
    assert!(matches!(staged, Err(Error::Lent { .. })), "{staged:?}");
    assert_eq!((elements(&lent), y.to_vec::<f32>()?), (vec![1.0, 2.0], vec![3.0, 4.0]));
    Ok(())
}

/// While another thread submits lists whose outputs are lent: the numbers of these may be drafts, which go to others when a stream is opened for the list.
#[test]
fn outputs_of_lists_under_way_are_lent_once_they_have_their_numbers() -> Result<(), Error> {
    let vm = Vm::builder().build()?;
    let x = on_device(&vm, &[1.0; 16]);
    let (sender, receiver) = std::sync::mpsc::channel::<Tensor>();
    let trying = AtomicU32::new(0);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for lane in 1..400 {
                let mut b = InstructionsBuilder::new();
                let made = b.op(Op::Relu, &[&x], Params::default()).expect("an op");
                // Its stream is opened after the output above has got a number.
                b.on_lane(lane).op(Op::Neg, &[&x], Params::default()).expect("an op");
                sender.send(made).expect("it is taken");
                while trying.load(Ordering::Relaxed) < lane {
                    std::hint::spin_loop();
                }
                vm.submit(b.finish()).expect("it is taken");
            }
            drop(sender);
        });
        for made in receiver {
            trying.fetch_add(1, Ordering::Relaxed);
            let lent = loop {
                match vm.lend(&made) {
                    Ok(lent) => break lent,
                    Err(Error::NeverWritten { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            };
            assert_eq!(elements(&lent), [1.0; 16]);
        }
    });
    Ok(())
}

/// No write comes between the end of the wait and the use of the memory.
#[test]
fn threads_lend_what_others_write() -> Result<(), Error> {
    let vm = Vm::builder().build()?;
    let x = on_device(&vm, &[0.0; 64]);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    match x.add_assign(1.0) {
                        Ok(()) | Err(Error::Lent { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        let mut seen = Vec::new();
        for _ in 0..300 {
            let lent = vm.lend(&x).expect("it has memory");
            let first = elements(&lent);
            std::thread::yield_now();
            seen.push((first, elements(&lent)));
        }
        is_over.store(true, Ordering::Relaxed);
        for (first, then) in seen {
            assert!(first == then && first.iter().all(|it| *it == first[0]), "{first:?}, {then:?}");
        }
    });
    Ok(())
}
