use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use streamvm_ep::{DType, DeviceId};
use streamvm_program::{CompileOptions, Program, compile, record};

use super::*;

/// A program whose arena has `elements` elements.
fn program(elements: usize) -> Arc<Program> {
    let recorded = record(format!("p{elements}"), |r| {
        let x = r.feed("x", DeviceId::cpu(0), DType::F32, &[elements])?;
        r.fetch("y", &x.softmax(0)?.sum(&[])?)
    });
    Arc::new(recorded.expect("it can be recorded"))
}

fn load(program: &Arc<Program>) -> Result<LoadedProgram, Error> {
    let compiled = compile(program.clone(), &CompileOptions::default())?;
    Ok(LoadedProgram {
        parts: Default::default(),
        sized: Default::default(),
        compiled,
        segments: Vec::new(),
        next_run: Default::default(),
        fetches: Vec::new(),
        only_kernel: None,
        draws: false,
    })
}

fn cache(programs: usize, bytes: u64) -> ProgramCache {
    ProgramCache::new(Bounds { programs, bytes })
}

/// The program that the cache gives, and whether it was made for this request.
fn get(cache: &ProgramCache, program: &Arc<Program>) -> (Arc<LoadedProgram>, bool) {
    let mut made = false;
    let query = Query::Program { program, options: &CompileOptions::default() };
    let found = cache.get_or_load(query, || {
        made = true;
        load(program)
    });
    (found.expect("it compiles"), made)
}

#[test]
fn equal_programs_are_made_once_and_options_tell_them_apart() {
    let cache = cache(8, u64::MAX);
    let (first, made) = get(&cache, &program(3));
    assert!(made);
    let (second, made) = get(&cache, &program(3));
    assert!(!made && Arc::ptr_eq(&first, &second), "another recording of the same program");
    let other = CompileOptions { in_place: false, ..CompileOptions::default() };
    let query = Query::Program { program: &program(3), options: &other };
    let third = cache.get_or_load(query, || load(&program(3))).expect("it compiles");
    assert!(!Arc::ptr_eq(&first, &third));
    let stats = cache.stats();
    assert_eq!((stats.programs, stats.hits, stats.misses, stats.evictions), (2, 1, 2, 0));
}

/// The values of fills tell programs apart by their bits: `-0.0` is another program than `0.0`, and a NaN is found again.
#[test]
fn fills_are_compared_by_their_bits() {
    let fill = |value: f64| {
        let recorded = record("fill", |r| r.fetch("y", &r.full(DeviceId::cpu(0), DType::F32, &[2], value)?));
        recorded.expect("it can be recorded")
    };
    let cache = cache(8, u64::MAX);
    let made = [0.0, -0.0, f64::NAN, f64::NAN, 0.0].map(|value| get(&cache, &Arc::new(fill(value))).1);
    assert_eq!(made, [true, true, true, false, false]);
}

#[test]
fn programs_with_one_hash_are_not_mistaken_for_each_other() {
    let cache = cache(8, u64::MAX);
    let get = |elements: usize| {
        let (program, options, mut made) = (program(elements), CompileOptions::default(), false);
        let query = Query::Program { program: &program, options: &options };
        let found = cache.get_or_load_at(7, query, || {
            made = true;
            load(&program)
        });
        (found.expect("it compiles").compiled.program().name.clone(), made)
    };
    let answers = [1, 2, 2, 1].map(get);
    let expected = [("p1", true), ("p2", true), ("p2", false), ("p1", true)];
    assert_eq!(answers, expected.map(|(name, made)| (name.to_owned(), made)));
    // One entry for a hash: what the others counted is gone.
    let (stats, alone) = (cache.stats(), self::cache(8, u64::MAX));
    assert_eq!((stats.programs, stats.hits, stats.misses, stats.evictions), (1, 1, 3, 2));
    self::get(&alone, &program(1));
    assert_eq!(stats.bytes, alone.stats().bytes);
}

