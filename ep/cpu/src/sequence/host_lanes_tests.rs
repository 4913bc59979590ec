//! Branches on threads: each after those that it waits for, however many threads there are. With loom: every interleaving of the threads of small runs, and broken
//! twins that must fail.

use super::*;

/// Lanes of branches with one part each, which are numbered in this order: for each its lane, and the branches that it waits for.
fn lanes(rows: &[(usize, &[usize])]) -> HostLanes {
    let branch = |(number, (lane, after)): (usize, &(usize, &[usize]))| SequenceBranch {
        steps: number..number + 1,
        lane: *lane,
        after: after.to_vec(),
    };
    let branches: Vec<SequenceBranch> = rows.iter().enumerate().map(branch).collect();
    let parts: Vec<Range<usize>> = (0..rows.len()).map(|number| number..number + 1).collect();
    HostLanes::new(&branches, &parts)
}

#[cfg(not(loom))]
mod threads {
    use std::sync::atomic::AtomicU64;

    use streamvm_kernels::set_threads;

    use super::*;

    /// How many threads run lanes. Miri cannot call what the pool of helpers asks of the operating system.
    const THREADS: &[usize] = if cfg!(miri) { &[1] } else { &[1, 2, 3, 8] };

    /// For each branch the time at which it began and ended, on a clock that each of them advances.
    #[derive(Default)]
    struct Clock(AtomicU64);

    impl Clock {
        fn tick(&self) -> u64 {
            self.0.fetch_add(1, Ordering::SeqCst) + 1
        }
    }

    /// Two lanes that need each other in each row, and one that needs both now and then.
    fn ladder(rows: usize) -> Vec<(usize, Vec<usize>)> {
        let mut all: Vec<(usize, Vec<usize>)> = vec![(0, vec![]), (1, vec![])];
        for row in 1..rows {
            let before = all.len() - if row > 1 && (row - 1) % 3 == 0 { 3 } else { 2 };
            all.push((0, vec![before + 1]));
            all.push((1, vec![before]));
            if row % 3 == 0 {
                all.push((2, vec![all.len() - 2, all.len() - 1]));
            }
        }
        all
    }

    #[test]
    fn each_branch_runs_once_and_after_those_that_it_waits_for() {
        let (rows, runs) = if cfg!(miri) { (20, 2) } else { (200, 50) };
        let rows = ladder(rows);
        let borrowed: Vec<(usize, &[usize])> = rows.iter().map(|(lane, after)| (*lane, &after[..])).collect();
        let lanes = lanes(&borrowed);
        for &threads in THREADS {
            set_threads(threads);
            for _ in 0..runs {
                let clock = Clock::default();
                let times: Vec<[AtomicU64; 2]> = rows.iter().map(|_| Default::default()).collect();
                let run: Result<(), ()> = lanes.run(
                    || (),
                    |(), parts| {
                        assert_eq!(times[parts.start][0].swap(clock.tick(), Ordering::SeqCst), 0, "it runs once");
                        times[parts.start][1].store(clock.tick(), Ordering::SeqCst);
                        Ok(())
                    },
                );
                assert_eq!(run, Ok(()));
                let time = |branch: usize, end: usize| times[branch][end].load(Ordering::SeqCst);
                let mut last = [None; 3];
                for (branch, (lane, after)) in rows.iter().enumerate() {
                    for other in after.iter().copied().chain(last[*lane]) {
                        assert!(0 < time(other, 1) && time(other, 1) < time(branch, 0), "{other} before {branch}");
                    }
                    last[*lane] = Some(branch);
                }
            }
            set_threads(1);
        }
    }

    /// Two branches that each wait until the other one has begun end only if two threads run them.
    /// So many that a helper joins although other tests compute.
    const MANY: usize = 16;

    #[test]
    #[cfg_attr(miri, ignore = "Miri cannot call what the pool of helpers asks of the operating system")]
    fn two_lanes_run_at_the_same_time() {
        let lanes = lanes(&[(0, &[]), (1, &[])]);
        let barrier = std::sync::Barrier::new(2);
        set_threads(MANY);
        let run: Result<(), ()> = lanes.run(
            || (),
            |(), _| {
                barrier.wait();
                Ok(())
            },
        );
        set_threads(1);
        assert_eq!(run, Ok(()));
    }

