//! Options of a builder hold for a scope, however the scope is left.

use std::panic::{AssertUnwindSafe, catch_unwind};

use streamvm_ep::{DType, DeviceId, MemoryKind, Priority};
use streamvm_instructions::{BuildError, Error, InstructionsBuilder, Lane, LaunchOptions, Var};

const CPU: DeviceId = DeviceId::cpu(0);

/// Adds an instruction that runs no code, and returns its stream.
fn stream(b: &mut InstructionsBuilder) -> String {
    b.push("note", CPU, [], || Ok(()));
    b.list().instructions().last().expect("it was added").stream.to_string()
}

#[test]
fn a_scope_ends_with_its_statement_or_block() {
    let mut b = InstructionsBuilder::new();
    assert_eq!(stream(&mut b.on_lane(1)), "compute@cpu:0:1");
    assert_eq!(stream(&mut b), "compute@cpu:0:0");
    {
        let mut b = b.on_lane(2);
        assert_eq!([stream(&mut b), stream(&mut b)], ["compute@cpu:0:2"; 2]);
    }
    assert_eq!(stream(&mut b), "compute@cpu:0:0");
    for lane in 3..5 {
        let mut b = b.on_lane(lane);
        assert_eq!(stream(&mut b), format!("compute@cpu:0:{lane}"));
        if lane == 4 {
            break;
        }
    }
    assert_eq!(stream(&mut b), "compute@cpu:0:0");
}

/// Fails by `?` in two scopes.
fn fails(b: &mut InstructionsBuilder) -> Result<(), Error> {
    let x = b.full(CPU, DType::F32, &[2], 1.0)?;
    let y = b.full(CPU, DType::F32, &[3], 1.0)?;
    let mut b = b.on_lane(1);
    b.on_workers().add(&x, &y)?;
    panic!("shapes of 2 and 3 elements do not add");
}

#[test]
fn a_scope_ends_at_an_error() {
    let mut b = InstructionsBuilder::new();
    assert!(matches!(fails(&mut b), Err(Error::Build { error: BuildError::Op(_), .. })));
    assert_eq!(stream(&mut b), "compute@cpu:0:0");
}

#[test]
fn a_scope_ends_at_a_panic() {
    let mut b = InstructionsBuilder::new();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let mut b = b.on_lane(1);
        let mut b = b.on_pinned();
        assert_eq!(stream(&mut b), "pinned@cpu:0:1");
        std::panic::resume_unwind(Box::new("a panic"));
    }));
    assert!(panicked.is_err());
    assert_eq!(stream(&mut b), "compute@cpu:0:0");
}

#[test]
fn scopes_nest_and_hold_together() {
    let mut b = InstructionsBuilder::new();
    assert_eq!(stream(&mut b.on_lane(1).on_workers()), "workers@cpu:0:1");
    assert_eq!(stream(&mut b.on_workers().on_lane(1)), "workers@cpu:0:1");
    {
        let mut b = b.on_workers();
        {
            let mut b = b.on_lane(1);
            assert_eq!(stream(&mut b), "workers@cpu:0:1");
            assert_eq!(stream(&mut b.on_lane(2)), "workers@cpu:0:2");
            assert_eq!(stream(&mut b.on_compute()), "compute@cpu:0:1");
            assert_eq!(stream(&mut b), "workers@cpu:0:1");
        }
        assert_eq!(stream(&mut b), "workers@cpu:0:0");
    }
    assert_eq!(stream(&mut b), "compute@cpu:0:0");
}

#[test]
fn launch_options_hold_for_their_scope() {
    let (mut b, variable) = (InstructionsBuilder::new(), Var::new());
    let urgent = LaunchOptions { priority: Priority::High, ..LaunchOptions::default() };
    let clean_up = LaunchOptions { clean_up: true, ..LaunchOptions::default() };
    {
        let mut b = b.on_workers();
        let mut b = b.with_launch_options(urgent);
        b.push("urgent", CPU, [variable.write()], || Ok(()));
        b.with_launch_options(clean_up).push("clean up", CPU, [variable.read()], || Ok(()));
        b.on_lane(1).push("urgent, too", CPU, [variable.read()], || Ok(()));
    }
    b.push("plain", CPU, [variable.read()], || Ok(()));
    let list = b.finish();
    let found: Vec<_> = list.instructions().iter().map(|i| (i.stream.to_string(), i.launch)).collect();
    let expected = [
        ("workers@cpu:0:0", urgent),
        ("workers@cpu:0:0", clean_up),
        ("workers@cpu:0:1", urgent),
        ("compute@cpu:0:0", LaunchOptions::default()),
    ];
    assert_eq!(found, expected.map(|(stream, launch)| (stream.to_owned(), launch)));
}

#[test]
fn outputs_are_pinned_in_their_scope_alone() -> Result<(), Error> {
    let mut b = InstructionsBuilder::new();
    let x = b.full(CPU, DType::F32, &[2], 1.0)?;
    assert_eq!(b.on_pinned().neg(&x)?.memory(), MemoryKind::Pinned);
    assert_eq!(b.neg(&x)?.memory(), MemoryKind::Device);
    Ok(())
}

/// A builder keeps the lane of the thread that it was made on; its scopes change the builder alone.
#[test]
fn builders_begin_on_the_lane_of_the_thread() {
    let mut b = {
        let _lane = Lane(3).enter();
        InstructionsBuilder::new()
    };
    let _lane = Lane(4).enter();
    assert_eq!(stream(&mut b), "compute@cpu:0:3");
    {
        let mut b = b.on_lane(5);
        assert_eq!(stream(&mut b), "compute@cpu:0:5");
        assert_eq!(Lane::current(), Lane(4));
    }
    assert_eq!(stream(&mut b), "compute@cpu:0:3");
}
