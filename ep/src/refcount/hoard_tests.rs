use std::collections::HashSet;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use super::*;
use crate::refcount::counted::Own;

/// A number that counts when it ends.
struct Number {
    value: u32,
    ended: Arc<AtomicUsize>,
}

impl Last for Number {
    fn last(own: Own<Number>) {
        own.ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// A text that ends without any effect.
struct Text {
    text: &'static str,
}

impl Last for Text {
    fn last(own: Own<Text>) {
        drop(own);
    }
}

#[derive(Copy, Clone, Debug, PartialEq)]
enum Either<A, B> {
    Number(A),
    Text(B),
}

struct Both<A, B>(PhantomData<(A, B)>);

impl<N: Last, T: Last> Pair for Both<N, T> {
    type A = N;
    type B = T;
    type With<A, B> = Either<A, B>;

    fn map<S, A, B, C, D>(
        it: Either<A, B>,
        with: S,
        a: impl FnOnce(S, A) -> C,
        b: impl FnOnce(S, B) -> D,
    ) -> Either<C, D> {
        match it {
            Either::Number(number) => Either::Number(a(with, number)),
            Either::Text(text) => Either::Text(b(with, text)),
        }
    }

    fn by_reference<A, B>(it: &Either<A, B>) -> Either<&A, &B> {
        match it {
            Either::Number(number) => Either::Number(number),
            Either::Text(text) => Either::Text(text),
        }
    }
}

#[derive(Clone, Default)]
struct Ended(Arc<AtomicUsize>);

impl Ended {
    fn number(&self, number: u32) -> Counted<Number> {
        Counted::new(Number { value: number, ended: self.0.clone() })
    }

    fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

fn hoard(numbers: &[&Counted<Number>]) -> Hoard<Both<Number, Text>> {
    let mut hoard = Hoard::default();
    numbers.iter().for_each(|number| hoard.push(Either::Number(*number)));
    hoard
}

fn numbers(hoard: &Hoard<Both<Number, Text>>) -> Vec<u32> {
    let seen = hoard.as_slice().iter().filter_map(|held| match held {
        Either::Number(number) => Some(number.value),
        Either::Text(_) => None,
    });
    seen.collect()
}

fn leases(hoard: &Hoard<Both<Number, Text>>) -> bool {
    hoard.holds.lease.is_some() && hoard.holds.counted.is_empty()
}

#[test]
fn a_value_ends_with_its_last_reference() {
    let ended = Ended::default();
    let one = ended.number(1);
    let again = one.clone();
    drop(one);
    assert_eq!((ended.get(), again.value), (0, 1));
    drop(again);
    assert_eq!(ended.get(), 1);
}

/// An allocation that comes back from its last reference can be filled again, and then behaves as a new one on any thread.
#[test]
fn a_place_is_used_again() {
    static LEFT: Mutex<Vec<Own<Again>>> = Mutex::new(Vec::new());
    #[derive(Debug)]
    struct Again(u32);
    impl Last for Again {
        fn last(mut own: Own<Again>) {
            own.0 += 1;
            LEFT.lock().expect("no thread panics with the lock").push(own);
        }
    }
    let use_it = |again: Counted<Again>| {
        let mut hoard = Hoard::<Both<Again, Text>>::default();
        hoard.push(Either::Number(&again));
        assert!(
            hoard.holds.lease.is_some() && hoard.holds.counted.is_empty(),
            "a lease pins the value, whichever lender pinned it before"
        );
        drop(again);
        assert!(LEFT.lock().expect("no thread panics with the lock").is_empty());
        drop(hoard);
    };
    let left = || LEFT.lock().expect("no thread panics with the lock").pop().expect("the last reference was dropped");
    let first = Own::new(Again(0));
    let address = &raw const *first;
    use_it(first.share());
    use_it(left().share());
    thread::spawn(move || use_it(left().share())).join().expect("the thread does not panic");
    let own = left();
    assert!(own.0 == 3 && std::ptr::eq(&raw const *own, address), "{own:?}");
}

#[test]
fn what_a_hoard_was_shown_lasts_as_long_as_that() {
    let ended = Ended::default();
    let (one, two) = (ended.number(1), ended.number(2));
    let mut hoard = hoard(&[&one, &two, &one]);
    let text = Counted::new(Text { text: "three" });
    hoard.push(Either::Text(&text));
    assert!(leases(&hoard), "nothing is counted");
    drop((one, text));
    assert_eq!((numbers(&hoard), ended.get()), (vec![1, 2, 1], 0));
    assert!(matches!(&hoard.as_slice()[3], Either::Text(text) if text.text == "three"));
    drop(hoard);
    assert_eq!(ended.get(), 1, "ends as soon as the hoard is dropped");
    drop(two);
    assert_eq!(ended.get(), 2, "a lease that is over keeps nothing alive");
}

#[test]
fn a_reference_that_is_made_from_a_hoard_counts() {
    let ended = Ended::default();
    let one = ended.number(1);
    let hoard = hoard(&[&one]);
    drop(one);
    let Either::Number(again) = &hoard.as_slice()[0] else { panic!("it is a number") };
    let again = Counted::clone(again);
    drop(hoard);
    assert_eq!((again.value, ended.get()), (1, 0));
    drop(again);
    assert_eq!(ended.get(), 1);
}

#[test]
fn several_hoards_of_one_thread_hold_each_their_own() {
    let ended = Ended::default();
    let (one, two) = (ended.number(1), ended.number(2));
    let (first, second) = (hoard(&[&one]), hoard(&[&one, &two]));
    assert!(leases(&first) && !leases(&second), "a thread has one lease at a time");
    drop((one, two));
    drop(first);
    assert_eq!((numbers(&second), ended.get()), (vec![1, 2], 0));
    let third = hoard(&[]);
    drop(second);
    assert_eq!(ended.get(), 2);
    drop(third);
}

#[test]
fn what_another_thread_has_leased_is_counted() {
    let ended = Ended::default();
    let one = ended.number(1);
    drop(hoard(&[&one]));
    thread::scope(|scope| {
        let theirs = scope.spawn(|| {
            let theirs = hoard(&[&one]);
            assert!(!leases(&theirs), "the lender of a value is the first that pinned it");
            theirs
        });
        let theirs = theirs.join().expect("the thread does not panic");
        drop(hoard(&[&one]));
        assert_eq!((numbers(&theirs), ended.get()), (vec![1], 0));
    });
    drop(one);
    assert_eq!(ended.get(), 1);
}

#[test]
fn a_hoard_may_end_on_another_thread_or_after_its_own() {
    let ended = Ended::default();
    let mine = hoard(&[&ended.number(1)]);
    thread::spawn(move || drop(mine)).join().expect("the thread does not panic");
    assert_eq!(ended.get(), 1);
    let theirs = {
        let ended = ended.clone();
        thread::spawn(move || hoard(&[&ended.number(2)])).join().expect("the thread does not panic")
    };
    assert_eq!((numbers(&theirs), ended.get()), (vec![2], 1));
    drop(theirs);
    assert_eq!(ended.get(), 2);
}

/// Threads that run one after the other share a few lenders, and get none whose lease still lasts.
#[test]
fn threads_take_over_the_lenders_of_those_that_have_ended() {
    let ended = Ended::default();
    let mut lenders = HashSet::new();
    let mut kept = Vec::new();
    for round in 0..60 {
        let theirs = {
            let ended = ended.clone();
            thread::spawn(move || hoard(&[&ended.number(round)])).join().expect("the thread does not panic")
        };
        assert!(leases(&theirs));
        lenders.insert(std::ptr::from_ref(theirs.holds.lease.as_ref().expect("a lease").lender) as usize);
        if round % 10 == 0 {
            kept.push(theirs);
        }
    }
    // The lenders of the lists that are kept, and those that threads of other tests have taken meanwhile.
    assert!((kept.len()..40).contains(&lenders.len()), "{} lenders of 60 threads", lenders.len());
    drop(kept);
    assert_eq!(ended.get(), 60);
}

#[test]
fn a_hoard_is_moved_behind_another_and_used_again() {
    let ended = Ended::default();
    let (one, two) = (ended.number(1), ended.number(2));
    let (mut first, second) = (hoard(&[&one]), hoard(&[&two, &one]));
    first.append(&second);
    drop((one, two, second));
    assert_eq!((numbers(&first), ended.get()), (vec![1, 2, 1], 0));
    first.truncate(1);
    assert_eq!((numbers(&first), ended.get()), (vec![1], 0), "held until it is cleared");
    let room = first.capacity();
    first.clear();
    assert_eq!((first.as_slice().len(), first.capacity(), ended.get()), (0, room, 2));
    first.push(Either::Number(&ended.number(3)));
    assert_eq!((numbers(&first), ended.get()), (vec![3], 2));
}

/// Threads hold and drop the same values over and over: each value ends once, and not before the last hoard that holds it.
#[test]
fn threads_that_show_and_drop_the_same_end_each_value_once() {
    const ROUNDS: usize = if cfg!(miri) { 20 } else { 2_000 };
    let ended = Ended::default();
    for _ in 0..ROUNDS {
        let one = ended.number(1);
        let before = ended.get();
        thread::scope(|scope| {
            for _ in 0..2 {
                let mine = one.clone();
                let ended = &ended;
                scope.spawn(move || {
                    let first = hoard(&[&mine]);
                    drop(mine);
                    let Either::Number(again) = &first.as_slice()[0] else { panic!("it is a number") };
                    let again = Counted::clone(again);
                    drop(first);
                    let second = hoard(&[&again, &again]);
                    drop(again);
                    assert_eq!((numbers(&second), ended.get()), (vec![1, 1], before));
                });
            }
            drop(one);
        });
        assert_eq!(ended.get() - before, 1);
    }
}
