//! Profiles: what ran, how often, for how long, and on which worker.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use streamvm::report::OpProfile;
use streamvm::{DeviceId, Mode, Pool, PoolConfig, Var, Vm};

const LONG: Duration = Duration::from_millis(20);

fn op(vm: &Vm, name: &str) -> OpProfile {
    let profile = vm.profile().expect("it was asked for");
    let found: Vec<&OpProfile> = profile.ops.iter().filter(|op| op.name == name).collect();
    assert_eq!(found.len(), 1, "{name} in\n{profile}");
    found[0].clone()
}

#[test]
fn there_is_none_unless_asked_for() {
    let vm = Vm::builder().build().expect("an engine");
    vm.push("step", [], || Ok(())).expect("a push");
    vm.wait_all().expect("no failure");
    assert_eq!(vm.profile(), None);
}

#[test]
fn a_chain_queues_for_what_comes_before_it_and_runs_for_itself() {
    for mode in [Mode::Threaded, Mode::Simulated { seed: 1 }] {
        let vm = Vm::builder().mode(mode).profile(true).workers(2).build().expect("an engine");
        let (x, (all, pushed)) = (Var::new(), std::sync::mpsc::channel::<()>());
        if mode == Mode::Threaded {
            vm.push("held", [x.update()], move || Ok(pushed.recv()?)).expect("a push");
        }
        for _ in 0..3 {
            vm.push("sleeps", [x.update()], || {
                thread::sleep(LONG);
                Ok(())
            })
            .expect("a push");
        }
        // Where nobody waits for it, it is closed.
        let _ = all.send(());
        vm.wait_all().expect("no failure");
        let OpProfile { count, failed, skipped, queued, ran, workers, .. } = op(&vm, "sleeps");
        assert_eq!((count, failed, skipped), (3, 0, 0));
        assert!(ran.min >= LONG && ran.total >= 3 * LONG, "{ran:?}");
        assert!(ran.min <= ran.p50 && ran.p50 <= ran.p99 && ran.p99 <= ran.max && ran.max < ran.total, "{ran:?}");
        if mode == Mode::Threaded {
            // The second has waited for the first, the third for both.
            assert!(queued.max >= 2 * LONG && queued.total >= 3 * LONG && queued.min < queued.max, "{queued:?}");
        }
        assert_eq!(workers.iter().map(|worker| worker.count).sum::<u64>(), 3);
        assert_eq!(workers.iter().map(|worker| worker.total).sum::<Duration>(), ran.total);
    }
}

#[test]
fn each_worker_has_its_share() {
    let builder = Vm::builder().profile(true).pool(Pool::Normal, PoolConfig::new().workers(2).name("crew"));
    let vm = builder.build().expect("an engine");
    let both = Arc::new(Barrier::new(2));
    for _ in 0..2 {
        let both = both.clone();
        vm.push("meets", [], move || {
            both.wait();
            Ok(())
        })
        .expect("a push");
    }
    vm.wait_all().expect("no failure");
    let shares: Vec<(String, u64)> = op(&vm, "meets").workers.into_iter().map(|w| (w.worker, w.count)).collect();
    assert_eq!(shares.len(), 2, "{shares:?}");
    assert!(shares.iter().all(|(name, count)| name.starts_with("crew") && *count == 1), "{shares:?}");
    assert_ne!(shares[0].0, shares[1].0);
}

#[test]
fn what_fails_and_what_is_skipped_for_it_is_told_apart() {
    for mode in [Mode::Threaded, Mode::Inline] {
        let vm = Vm::builder().mode(mode).profile(true).build().expect("an engine");
        let (x, y) = (Var::new(), Var::new());
        vm.push("fails", [x.write()], || Err("no".into())).expect("a push");
        vm.push("reads", [x.read(), y.write()], || Ok(())).expect("a push");
        vm.push("reads", [y.update()], || Ok(())).expect("a push");
        vm.push("reads", [], || Ok(())).expect("a push");
        assert!(vm.wait_all().is_err());
        let (fails, reads) = (op(&vm, "fails"), op(&vm, "reads"));
        assert_eq!((fails.count, fails.failed, fails.skipped), (1, 1, 0));
        assert_eq!((reads.count, reads.failed, reads.skipped), (1, 0, 2));
        // A clean-up that passes another's failure on has not failed.
        vm.pusher().clean_up(true).push("closes", [x.update()], || Ok(())).expect("a push");
        assert!(x.wait().is_err());
        let closes = op(&vm, "closes");
        assert_eq!((closes.count, closes.failed, closes.skipped), (1, 0, 0));
        if mode == Mode::Inline {
            assert_eq!(reads.workers[0].worker, "inline");
        }
    }
}

#[test]
fn an_asynchronous_function_runs_until_its_handle_is_used() {
    let vm = Vm::builder().profile(true).build().expect("an engine");
    vm.push_async("later", [], |done| {
        thread::spawn(move || {
            thread::sleep(LONG);
            done.complete(Ok(()));
        });
    })
    .expect("a push");
    vm.wait_all().expect("no failure");
    let later = op(&vm, "later");
    assert_eq!(later.count, 1);
    assert!(later.ran.min >= LONG, "{:?}", later.ran);
}

#[test]
fn ops_of_tensors_are_counted_on_their_streams_and_devices_that_run_later_by_their_launches() {
    let vm = Vm::builder().profile(true).sim_devices(1).build().expect("an engine");
    for device in [DeviceId::cpu(0), DeviceId::sim(0)] {
        let x = vm.from_slice(&[1.0f32, 2.0], &[2]).and_then(|x| x.to(device)).expect("a tensor");
        let sum = (&(&x + &x).expect("a sum") + &x).expect("a sum");
        assert_eq!(sum.to_vec::<f32>().expect("no failure"), [3.0, 6.0]);
    }
    vm.wait_all().expect("no failure");
    let profile = vm.profile().expect("it was asked for");
    let adds: Vec<(String, u64)> =
        profile.ops.iter().filter(|op| op.name == "add").map(|op| (op.stream.to_string(), op.count)).collect();
    assert_eq!(adds.len(), 2, "{profile}");
    assert!(adds.contains(&("compute@cpu:0:0".into(), 2)) && adds.contains(&("compute@sim:0:0".into(), 2)), "{adds:?}");
    // What took the longest comes first, and what has nothing to run is not there.
    assert!(profile.ops.is_sorted_by(|a, b| a.ran.total >= b.ran.total), "{profile}");
    assert!(profile.ops.iter().all(|op| op.count > 0), "{profile}");
}

#[test]
fn a_profile_can_be_taken_while_work_goes_on() {
    let vm = Vm::builder().profile(true).build().expect("an engine");
    thread::scope(|scope| {
        let pusher = scope.spawn(|| {
            for _ in 0..5_000 {
                vm.push("small", [], || Ok(())).expect("a push");
            }
        });
        let mut last = 0;
        while !pusher.is_finished() {
            let profile = vm.profile().expect("it was asked for");
            let count = profile.ops.first().map_or(0, |op| op.count);
            assert!(count >= last, "{count} after {last}");
            last = count;
        }
    });
    vm.wait_all().expect("no failure");
    assert_eq!(op(&vm, "small").count, 5_000);
}