#[test]
fn the_least_recently_used_program_goes_first() {
    let cache = cache(2, u64::MAX);
    let [a, b, c] = [1, 2, 3].map(program);
    let made = [&a, &b, &a, &c, &a, &b].map(|program| get(&cache, program).1);
    assert_eq!(made, [true, true, false, true, false, true], "`b` went when `c` came, as `a` was used after it");
    assert_eq!(cache.stats().evictions, 2);
}

#[test]
fn bytes_are_bounded_and_a_program_beyond_the_bound_is_not_kept() {
    let counted = |elements: usize| {
        let cache = cache(8, u64::MAX);
        get(&cache, &program(elements));
        cache.stats().bytes
    };
    let (small, large) = (counted(1), counted(1 << 20));
    assert!(
        small > 500 && large >= small + (4 << 20) - 64,
        "an arena of 4 MiB counts, and so does a plan: {small}, {large}"
    );

    let cache = cache(8, 3 * small + small / 2);
    for elements in 1..=5 {
        let held = get(&cache, &program(elements)).0;
        assert!(cache.stats().bytes <= 3 * small + small / 2);
        assert_eq!(held.compiled.program().name, format!("p{elements}"));
    }
    assert_eq!((cache.stats().programs, cache.stats().evictions), (3, 2));
    get(&cache, &program(1 << 20));
    assert_eq!(cache.stats().programs, 3, "the large program has not driven the others out");
    assert!(get(&cache, &program(1 << 20)).1, "it was not kept");
    assert!(!get(&cache, &program(5)).1);
}

#[test]
fn evicted_programs_are_dropped_unless_somebody_holds_them() {
    let cache = cache(1, u64::MAX);
    let (held, gone) = (get(&cache, &program(1)).0, Arc::downgrade(&get(&cache, &program(2)).0));
    get(&cache, &program(3));
    assert!(gone.upgrade().is_none());
    assert_eq!((Arc::strong_count(&held), held.compiled.program().name.as_str()), (1, "p1"));
    let none = self::cache(0, u64::MAX);
    assert!(get(&none, &program(1)).1 && get(&none, &program(1)).1, "a bound of none keeps none");
    assert_eq!((none.stats().programs, none.stats().bytes), (0, 0));
}

#[test]
fn errors_are_not_kept_and_a_panic_leaves_the_next_caller_to_it() {
    let cache = cache(8, u64::MAX);
    let (program, options) = (program(1), CompileOptions::default());
    let query = Query::Program { program: &program, options: &options };
    let refused = cache.get_or_load(query, || Err(Error::shutdown()));
    assert!(matches!(refused, Err(Error::Shutdown { .. })));
    assert_eq!(cache.stats().programs, 0);
    let panicked = catch_unwind(AssertUnwindSafe(|| cache.get_or_load(query, || panic!("on purpose")).is_ok()));
    assert!(panicked.is_err());
    assert!(get(&cache, &program).1, "the entry has no program");
    assert!(!get(&cache, &program).1);
    let stats = cache.stats();
    assert!(stats.programs == 1 && stats.bytes > 0, "it was counted: {stats:?}");
}

/// While a thread compiles a program, a second thread that asks for it waits, and a third finds another program.
#[test]
fn compiling_blocks_only_those_who_ask_for_the_same_program() {
    let cache = &cache(8, u64::MAX);
    let (slow, other) = (&program(1), &program(2));
    get(cache, other);
    thread::scope(|scope| {
        let (started, wait_started) = channel();
        let (go_on, wait_go_on) = channel::<()>();
        let first = scope.spawn(move || {
            let query = Query::Program { program: slow, options: &CompileOptions::default() };
            let load = || {
                started.send(()).expect("the test waits");
                wait_go_on.recv().expect("the test says when");
                load(slow)
            };
            cache.get_or_load(query, load).expect("it compiles")
        });
        wait_started.recv().expect("it starts");
        let second = scope.spawn(move || get(cache, slow));
        assert!(!get(cache, other).1, "a hit while another program is compiled");
        thread::sleep(Duration::from_millis(20));
        assert!(!second.is_finished(), "it waits for the first");
        go_on.send(()).expect("it waits");
        let (first, (second, made)) = (first.join().expect("no panic"), second.join().expect("no panic"));
        assert!(Arc::ptr_eq(&first, &second) && !made);
    });
}
