use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// Counts its drops.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn counted() -> (Counted, Arc<AtomicUsize>) {
    let drops = Arc::new(AtomicUsize::new(0));
    (Counted(drops.clone()), drops)
}

fn run(mut f: InlineFn) -> Result<(), FnError> {
    f.call(&mut FnContext::new(&mut []).unwrap())
}

/// Closures with the same captures: one stored inline and one in a box by its size, and both as closures that callers may run.
fn all(
    counted: impl Fn() -> Counted,
    body: impl Fn(&Counted) -> Result<(), FnError> + Copy + Send + 'static,
) -> [InlineFn; 4] {
    let small = || {
        let held = counted();
        move |_: &mut FnContext<'_>| body(&held)
    };
    let large = || {
        let (held, padding) = (counted(), [1u8; 200]);
        move |_: &mut FnContext<'_>| {
            assert_eq!(padding, [1; 200]);
            body(&held)
        }
    };
    let (inline, boxed) = (InlineFn::new(small()), InlineFn::new(large()));
    let (helpable, boxed_helpable) = (InlineFn::helpable(small()), InlineFn::helpable(large()));
    assert!(!inline.is_boxed() && inline.heap_bytes() == 0 && !helpable.is_boxed());
    assert!(boxed.is_boxed() && boxed.heap_bytes() >= 200 && boxed_helpable.is_boxed());
    let all = [inline, boxed, helpable, boxed_helpable];
    assert_eq!(all.each_ref().map(InlineFn::is_helpable), [false, false, true, true]);
    all
}

#[test]
fn captures_up_to_the_limit_are_inline() {
    let fits = [7u8; INLINE_BYTES];
    let f = InlineFn::new(move |_| {
        assert_eq!(fits, [7; INLINE_BYTES]);
        Ok(())
    });
    assert!(!f.is_boxed());
    run(f).unwrap();
    let large = [7u8; INLINE_BYTES + 1];
    let f = InlineFn::new(move |_| {
        assert_eq!(large, [7; INLINE_BYTES + 1]);
        Ok(())
    });
    assert_eq!((f.is_boxed(), f.heap_bytes()), (true, INLINE_BYTES + 1));
    run(f).unwrap();
}

#[test]
fn a_closure_without_captures_is_inline() {
    let f = InlineFn::new(|context| {
        assert!(context.reads.is_empty());
        Err("refused".into())
    });
    assert!(!f.is_boxed());
    assert_eq!(run(f).unwrap_err().to_string(), "refused");
}

#[test]
fn a_called_closure_drops_its_captures_once() {
    let (first, drops) = counted();
    let again = || Counted(first.0.clone());
    for (called, f) in all(again, |_| Ok(())).into_iter().enumerate() {
        assert_eq!(drops.load(Ordering::Relaxed), called);
        run(f).unwrap();
        assert_eq!(drops.load(Ordering::Relaxed), called + 1);
    }
}

#[test]
fn an_uncalled_closure_drops_its_captures_once() {
    let (first, drops) = counted();
    let again = || Counted(first.0.clone());
    drop(all(again, |_| panic!("never called")));
    assert_eq!(drops.load(Ordering::Relaxed), 4);
}

#[test]
fn a_panicking_closure_drops_its_captures_once() {
    let (first, drops) = counted();
    let again = || Counted(first.0.clone());
    for f in all(again, |_| panic!("on purpose")) {
        assert!(catch_unwind(AssertUnwindSafe(|| run(f))).is_err());
    }
    assert_eq!(drops.load(Ordering::Relaxed), 4);
}

/// After a call, whatever its outcome, the `InlineFn` is still usable and holds nothing.
#[test]
fn a_closure_is_called_where_it_lies_and_once() {
    let mut nothing = FnContext::new(&mut []).unwrap();
    let (first, drops) = counted();
    let again = || Counted(first.0.clone());
    for mut f in all(again, |_| Ok(())) {
        f.call(&mut nothing).unwrap();
        f.call(&mut nothing).unwrap();
    }
    assert_eq!(drops.load(Ordering::Relaxed), 4);
    for mut f in all(again, |_| panic!("on purpose")) {
        assert!(catch_unwind(AssertUnwindSafe(|| f.call(&mut nothing))).is_err());
        f.call(&mut nothing).unwrap();
    }
    assert_eq!(drops.load(Ordering::Relaxed), 8);
}

/// No captures, one word and more words are moved in different ways.
#[test]
fn captures_of_any_number_of_words_are_taken_over() {
    fn taken_over<const BYTES: usize>() {
        let captures: [u8; BYTES] = std::array::from_fn(|byte| byte as u8 + 1);
        let mut from = InlineFn::new(move |_| {
            assert!(captures.iter().enumerate().all(|(byte, found)| *found == byte as u8 + 1), "{captures:?}");
            Err("called".into())
        });
        let mut to = InlineFn::default();
        to.take_from(&mut from);
        assert_eq!(run(to).unwrap_err().to_string(), "called");
        run(from).unwrap();
    }
    taken_over::<0>();
    taken_over::<1>();
    taken_over::<8>();
    taken_over::<9>();
    taken_over::<16>();
    taken_over::<INLINE_BYTES>();
}

