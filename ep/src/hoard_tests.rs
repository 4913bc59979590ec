use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::*;
use crate::counted::Own;

/// A number that counts its end.
struct Number {
    value: u32,
    ended: Arc<AtomicUsize>,
}

impl Last for Number {
    fn last(own: Own<Number>) {
        own.ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// A text, which ends as values do.
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

enum Both {}

impl Pair for Both {
    type A = Number;
    type B = Text;
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

fn hoard(numbers: &[&Counted<Number>]) -> Hoard<Both> {
    let mut hoard = Hoard::default();
    numbers.iter().for_each(|number| hoard.push(Either::Number(*number)));
    hoard
}

fn numbers(hoard: &Hoard<Both>) -> Vec<u32> {
    let seen = hoard.as_slice().iter().filter_map(|held| match held {
        Either::Number(number) => Some(number.value),
        Either::Text(_) => None,
    });
    seen.collect()
}

fn leases(hoard: &Hoard<Both>) -> bool {
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

#[test]
fn the_place_of_a_value_is_used_again() {
    let ended = Ended::default();
    let mut own = Own::new(Number { value: 1, ended: ended.0.clone() });
    own.value = 2;
    let address = &raw const *own;
    let shared = own.share();
    assert!(shared.value == 2 && std::ptr::eq(&raw const *shared, address));
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
    assert_eq!(ended.get(), 1, "as soon as the hoard is gone");
    drop(two);
    assert_eq!(ended.get(), 2, "a lease that is over holds nothing");
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
    assert!(leases(&first) && !leases(&second), "one at a time has a lease");
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
            assert!(!leases(&theirs), "the place of a lease is its first lender's");
            theirs
        });
        let theirs = theirs.join().expect("it does not panic");
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
    thread::spawn(move || drop(mine)).join().expect("it does not panic");
    assert_eq!(ended.get(), 1);
    let theirs = {
        let ended = ended.clone();
        thread::spawn(move || hoard(&[&ended.number(2)])).join().expect("it does not panic")
    };
    // Whoever has its lender now has no lease before this one is over, and holds all the same.
    let (third, next) = {
        let ended = ended.clone();
        let next = move || {
            let third = ended.number(3);
            (third.clone(), hoard(&[&third]))
        };
        thread::spawn(next).join().expect("it does not panic")
    };
    assert_eq!((numbers(&theirs), ended.get()), (vec![2], 1));
    drop(theirs);
    assert_eq!(ended.get(), 2);
    drop(third);
    assert_eq!((numbers(&next), ended.get()), (vec![3], 2));
    drop(next);
    assert_eq!(ended.get(), 3);
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
    let room = Hoard::<Both>::with_room(first.into_room());
    assert_eq!((room.as_slice().len(), ended.get()), (0, 3));
}

/// Threads that show what the others drop, over and over: each value ends once, and not before its last hoard.
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
