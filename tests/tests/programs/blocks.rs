//! Blocks: `if` and `while` in programs run as the host's `if` and `while` over the same calls.

use streamvm::program::Recorder;
use streamvm::{DType, DeviceId, Error, Mode, Tensor, Vm};
use streamvm_tests::compiled::block_scenarios::SCENARIOS;
use streamvm_tests::compiled::blocks::{Drawn, compare_drawn, compare_drawn_mixed};
use streamvm_tests::compiled::devices_scenarios::DEVICES_SCENARIOS;
use streamvm_tests::compiled::mixed_scenarios::MIXED_SCENARIOS;
use streamvm_tests::{CPU, cases, within};

const SIM: DeviceId = DeviceId::sim(1);

/// The devices that run blocks, each with engines of every mode.
fn engines() -> Vec<(String, Vm, DeviceId)> {
    let modes = [Mode::Threaded, Mode::Inline, Mode::Simulated { seed: 3 }, Mode::Simulated { seed: 4 }];
    let engine = |(device, mode): (DeviceId, Mode)| {
        // Some reach no pageable memory, as CUDA devices do.
        let builder = Vm::builder().mode(mode).sim_devices(2).sim_pinned_only(mode != Mode::Threaded);
        let vm = builder.detect_races(true).build().expect("an engine");
        (format!("{device}, {mode:?}"), vm, device)
    };
    [CPU, SIM].into_iter().flat_map(|device| modes.map(|mode| (device, mode))).map(engine).collect()
}

#[test]
fn blocks_do_on_each_device_and_in_each_mode_what_they_must() {
    for (scenario, run) in SCENARIOS.into_iter().chain(MIXED_SCENARIOS).chain(DEVICES_SCENARIOS) {
        for (name, vm, device) in engines() {
            let said = format!("{scenario} on {name}");
            let vm = within(&said, move || {
                run(&vm, device);
                vm
            });
            assert!(vm.races().is_empty(), "{said}: {:?}", vm.races());
        }
    }
}

#[test]
fn conditions_and_values_of_blocks_are_checked_where_they_are_recorded() {
    let vm = Vm::builder().build().expect("an engine");
    let other = vm.full(CPU, DType::Bool, &[], true).expect("a tensor");
    type Case<'a> = Box<dyn Fn(&Recorder) -> Result<(), Error> + 'a>;
    let yes = |r: &Recorder| r.full(CPU, DType::Bool, &[], true);
    let cases: [(&str, Case<'_>); 7] = [
        ("one bool", Box::new(|r| r.while_true(&r.full(CPU, DType::Bool, &[2], true)?, || Ok(())))),
        ("one bool", Box::new(|r| r.if_true(&r.full(CPU, DType::I32, &[], 1)?, || Ok(())))),
        ("feed or a parameter", Box::new(|r| r.if_true(&other, || Ok(())))),
        ("copy into it", Box::new(|r| r.if_true(&yes(r)?, || r.fetch("made", &yes(r)?)))),
        (
            "64 blocks",
            Box::new(|r| {
                fn nested(r: &Recorder, yes: &Tensor, depth: usize) -> Result<(), Error> {
                    if depth == 0 { Ok(()) } else { r.if_true(yes, || nested(r, yes, depth - 1)) }
                }
                let yes = yes(r)?;
                nested(r, &yes, 64)?;
                nested(r, &yes, 65)
            }),
        ),
        (
            "copy into it",
            Box::new(|r| {
                let mut made = None;
                r.if_true(&yes(r)?, || {
                    made = Some(yes(r)?);
                    Ok(())
                })?;
                r.fetch("made", &made.expect("the closure ran"))
            }),
        ),
        (
            "copy into it",
            Box::new(|r| {
                let (x, mut made) = (yes(r)?, None);
                r.if_else(
                    &x,
                    || {
                        made = Some(yes(r)?);
                        Ok(())
                    },
                    || Ok(()),
                )?;
                x.eq(&made.expect("the closure ran")).map(drop)
            }),
        ),
    ];
    for (part, case) in cases {
        let refused = vm.record("blocks", |r| case(r)).expect_err(part).to_string();
        assert!(refused.contains(part) && refused.contains("blocks.rs:"), "{part}: {refused}");
    }
    // A caller may go on after a body that failed: the block has ended.
    let program = vm.record("blocks", |r| {
        let x = yes(r)?;
        assert!(r.if_true(&x, || Err(Error::shutdown())).is_err());
        r.fetch("x", &x)
    });
    assert_eq!(program.expect("its blocks end").steps.len(), 3);
}

#[test]
fn drawn_blocks_compute_what_the_host_computes() {
    for (name, vm, device) in engines() {
        let seeds = cases(if name == "cpu:0, Threaded" { 60 } else { 10 });
        let mut drawn = Drawn::default();
        for seed in 1..=seeds {
            compare_drawn(&vm, device, seed, &mut drawn);
        }
        let mut mixed = Drawn::default();
        for seed in (1..=seeds).filter(|_| device != CPU) {
            compare_drawn_mixed(&vm, device, seed, &mut mixed);
        }
        assert!(
            device == CPU
                || mixed.functions > seeds as usize && mixed.by_host.min(mixed.by_devices) > 3 * seeds as usize,
            "{mixed:?}"
        );
        assert!(vm.races().is_empty(), "{name}: {:?}", vm.races());
        let Drawn { marks, removed, fused_in_loops, functions, .. } = drawn;
        let fused = device != CPU || fused_in_loops > seeds as usize / 3;
        let calls = device != CPU || functions > seeds as usize;
        assert!(
            marks > 10 * seeds as usize && removed > seeds as usize && fused && calls,
            "{name}: the programs are drawn so that passes have work: {drawn:?}"
        );
    }
}