#[test]
fn alignment_is_kept() {
    #[repr(align(8))]
    #[derive(Copy, Clone)]
    struct Wide(u8);

    #[repr(align(16))]
    #[derive(Copy, Clone)]
    struct Wider(u8);

    fn address<T>(value: &T) -> usize {
        std::ptr::from_ref(value).addr()
    }

    let (wide, wider) = (Wide(1), Wider(2));
    let inline = InlineFn::new(move |_| {
        let wide = std::hint::black_box(wide);
        assert_eq!((address(&wide) % 8, wide.0), (0, 1));
        Ok(())
    });
    let boxed = InlineFn::new(move |_| {
        let wider = std::hint::black_box(wider);
        assert_eq!((address(&wider) % 16, wider.0), (0, 2));
        Ok(())
    });
    assert!(!inline.is_boxed() && boxed.is_boxed());
    run(inline).unwrap();
    run(boxed).unwrap();
}

#[test]
fn a_closure_can_be_moved_and_called_on_another_thread() {
    let (first, drops) = counted();
    let text = String::from("captured");
    let mut queue = Vec::new();
    for _ in 0..3 {
        let (counted, text) = (Counted(first.0.clone()), text.clone());
        queue.push(InlineFn::new(move |_| {
            let _keep = &counted;
            assert_eq!(text, "captured");
            Ok(())
        }));
    }
    let ran = std::thread::spawn(move || queue.into_iter().rev().try_for_each(run).is_ok());
    assert!(ran.join().unwrap());
    assert_eq!(drops.load(Ordering::Relaxed), 3);
}

#[test]
fn captures_are_dropped_before_call_returns() {
    let shared = Arc::new(5);
    let captured = shared.clone();
    let f = InlineFn::new(move |_| {
        assert_eq!(*captured, 5);
        Err("failed".into())
    });
    assert!(run(f).is_err());
    assert_eq!(Arc::strong_count(&shared), 1);
}

#[test]
fn a_closure_that_is_taken_over_is_whole_and_the_one_before_is_dropped() {
    let (taken, dropped) = (Arc::new(5u32), Arc::new(()));
    // The captures use two words and part of a third.
    let (held, number, byte) = (taken.clone(), 7u64, 3u8);
    let mut from = InlineFn::new(move |_| {
        assert_eq!((*held, number, byte), (5, 7, 3));
        Ok(())
    });
    let before = dropped.clone();
    let mut to = InlineFn::new(move |_| {
        let _ = &before;
        Ok(())
    });
    to.take_from(&mut from);
    assert_eq!(Arc::strong_count(&dropped), 1);
    drop(from);
    run(std::mem::take(&mut to)).unwrap();
    assert_eq!(Arc::strong_count(&taken), 1);
    run(to).unwrap();
}

#[test]
fn a_boxed_closure_is_taken_over_twice_and_runs_on_another_thread() {
    let taken = Arc::new(());
    let (held, large) = (taken.clone(), [9u8; 60]);
    let mut from = InlineFn::new(move |_| {
        let _ = &held;
        assert_eq!(large[59], 9);
        Ok(())
    });
    assert!(from.is_boxed());
    let (mut over, mut last) = (InlineFn::default(), InlineFn::new(|_| Ok(())));
    over.take_from(&mut from);
    last.take_from(&mut over);
    std::thread::spawn(move || run(last).unwrap()).join().unwrap();
    assert_eq!(Arc::strong_count(&taken), 1);
    run(from).unwrap();
    run(over).unwrap();
}

#[test]
fn captures_that_panic_when_dropped_are_dropped_once() {
    struct Panics(Arc<()>);
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("on purpose, with {} alive", Arc::strong_count(&self.0));
        }
    }
    let (counted, kept) = (Arc::new(()), Arc::new(()));
    let panics = |counted: &Arc<()>| {
        let panics = Panics(counted.clone());
        InlineFn::new(move |_| {
            let _ = &panics;
            Ok(())
        })
    };
    let mut cleared = panics(&counted);
    assert!(catch_unwind(AssertUnwindSafe(|| cleared.clear())).is_err());
    run(cleared).unwrap();
    let (mut to, held) = (panics(&counted), kept.clone());
    let mut from = InlineFn::new(move |_| {
        let _ = &held;
        Ok(())
    });
    assert!(catch_unwind(AssertUnwindSafe(|| to.take_from(&mut from))).is_err());
    run(to).unwrap();
    assert_eq!((Arc::strong_count(&counted), Arc::strong_count(&kept)), (1, 2));
    run(from).unwrap();
    assert_eq!(Arc::strong_count(&kept), 1);
}
