//! Records and waits of the pipeline of batches, as the driver that stands in for NVIDIA's counts its calls: streamvm makes no
//! more of them than the code by hand, and cudarc's automatic tracking makes more.

#![cfg(target_os = "linux")]

use streamvm_gpu::benches::Sizes;
use streamvm_gpu::benches::calls::{Calls, Counted};
use streamvm_standin::Standin;

const SIZES: Sizes = Sizes { batches: 24, ..Sizes::QUICK };

#[test]
fn streamvm_records_and_waits_no_more_than_the_code_by_hand() {
    let driver = Standin::load("delay=5");
    let counted = Counted::over(&driver, SIZES).expect("all of them run");
    let Counted { streamvm, by_hand, cudarc } = counted;
    // A record after each copy and product; products wait for the copy before them, and the copy back for its product.
    assert_eq!(streamvm, Calls { records: 3 * 24, waits: 2 * 24 }, "{counted:?}");
    let no_more = |one: Calls, other: Calls| one.records <= other.records && one.waits <= other.waits;
    assert!(no_more(streamvm, by_hand), "{counted:?}");
    assert!(by_hand.records < cudarc.records && by_hand.waits < cudarc.waits, "{counted:?}");
}
