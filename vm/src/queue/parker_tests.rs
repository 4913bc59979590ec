//! Loom models of a taker that parks beside an MPSC queue: the protocol of [`parker`](crate::sync::parker).

use loom::sync::Arc;
use loom::thread;

use crate::queue::mpsc::MpscQueue;
use crate::queue::node::{NodeBox, NodeList};
use crate::sync::parker::Parker;

type Shared = (MpscQueue<u32>, Parker);

/// A taker decides by `goes_to_bed` whether it may park, while a pusher pushes and wakes it. A taker that parked while its flag
/// stays set would never be woken.
fn never_missed(goes_to_bed: fn(&Shared) -> bool) {
    loom::model(move || {
        let shared: Arc<Shared> = Arc::new((MpscQueue::new(), Parker::new()));
        let pusher = {
            let shared = shared.clone();
            thread::spawn(move || {
                let mut chain = NodeList::new();
                chain.push(NodeBox::new(1));
                shared.0.push(&mut chain);
                shared.1.wake();
            })
        };
        let parks = goes_to_bed(&shared);
        pusher.join().expect("the pusher does not panic");
        let found = !shared.0.take().is_empty();
        assert!(found, "the push is there in the end");
        assert!(!(parks && shared.1.is_parked()), "it parked and was not woken");
    });
}

#[test]
fn loom_a_push_wakes_a_taker_that_is_about_to_park() {
    never_missed(|(inbox, parker)| {
        parker.prepare_park();
        inbox.is_surely_empty()
    });
}

#[test]
#[should_panic(expected = "was not woken")]
fn loom_a_taker_that_checks_before_it_announces_is_not_woken() {
    never_missed(|(inbox, parker)| {
        let empty = inbox.is_surely_empty();
        parker.prepare_park();
        empty
    });
}

#[test]
#[should_panic(expected = "was not woken")]
fn loom_a_taker_that_checks_by_a_plain_load_is_not_woken() {
    never_missed(|(inbox, parker)| {
        parker.prepare_park();
        inbox.is_empty()
    });
}
