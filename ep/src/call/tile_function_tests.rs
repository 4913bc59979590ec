//! Tiles of every kind: long and short, in place, of one element for all.

use super::*;

/// Computes `a - 2 b + c`.
fn function() -> impl TileFunction {
    OfSlices::new(|[a, b, c]: [&[i32]; 3], y: &mut [i32]| {
        assert!(y.iter().all(|it| *it == 0), "the results are 0 before");
        assert!([a, b, c].iter().all(|it| it.len() == y.len()));
        for (at, y) in y.iter_mut().enumerate() {
            *y = a[at] - 2 * b[at] + c[at];
        }
    })
}

#[test]
fn results_are_those_of_the_elements_whatever_lies_where() {
    for count in [0, 1, 3, TILE - 1, TILE, TILE + 1, 2 * TILE + 5] {
        let numbers = |seed: i32| -> Vec<i32> { (0..count as i32).map(|it| it * seed % 1009).collect() };
        let (a, b, c) = (numbers(7), numbers(31), numbers(97));
        let single = [5i32];
        let first = |of: &[i32]| of.as_ptr().cast::<u8>();
        let expected = |of: &dyn Fn(usize) -> i32| (0..count).map(of).collect::<Vec<i32>>();

        let mut apart = vec![-1; count];
        // SAFETY: there are so many elements of each, and the results are apart from them.
        unsafe { function().compute(count, apart.as_mut_ptr().cast(), [first(&a), first(&b), first(&c)], 0) };
        assert_eq!(apart, expected(&|at| a[at] - 2 * b[at] + c[at]), "{count}");

        // SAFETY: as above; the second input is one element for all.
        unsafe { function().compute(count, apart.as_mut_ptr().cast(), [first(&a), first(&single), first(&c)], 0b010) };
        assert_eq!(apart, expected(&|at| a[at] - 10 + c[at]), "{count}");

        let mut over = a.clone();
        let results = over.as_mut_ptr().cast::<u8>();
        // SAFETY: as above; the first and the third input are exactly the results.
        unsafe { function().compute(count, results, [results.cast_const(), first(&b), results.cast_const()], 0) };
        assert_eq!(over, expected(&|at| 2 * a[at] - 2 * b[at]), "{count}");
    }
}

#[test]
fn results_may_lie_in_memory_that_was_never_written() {
    let (a, mut room) = ([1i32, 2, 3], [MaybeUninit::<i32>::uninit(); 3]);
    let negated = OfSlices::new(|[a]: [&[i32]; 1], y: &mut [i32]| y.iter_mut().zip(a).for_each(|(y, a)| *y -= a));
    let nothing = std::ptr::null();
    // SAFETY: there are three elements of each, and the results may be written.
    unsafe { negated.compute(3, room.as_mut_ptr().cast(), [a.as_ptr().cast(), nothing, nothing], 0) };
    // SAFETY: they were written.
    assert_eq!(room.map(|it| unsafe { it.assume_init() }), [-1, -2, -3]);
}