    #[test]
    fn a_failure_ends_the_run() {
        let rows: Vec<(usize, &[usize])> = vec![(0, &[]), (1, &[]), (0, &[1]), (1, &[0])];
        for &threads in THREADS {
            set_threads(threads);
            for failing in 0..4 {
                let began = AtomicU64::new(0);
                let run = lanes(&rows).run(
                    || (),
                    |(), parts| {
                        began.fetch_or(1 << parts.start, Ordering::SeqCst);
                        if parts.start == failing { Err(parts.start) } else { Ok(()) }
                    },
                );
                assert_eq!(run, Err(failing), "{threads} threads");
                let began = began.into_inner();
                let behind = |branch: usize| match branch {
                    0 => 0b1100,
                    1 => 0b1100,
                    _ => 0,
                };
                assert_eq!(began & behind(failing), 0, "{threads} threads: {began:b} has begun behind {failing}");
            }
            set_threads(1);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri cannot call what the pool of helpers asks of the operating system")]
    fn of_two_failures_the_first_by_its_parts_is_told() {
        set_threads(MANY);
        let barrier = std::sync::Barrier::new(2);
        let run = lanes(&[(0, &[]), (1, &[])]).run(
            || (),
            |(), parts| {
                barrier.wait();
                Err::<(), usize>(parts.start)
            },
        );
        set_threads(1);
        assert_eq!(run, Err(0));
    }

    /// A destructor that runs lanes while its thread unwinds, as one that waits for an engine in inline mode does.
    #[test]
    fn a_run_within_a_panic_runs_all_branches() {
        struct RunsLanes<'r>(&'r AtomicU64);

        impl Drop for RunsLanes<'_> {
            fn drop(&mut self) {
                let lanes = lanes(&[(0, &[]), (1, &[0]), (0, &[1])]);
                let run: Result<(), ()> = lanes.run(
                    || (),
                    |(), _| {
                        self.0.fetch_add(1, Ordering::SeqCst);
                        Ok(())
                    },
                );
                assert_eq!(run, Ok(()));
            }
        }

        let ran = AtomicU64::new(0);
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _runs = RunsLanes(&ran);
            panic!("on purpose");
        }));
        panic.expect_err("the panic goes on");
        assert_eq!(ran.into_inner(), 3);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_leaves_no_thread_waiting() {
        for &threads in THREADS {
            set_threads(threads);
            for panicking in 0..2 {
                let lanes = lanes(&[(0, &[]), (1, &[]), (0, &[1]), (1, &[0])]);
                let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    lanes.run(
                        || (),
                        |(), parts| {
                            assert!(parts.start != panicking, "a branch panics");
                            Ok::<(), ()>(())
                        },
                    )
                }));
                let payload = run.expect_err("the panic goes on");
                let text = payload
                    .downcast_ref::<String>()
                    .cloned()
                    .or_else(|| payload.downcast_ref::<&str>().map(|it| it.to_string()));
                assert!(text.is_some_and(|text| text.contains("a branch panics")));
            }
            set_threads(1);
        }
    }
}

#[cfg(loom)]
mod models {
    use loom::cell::UnsafeCell;
    use loom::thread;

    use super::*;

    /// A value for each branch, which it writes once. Branches that wait for it read it.
    struct Values(Vec<UnsafeCell<usize>>);

    // SAFETY: a value is written before it is read; loom checks that claim.
    unsafe impl Sync for Values {}
    // SAFETY: as above.
    unsafe impl Send for Values {}

    /// The code that a thread runs for a branch, which gets the parts of the branch.
    type Body<'b> = &'b dyn Fn(&mut (), Range<usize>) -> Result<(), ()>;

