use std::mem::ManuallyDrop;
use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;

use super::*;
use crate::refcount::lease::Lease;

/// A value that many threads may read, and that is changed when it ends.
struct Value {
    read: UnsafeCell<u32>,
    ended: Arc<AtomicUsize>,
}

// SAFETY: the value is changed only through the unique reference; loom checks that claim.
unsafe impl Sync for Value {}

impl Value {
    fn look(&self) {
        // SAFETY: a shared value is not changed; loom checks that claim.
        assert_eq!(self.read.with(|value| unsafe { *value }), 7, "it has ended");
    }
}

impl Last for Value {
    fn last(own: Own<Value>) {
        // The allocation is leaked, because in the broken variants other threads still read the value.
        let own = ManuallyDrop::new(own);
        // SAFETY: `own` is the unique reference; loom checks that claim.
        own.read.with_mut(|value| unsafe { *value = 0 });
        own.ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// A way to drop a reference.
type Drops = fn(Counted<Value>);

/// A hoard reduced to one reference and its lease.
struct List {
    shown: Option<Counted<Value>>,
    _lease: Lease,
}

impl List {
    fn of(lender: &'static Lender, value: &Counted<Value>) -> List {
        let lease = Lease::begin(lender).expect("no other lease lasts");
        // SAFETY: the value is pinned, and the uncounted reference is forgotten when the lease ends.
        let shown = value.lend(&lease).then(|| unsafe { value.uncounted() });
        List { shown, _lease: lease }
    }

    fn shown(&self) -> &Counted<Value> {
        self.shown.as_ref().expect("no other lender pins the value")
    }
}

impl Drop for List {
    fn drop(&mut self) {
        std::mem::forget(self.shown.take());
    }
}

fn value(ended: &Arc<AtomicUsize>) -> Counted<Value> {
    Counted::new(Value { read: UnsafeCell::new(7), ended: ended.clone() })
}

fn lender() -> &'static Lender {
    Lender::leaked()
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

/// A list of this thread holds a value while another thread drops the last counted reference.
fn shown_while_dropped(drops: Drops) {
    ends_once(move |ended| {
        let value = value(ended);
        let list = List::of(lender(), &value);
        let other = thread::spawn(move || drops(value));
        list.shown().look();
        drop(list);
        other.join().expect("the thread does not panic");
    });
}

#[test]
fn loom_what_a_list_shows_ends_behind_it() {
    shown_while_dropped(drop);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_drop_that_asks_for_no_lease_is_a_race() {
    shown_while_dropped(|value| {
        Value::last(Own(ManuallyDrop::new(value).0, PhantomData));
    });
}

/// A broken [`Lender::leave`] that does not check again whether the lease is over.
#[test]
#[should_panic(expected = "ends")]
fn loom_who_leaves_a_reference_without_another_look_leaves_it_for_good() {
    shown_while_dropped(|value| {
        let value = ManuallyDrop::new(value);
        // SAFETY: the reference is used afterwards only as its fate says.
        match unsafe { Head::drop_one(value.0.cast()) } {
            // SAFETY: this reference is given up here, and put on one list.
            Fate::Lent(lender, _) => unsafe { lender.put(value.0.cast()) },
            _ => Value::last(Own(value.0, PhantomData)),
        }
    });
}

/// Two references are dropped at the same time while a list holds the value.
fn dropped_by_two(drops: Drops) {
    ends_once(move |ended| {
        let one = value(ended);
        let two = one.clone();
        let list = List::of(lender(), &one);
        let other = thread::spawn(move || drops(one));
        drops(two);
        list.shown().look();
        drop(list);
        other.join().expect("the thread does not panic");
    });
}

#[test]
fn loom_of_two_references_that_go_at_once_one_is_the_last() {
    dropped_by_two(drop);
}

#[test]
#[should_panic(expected = "ends")]
fn loom_references_that_are_all_counted_down_leave_none_to_end() {
    dropped_by_two(|value| {
        let value = ManuallyDrop::new(value);
        if value.place().head.count.load(Ordering::Relaxed) == 1 {
            return drop(ManuallyDrop::into_inner(value));
        }
        value.place().head.count.fetch_sub(1, Ordering::AcqRel);
    });
}

/// Another thread clones a reference from a list and may then end the list, while a third thread drops the only counted one.
fn taken_from_a_list(drops: Drops) {
    ends_once(move |ended| {
        let value = value(ended);
        let list = loom::sync::Arc::new(List::of(lender(), &value));
        let taker = {
            let list = list.clone();
            thread::spawn(move || {
                let taken = list.shown().clone();
                drop(list);
                taken.look();
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

/// A broken [`Head::drop_one`] that reads the count first and does not read it again.
fn count_first(head: &Head) -> Fate {
    loop {
        let count = head.count.load(Ordering::Acquire);
        if count > 1 {
            if head.count.compare_exchange(count, count - 1, Ordering::Release, Ordering::Relaxed).is_ok() {
                return Fate::Counted;
            }
            continue;
        }
        let leased = head.leased();
        // SAFETY: lenders are never freed.
        return match unsafe { leased.0.as_ref() }.filter(|lender| lender.lasts(leased.1)) {
            Some(lender) => Fate::Lent(lender, leased.1),
            None => Fate::Last,
        };
    }
}

fn drop_by(value: Counted<Value>, fate: fn(&Head) -> Fate) {
    let value = ManuallyDrop::new(value);
    match fate(&value.place().head) {
        Fate::Counted => {}
        Fate::Lent(lender, serial) => lender.leave(Any(value.0.cast()), serial),
        Fate::Last => Value::last(Own(value.0, PhantomData)),
    }
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_drop_that_looks_at_the_count_before_the_lease_alone_is_a_race() {
    taken_from_a_list(|value| drop_by(value, count_first));
}

/// A second list pins a value, which was pinned before, by a second reference, and drops that reference, while the first is dropped.
fn shown_again(drops: Drops) {
    ends_once(move |ended| {
        let (lender, value) = (lender(), value(ended));
        drop(List::of(lender, &value));
        let again = value.clone();
        let other = thread::spawn(move || drops(value));
        let list = List::of(lender, &again);
        drops(again);
        list.shown().look();
        drop(list);
        other.join().expect("the thread does not panic");
    });
}

#[test]
fn loom_what_is_shown_again_ends_behind_the_last_list() {
    shown_again(drop);
}

/// A broken [`Head::drop_one`] that does not check for a newer lease.
fn lease_once(head: &Head) -> Fate {
    loop {
        let leased = head.leased();
        // SAFETY: lenders are never freed.
        let lasts = unsafe { leased.0.as_ref() }.filter(|lender| lender.lasts(leased.1));
        let count = head.count.load(Ordering::Acquire);
        if count == 1 {
            return lasts.map_or(Fate::Last, |lender| Fate::Lent(lender, leased.1));
        }
        if head.count.compare_exchange(count, count - 1, Ordering::Release, Ordering::Relaxed).is_ok() {
            return Fate::Counted;
        }
    }
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_drop_that_misses_a_later_lease_is_a_race() {
    shown_again(|value| drop_by(value, lease_once));
}

/// Another thread ends a list of this thread. Then `begin` begins the next lease, and the last reference is dropped.
fn ended_elsewhere(begin: fn(&'static Lender) -> Option<Lease>) {
    ends_once(move |ended| {
        let (lender, value) = (lender(), value(ended));
        let list = List::of(lender, &value);
        let other = thread::spawn(move || {
            list.shown().look();
            drop(list);
        });
        let next = begin(lender);
        drop(value);
        drop(next);
        other.join().expect("the thread does not panic");
    });
}

#[test]
fn loom_a_list_may_end_on_another_thread() {
    ended_elsewhere(Lease::begin);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_lease_that_does_not_hand_on_the_end_of_the_last_is_a_race() {
    ended_elsewhere(|lender| {
        let begins = lender.current.load(Ordering::Relaxed) == 0;
        begins.then(|| {
            lender.current.store(2, Ordering::Relaxed);
            Lease { lender, serial: 2 }
        })
    });
}

/// Two threads defer a drop by `put` while the list that holds both values ends.
fn left_by_two(put: fn(&Lender, NonNull<Head>)) {
    ends(2, move |ended| {
        let values = [value(ended), value(ended)];
        let lease = Lease::begin(lender()).expect("no other lease lasts");
        assert!(values.iter().all(|value| value.lend(&lease)));
        let others = values.map(|value| {
            thread::spawn(move || {
                let value = ManuallyDrop::new(value);
                // SAFETY: the reference is used afterwards only as its fate says.
                match unsafe { Head::drop_one(value.0.cast()) } {
                    Fate::Lent(lender, serial) => {
                        put(lender, value.0.cast());
                        if !lender.lasts(serial) {
                            lender.drop_left();
                        }
                    }
                    _ => Value::last(Own(value.0, PhantomData)),
                }
            })
        });
        drop(lease);
        others.into_iter().for_each(|other| other.join().expect("the thread does not panic"));
    });
}

#[test]
fn loom_of_two_references_that_are_left_at_once_none_is_lost() {
    // SAFETY: the reference is that of the calling thread, and is given up here.
    left_by_two(|lender, head| unsafe { lender.put(head) });
}

#[test]
#[should_panic(expected = "ends")]
fn loom_of_two_references_that_are_put_by_a_plain_store_one_is_lost() {
    left_by_two(|lender, head| {
        let first = lender.left.load(Ordering::Acquire);
        // SAFETY: the reference is counted, so the head is alive.
        unsafe { head.as_ref() }.next.store(first, Ordering::Relaxed);
        lender.left.store(head.as_ptr(), Ordering::Release);
    });
}

/// Two lists of different lenders are the first to pin a value, by `lend`, while its reference is dropped.
fn shown_by_two_lenders(lend: fn(&Counted<Value>, &Lease) -> bool) {
    ends_once(move |ended| {
        let mine = value(ended);
        let theirs = mine.clone();
        let show = move |value: Counted<Value>| {
            let lease = Lease::begin(lender()).expect("no other lease lasts");
            if !lend(&value, &lease) {
                return value.look();
            }
            // SAFETY: the value is pinned as long as `lease` lasts, and the reference is not dropped.
            let shown = ManuallyDrop::new(unsafe { value.uncounted() });
            drop(value);
            shown.look();
            drop(lease);
        };
        let other = thread::spawn(move || show(theirs));
        show(mine);
        other.join().expect("the thread does not panic");
    });
}

#[test]
fn loom_of_two_lenders_that_come_first_one_leases() {
    shown_by_two_lenders(Counted::lend);
}

#[test]
#[should_panic(expected = "it has ended")]
fn loom_a_lender_that_is_noted_without_a_look_ends_what_another_shows() {
    shown_by_two_lenders(|value, lease| {
        let head = &value.place().head;
        head.lender.store(ptr::from_ref(lease.lender).cast_mut(), Ordering::Release);
        head.lease_again(lease) || value.lend(lease)
    });
}

/// A reference that was deferred under one lease is deferred again if the next list holds its value by a clone.
#[test]
fn loom_what_was_left_is_left_again_while_the_next_list_shows_it() {
    ends_once(|ended| {
        let (lender, value) = (lender(), value(ended));
        let list = List::of(lender, &value);
        let again = list.shown().clone();
        let other = thread::spawn(move || drop(value));
        drop(list);
        let list = List::of(lender, &again);
        drop(again);
        list.shown().look();
        drop(list);
        other.join().expect("the thread does not panic");
    });
}
