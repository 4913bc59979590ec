use std::collections::HashSet;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use super::*;
use crate::refcount::counted::Unique;

/// A number that counts when it ends.
struct Number {
    value: u32,
    ended: Arc<AtomicUsize>,
}

impl Recycle for Number {
    fn recycle(unique: Unique<Number>) {
        unique.ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// A text that ends without any effect.
struct Text {
    text: &'static str,
}

impl Recycle for Text {
    fn recycle(unique: Unique<Text>) {
        drop(unique);
    }
}

#[derive(Copy, Clone, Debug, PartialEq)]
enum Either<A, B> {
    Number(A),
    Text(B),
}

struct Both<A, B>(PhantomData<(A, B)>);

impl<N: Recycle, T: Recycle> EitherRef for Both<N, T> {
    type A = N;
    type B = T;
    type With<A, B> = Either<A, B>;

    fn map<S, A, B, C, D>(
        item: Either<A, B>,
        with: S,
        a: impl FnOnce(S, A) -> C,
        b: impl FnOnce(S, B) -> D,
    ) -> Either<C, D> {
        match item {
            Either::Number(number) => Either::Number(a(with, number)),
            Either::Text(text) => Either::Text(b(with, text)),
        }
    }

    fn by_reference<A, B>(item: &Either<A, B>) -> Either<&A, &B> {
        match item {
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

fn pinned(numbers: &[&Counted<Number>]) -> PinnedRefs<Both<Number, Text>> {
    let mut list = PinnedRefs::default();
    numbers.iter().for_each(|number| list.push(Either::Number(*number)));
    list
}

fn numbers(list: &PinnedRefs<Both<Number, Text>>) -> Vec<u32> {
    let seen = list.as_slice().iter().filter_map(|item| match item {
        Either::Number(number) => Some(number.value),
        Either::Text(_) => None,
    });
    seen.collect()
}

fn pins_all(list: &PinnedRefs<Both<Number, Text>>) -> bool {
    list.pins.guard.is_some() && list.pins.counted.is_empty()
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
fn an_allocation_is_used_again() {
    static RECYCLED: Mutex<Vec<Unique<Again>>> = Mutex::new(Vec::new());
    #[derive(Debug)]
    struct Again(u32);
    impl Recycle for Again {
        fn recycle(mut unique: Unique<Again>) {
            unique.0 += 1;
            RECYCLED.lock().expect("no thread panics with the lock").push(unique);
        }
    }
    let use_it = |again: Counted<Again>| {
        let mut list = PinnedRefs::<Both<Again, Text>>::default();
        list.push(Either::Number(&again));
        assert!(
            list.pins.guard.is_some() && list.pins.counted.is_empty(),
            "a guard pins the value, whichever participant pinned it before"
        );
        drop(again);
        assert!(RECYCLED.lock().expect("no thread panics with the lock").is_empty());
        drop(list);
    };
    let recycled =
        || RECYCLED.lock().expect("no thread panics with the lock").pop().expect("the last reference was dropped");
    let first = Unique::new(Again(0));
    let address = &raw const *first;
    use_it(first.share());
    use_it(recycled().share());
    thread::spawn(move || use_it(recycled().share())).join().expect("the thread does not panic");
    let unique = recycled();
    assert!(unique.0 == 3 && std::ptr::eq(&raw const *unique, address), "{unique:?}");
}

#[test]
fn values_live_as_long_as_the_list_that_pins_them() {
    let ended = Ended::default();
    let (one, two) = (ended.number(1), ended.number(2));
    let mut list = pinned(&[&one, &two, &one]);
    let text = Counted::new(Text { text: "three" });
    list.push(Either::Text(&text));
    assert!(pins_all(&list), "nothing is counted");
    drop((one, text));
    assert_eq!((numbers(&list), ended.get()), (vec![1, 2, 1], 0));
    assert!(matches!(&list.as_slice()[3], Either::Text(text) if text.text == "three"));
    drop(list);
    assert_eq!(ended.get(), 1, "ends as soon as the list is dropped");
    drop(two);
    assert_eq!(ended.get(), 2, "an epoch that has ended keeps nothing alive");
}

#[test]
fn a_reference_that_is_cloned_from_a_list_counts() {
    let ended = Ended::default();
    let one = ended.number(1);
    let list = pinned(&[&one]);
    drop(one);
    let Either::Number(again) = &list.as_slice()[0] else { panic!("it is a number") };
    let again = Counted::clone(again);
    drop(list);
    assert_eq!((again.value, ended.get()), (1, 0));
    drop(again);
    assert_eq!(ended.get(), 1);
}

#[test]
fn each_of_several_lists_of_one_thread_keeps_its_values_alive() {
    let ended = Ended::default();
    let (one, two) = (ended.number(1), ended.number(2));
    let (first, second) = (pinned(&[&one]), pinned(&[&one, &two]));
    assert!(pins_all(&first) && !pins_all(&second), "a thread has one epoch at a time");
    drop((one, two));
    drop(first);
    assert_eq!((numbers(&second), ended.get()), (vec![1, 2], 0));
    let third = pinned(&[]);
    drop(second);
    assert_eq!(ended.get(), 2);
    drop(third);
}

#[test]
fn a_value_that_another_thread_has_pinned_is_counted() {
    let ended = Ended::default();
    let one = ended.number(1);
    drop(pinned(&[&one]));
    thread::scope(|scope| {
        let theirs = scope.spawn(|| {
            let theirs = pinned(&[&one]);
            assert!(!pins_all(&theirs), "the participant of a value is the first that pinned it");
            theirs
        });
        let theirs = theirs.join().expect("the thread does not panic");
        drop(pinned(&[&one]));
        assert_eq!((numbers(&theirs), ended.get()), (vec![1], 0));
    });
    drop(one);
    assert_eq!(ended.get(), 1);
}

#[test]
fn a_list_may_be_dropped_on_another_thread_or_after_its_own_thread() {
    let ended = Ended::default();
    let mine = pinned(&[&ended.number(1)]);
    thread::spawn(move || drop(mine)).join().expect("the thread does not panic");
    assert_eq!(ended.get(), 1);
    let theirs = {
        let ended = ended.clone();
        thread::spawn(move || pinned(&[&ended.number(2)])).join().expect("the thread does not panic")
    };
    assert_eq!((numbers(&theirs), ended.get()), (vec![2], 1));
    drop(theirs);
    assert_eq!(ended.get(), 2);
}

/// Threads that run one after the other share a few participants, and get none whose epoch is still current.
#[test]
fn threads_take_over_the_participants_of_threads_that_have_ended() {
    let ended = Ended::default();
    let mut participants = HashSet::new();
    let mut kept = Vec::new();
    for round in 0..60 {
        let theirs = {
            let ended = ended.clone();
            thread::spawn(move || pinned(&[&ended.number(round)])).join().expect("the thread does not panic")
        };
        assert!(pins_all(&theirs));
        participants.insert(std::ptr::from_ref(theirs.pins.guard.as_ref().expect("a guard").participant) as usize);
        if round % 10 == 0 {
            kept.push(theirs);
        }
    }
    // The participants of the lists that are kept, and those that threads of other tests have taken meanwhile.
    assert!((kept.len()..40).contains(&participants.len()), "{} participants of 60 threads", participants.len());
    drop(kept);
    assert_eq!(ended.get(), 60);
}

#[test]
fn a_list_is_appended_to_another_and_used_again() {
    let ended = Ended::default();
    let (one, two) = (ended.number(1), ended.number(2));
    let (mut first, second) = (pinned(&[&one]), pinned(&[&two, &one]));
    first.append(&second);
    drop((one, two, second));
    assert_eq!((numbers(&first), ended.get()), (vec![1, 2, 1], 0));
    first.truncate(1);
    assert_eq!((numbers(&first), ended.get()), (vec![1], 0), "its values live until it is cleared");
    let room = first.capacity();
    first.clear();
    assert_eq!((first.as_slice().len(), first.capacity(), ended.get()), (0, room, 2));
    first.push(Either::Number(&ended.number(3)));
    assert_eq!((numbers(&first), ended.get()), (vec![3], 2));
}

/// Threads pin and drop the same values over and over: each value ends once, and not before the last list that pins it.
#[test]
fn threads_that_pin_and_drop_the_same_values_end_each_value_once() {
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
                    let first = pinned(&[&mine]);
                    drop(mine);
                    let Either::Number(again) = &first.as_slice()[0] else { panic!("it is a number") };
                    let again = Counted::clone(again);
                    drop(first);
                    let second = pinned(&[&again, &again]);
                    drop(again);
                    assert_eq!((numbers(&second), ended.get()), (vec![1, 1], before));
                });
            }
            drop(one);
        });
        assert_eq!(ended.get() - before, 1);
    }
}
