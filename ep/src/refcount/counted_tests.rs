use std::mem::ManuallyDrop;
use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;

use super::*;
use crate::refcount::epoch_guard::EpochGuard;

/// A value that many threads may read, and that is changed when it ends.
struct Value {
    read: UnsafeCell<u32>,
    ended: Arc<AtomicUsize>,
}

// SAFETY: the value is changed only through the unique reference; loom checks that claim.
unsafe impl Sync for Value {}

impl Value {
    fn read_value(&self) {
        // SAFETY: a shared value is not changed; loom checks that claim.
        assert_eq!(self.read.with(|value| unsafe { *value }), 7, "it has ended");
    }
}

impl Recycle for Value {
    fn recycle(unique: Unique<Value>) {
        // The allocation is leaked, because in the broken variants other threads still read the value.
        let unique = ManuallyDrop::new(unique);
        // SAFETY: `unique` is the unique reference; loom checks that claim.
        unique.read.with_mut(|value| unsafe { *value = 0 });
        unique.ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// A way to drop a reference.
type Drops = fn(Counted<Value>);

/// A [`PinnedRefs`](crate::PinnedRefs) reduced to one reference and its guard.
struct List {
    pinned: Option<Counted<Value>>,
    _guard: EpochGuard,
}

impl List {
    fn of(participant: &'static Participant, value: &Counted<Value>) -> List {
        let guard = EpochGuard::begin(participant).expect("no other epoch is current");
        // SAFETY: the value is pinned, and the uncounted reference is forgotten when the epoch ends.
        let pinned = value.pin(&guard).then(|| unsafe { value.uncounted() });
        List { pinned, _guard: guard }
    }

    fn pinned(&self) -> &Counted<Value> {
        self.pinned.as_ref().expect("no other participant pins the value")
    }
}

impl Drop for List {
    fn drop(&mut self) {
        std::mem::forget(self.pinned.take());
    }
}

fn value(ended: &Arc<AtomicUsize>) -> Counted<Value> {
    Counted::new(Value { read: UnsafeCell::new(7), ended: ended.clone() })
}

fn participant() -> &'static Participant {
    Participant::leaked()
}

/// Runs `model`, and checks that afterwards `values` values have ended.
fn ends(values: usize, model: impl Fn(&Arc<AtomicUsize>) + Sync + Send + 'static) {
    loom::model(move || {
        let ended = Arc::new(AtomicUsize::new(0));
        model(&ended);
        assert_eq!(ended.load(Ordering::Relaxed), values, "ends");
    });
}

fn ends_once(model: impl Fn(&Arc<AtomicUsize>) + Sync + Send + 'static) {
    ends(1, model);
}

/// A list of this thread pins a value while another thread drops the last counted reference.
fn pinned_while_dropped(drops: Drops) {
    ends_once(move |ended| {
        let value = value(ended);
        let list = List::of(participant(), &value);
        let other = thread::spawn(move || drops(value));
        list.pinned().read_value();
        drop(list);
        other.join().expect("the thread does not panic");
    });
}

#[test]
fn loom_a_value_that_a_list_pins_ends_after_the_list() {
    pinned_while_dropped(drop);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_drop_that_does_not_check_the_epoch_is_a_race() {
    pinned_while_dropped(|value| {
        Value::recycle(Unique(ManuallyDrop::new(value).0, PhantomData));
    });
}

/// A broken [`Participant::defer`] that does not check again whether the epoch has ended.
#[test]
#[should_panic(expected = "ends")]
fn loom_a_deferred_drop_without_a_second_check_of_the_epoch_never_happens() {
    pinned_while_dropped(|value| {
        let value = ManuallyDrop::new(value);
        // SAFETY: the reference is used afterwards only as its fate says.
        match unsafe { Header::release(value.0.cast()) } {
            // SAFETY: this reference is given up here, and put on one list.
            Dropped::Pinned(participant, _) => unsafe { participant.push_deferred(value.0.cast()) },
            _ => Value::recycle(Unique(value.0, PhantomData)),
        }
    });
}

/// Two references are dropped at the same time while a list pins the value.
fn dropped_by_two(drops: Drops) {
    ends_once(move |ended| {
        let one = value(ended);
        let two = one.clone();
        let list = List::of(participant(), &one);
        let other = thread::spawn(move || drops(one));
        drops(two);
        list.pinned().read_value();
        drop(list);
        other.join().expect("the thread does not panic");
    });
}

#[test]
fn loom_of_two_references_that_are_dropped_at_once_one_is_the_last() {
    dropped_by_two(drop);
}

#[test]
#[should_panic(expected = "ends")]
fn loom_counts_that_reach_zero_leave_no_thread_to_end_the_value() {
    dropped_by_two(|value| {
        let value = ManuallyDrop::new(value);
        if value.allocation().header.count.load(Ordering::Relaxed) == 1 {
            return drop(ManuallyDrop::into_inner(value));
        }
        value.allocation().header.count.fetch_sub(1, Ordering::AcqRel);
    });
}

/// Another thread clones a reference from a list and may then end the list, while a third thread drops the only counted one.
fn taken_from_a_list(drops: Drops) {
    ends_once(move |ended| {
        let value = value(ended);
        let list = loom::sync::Arc::new(List::of(participant(), &value));
        let taker = {
            let list = list.clone();
            thread::spawn(move || {
                let taken = list.pinned().clone();
                drop(list);
                taken.read_value();
                drops(taken);
            })
        };
        drop(list);
        drops(value);
        taker.join().expect("the thread does not panic");
    });
}

#[test]
fn loom_a_reference_that_is_made_from_a_list_counts() {
    taken_from_a_list(drop);
}

/// A broken [`Header::release`] that reads the count first and does not read it again.
fn count_first(header: &Header) -> Dropped {
    loop {
        let count = header.count.load(Ordering::Acquire);
        if count > 1 {
            if header.count.compare_exchange(count, count - 1, Ordering::Release, Ordering::Relaxed).is_ok() {
                return Dropped::Shared;
            }
            continue;
        }
        let pinned_by = header.pinned_by();
        // SAFETY: participants are never freed.
        return match unsafe { pinned_by.0.as_ref() }.filter(|participant| participant.is_current(pinned_by.1)) {
            Some(participant) => Dropped::Pinned(participant, pinned_by.1),
            None => Dropped::Last,
        };
    }
}

fn drop_by(value: Counted<Value>, fate: fn(&Header) -> Dropped) {
    let value = ManuallyDrop::new(value);
    match fate(&value.allocation().header) {
        Dropped::Shared => {}
        Dropped::Pinned(participant, epoch) => participant.defer(Erased(value.0.cast()), epoch),
        Dropped::Last => Value::recycle(Unique(value.0, PhantomData)),
    }
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_drop_that_reads_the_count_only_before_the_epoch_is_a_race() {
    taken_from_a_list(|value| drop_by(value, count_first));
}

/// A second list pins a value, which was pinned before, by a second reference, and drops that reference, while the first is dropped.
fn pinned_again(drops: Drops) {
    ends_once(move |ended| {
        let (participant, value) = (participant(), value(ended));
        drop(List::of(participant, &value));
        let again = value.clone();
        let other = thread::spawn(move || drops(value));
        let list = List::of(participant, &again);
        drops(again);
        list.pinned().read_value();
        drop(list);
        other.join().expect("the thread does not panic");
    });
}

#[test]
fn loom_a_value_that_is_pinned_again_ends_after_the_last_list() {
    pinned_again(drop);
}

/// A broken [`Header::release`] that does not check for a newer epoch.
fn epoch_once(header: &Header) -> Dropped {
    loop {
        let pinned_by = header.pinned_by();
        // SAFETY: participants are never freed.
        let current = unsafe { pinned_by.0.as_ref() }.filter(|participant| participant.is_current(pinned_by.1));
        let count = header.count.load(Ordering::Acquire);
        if count == 1 {
            return current.map_or(Dropped::Last, |participant| Dropped::Pinned(participant, pinned_by.1));
        }
        if header.count.compare_exchange(count, count - 1, Ordering::Release, Ordering::Relaxed).is_ok() {
            return Dropped::Shared;
        }
    }
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_drop_that_misses_a_newer_epoch_is_a_race() {
    pinned_again(|value| drop_by(value, epoch_once));
}

/// Another thread ends a list of this thread. Then `begin` begins the next epoch, and the last reference is dropped.
fn ended_elsewhere(begin: fn(&'static Participant) -> Option<EpochGuard>) {
    ends_once(move |ended| {
        let (participant, value) = (participant(), value(ended));
        let list = List::of(participant, &value);
        let other = thread::spawn(move || {
            list.pinned().read_value();
            drop(list);
        });
        let next = begin(participant);
        drop(value);
        drop(next);
        other.join().expect("the thread does not panic");
    });
}

#[test]
fn loom_a_list_may_end_on_another_thread() {
    ended_elsewhere(EpochGuard::begin);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_an_epoch_that_does_not_pass_on_the_end_of_the_last_is_a_race() {
    ended_elsewhere(|participant| {
        let begins = participant.current_epoch.load(Ordering::Relaxed) == 0;
        begins.then(|| {
            participant.current_epoch.store(2, Ordering::Relaxed);
            EpochGuard { participant, epoch: 2 }
        })
    });
}

/// Two threads defer a drop by `push` while the list that pins both values ends.
fn deferred_by_two(push: fn(&Participant, NonNull<Header>)) {
    ends(2, move |ended| {
        let values = [value(ended), value(ended)];
        let guard = EpochGuard::begin(participant()).expect("no other epoch is current");
        assert!(values.iter().all(|value| value.pin(&guard)));
        let others = values.map(|value| {
            thread::spawn(move || {
                let value = ManuallyDrop::new(value);
                // SAFETY: the reference is used afterwards only as its fate says.
                match unsafe { Header::release(value.0.cast()) } {
                    Dropped::Pinned(participant, epoch) => {
                        push(participant, value.0.cast());
                        if !participant.is_current(epoch) {
                            participant.drop_deferred();
                        }
                    }
                    _ => Value::recycle(Unique(value.0, PhantomData)),
                }
            })
        });
        drop(guard);
        others.into_iter().for_each(|other| other.join().expect("the thread does not panic"));
    });
}

#[test]
fn loom_of_two_drops_that_are_deferred_at_once_none_is_lost() {
    // SAFETY: the reference is that of the calling thread, and is given up here.
    deferred_by_two(|participant, header| unsafe { participant.push_deferred(header) });
}

#[test]
#[should_panic(expected = "ends")]
fn loom_of_two_drops_that_are_deferred_by_a_plain_store_one_is_lost() {
    deferred_by_two(|participant, header| {
        let first = participant.deferred.load(Ordering::Acquire);
        // SAFETY: the reference is counted, so the header is alive.
        unsafe { header.as_ref() }.next.store(first, Ordering::Relaxed);
        participant.deferred.store(header.as_ptr(), Ordering::Release);
    });
}

/// Two lists of different participants are the first to pin a value, by `pin`, while its reference is dropped.
fn pinned_by_two_participants(pin: fn(&Counted<Value>, &EpochGuard) -> bool) {
    ends_once(move |ended| {
        let mine = value(ended);
        let theirs = mine.clone();
        let pin_and_read = move |value: Counted<Value>| {
            let guard = EpochGuard::begin(participant()).expect("no other epoch is current");
            if !pin(&value, &guard) {
                return value.read_value();
            }
            // SAFETY: the value is pinned as long as `guard` lives, and the reference is not dropped.
            let pinned = ManuallyDrop::new(unsafe { value.uncounted() });
            drop(value);
            pinned.read_value();
            drop(guard);
        };
        let other = thread::spawn(move || pin_and_read(theirs));
        pin_and_read(mine);
        other.join().expect("the thread does not panic");
    });
}

#[test]
fn loom_of_two_participants_that_come_first_one_pins() {
    pinned_by_two_participants(Counted::pin);
}

#[test]
#[should_panic(expected = "it has ended")]
fn loom_a_participant_that_is_stored_without_a_check_ends_a_value_that_another_pins() {
    pinned_by_two_participants(|value, guard| {
        let header = &value.allocation().header;
        header.participant.store(ptr::from_ref(guard.participant).cast_mut(), Ordering::Release);
        header.pin_again(guard) || value.pin(guard)
    });
}

/// A reference that was deferred in one epoch is deferred again if the next list pins its value through a clone.
#[test]
fn loom_a_deferred_drop_is_deferred_again_while_the_next_list_pins_its_value() {
    ends_once(|ended| {
        let (participant, value) = (participant(), value(ended));
        let list = List::of(participant, &value);
        let again = list.pinned().clone();
        let other = thread::spawn(move || drop(value));
        drop(list);
        let list = List::of(participant, &again);
        drop(again);
        list.pinned().read_value();
        drop(list);
        other.join().expect("the thread does not panic");
    });
}