    /// Two threads run all branches by `finish`, which gets a lane, first different ones. Each branch reads what those that it waits for have written.
    fn model(rows: &'static [(usize, &'static [usize])], finish: fn(&Run<'static, ()>, usize, Body<'_>)) {
        loom::model(move || {
            let lanes: &'static HostLanes = Box::leak(Box::new(lanes(rows)));
            let state = |_: &Vec<HostBranch>| {
                CachePadded::new(Lane { taken: AtomicBool::new(false), done: AtomicUsize::new(0) })
            };
            let run: Run<'static, ()> = Run {
                lanes,
                states: lanes.0.iter().map(state).collect(),
                stopped: AtomicBool::new(false),
                failed: Mutex::new(None),
            };
            let values = Values(rows.iter().map(|_| UnsafeCell::new(0)).collect());
            let shared = loom::sync::Arc::new((run, values));
            let help = move |shared: &(Run<'static, ()>, Values), first: usize| {
                let (run, Values(values)) = shared;
                let body = |(): &mut (), parts: Range<usize>| {
                    let own = parts.start;
                    for &other in rows[own].1 {
                        // SAFETY: the other branch has written it and has ended; loom checks that.
                        values[other].with(|value| assert_eq!(unsafe { *value }, other + 1, "it has run"));
                    }
                    values[own].with_mut(|value| {
                        // SAFETY: this branch alone writes it; loom checks that.
                        assert_eq!(unsafe { value.replace(own + 1) }, 0, "it runs once");
                    });
                    Ok(())
                };
                let count = run.states.len();
                (0..count).for_each(|next| finish(run, (first + next) % count, &body));
            };
            let of_helper = shared.clone();
            let helper = thread::spawn(move || help(&of_helper, 1));
            help(&shared, 0);
            helper.join().expect("the thread does not panic");
        });
    }

    fn finish(run: &Run<'static, ()>, lane: usize, body: Body<'_>) {
        run.finish(lane, &mut (), &body);
    }

    #[test]
    fn loom_branches_of_two_lanes_run_once_and_see_what_they_wait_for() {
        model(&[(0, &[]), (1, &[0]), (0, &[1])], finish);
        model(&[(0, &[]), (1, &[]), (0, &[1]), (1, &[0])], finish);
    }

    /// A thread may have two lanes while it runs branches of the third.
    #[test]
    fn loom_branches_of_three_lanes_run_once_and_see_what_they_wait_for() {
        model(&[(2, &[]), (1, &[0]), (0, &[1])], finish);
    }

    /// A broken [`Run::take`], which does not see what the thread that had the lane before has written.
    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_a_lane_that_is_taken_without_acquire_is_a_race() {
        model(&[(0, &[]), (0, &[0])], |run, lane, body| {
            let state = &run.states[lane];
            let is_free = || state.taken.compare_exchange(false, true, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            for count in [1, 2] {
                if is_free() {
                    Taken { run, lane, runs: Cell::new(false) }.advance(count, &mut (), &body);
                }
            }
        });
    }

    /// A broken [`Taken::advance`], which does not pass on what the branch has written.
    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_a_branch_that_is_counted_without_release_is_a_race() {
        model(&[(0, &[]), (1, &[0])], |run, lane, body| {
            if lane == 1 {
                return finish(run, lane, body);
            }
            if let Some(taken) = run.take(lane)
                && run.states[lane].done.load(Ordering::Relaxed) == 0
            {
                body(&mut (), 0..1).expect("it does not fail");
                run.states[lane].done.store(1, Ordering::Relaxed);
                // Others see the number before the lane is given back.
                thread::yield_now();
                drop(taken);
            }
        });
    }

    /// A broken [`Run::take`], which looks and takes in two steps.
    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_a_lane_that_two_threads_take_runs_twice() {
        model(&[(0, &[]), (1, &[])], |run, lane, body| {
            let state = &run.states[lane];
            while state.done.load(Ordering::Acquire) == 0 {
                if state.taken.load(Ordering::Acquire) {
                    thread::yield_now();
                    continue;
                }
                state.taken.store(true, Ordering::Relaxed);
                Taken { run, lane, runs: Cell::new(false) }.advance(1, &mut (), &body);
            }
        });
    }

    /// A broken [`Taken::advance`], which tells that a branch has run before it has.
    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_a_branch_that_counts_too_early_is_not_waited_for() {
        model(&[(0, &[]), (1, &[0])], |run, lane, body| {
            if lane == 1 {
                return finish(run, lane, body);
            }
            if let Some(taken) = run.take(lane)
                && run.states[lane].done.load(Ordering::Relaxed) == 0
            {
                run.states[lane].done.store(1, Ordering::Release);
                // The thread that waits may go on here.
                thread::yield_now();
                body(&mut (), 0..1).expect("it does not fail");
                drop(taken);
            }
        });
    }
}
