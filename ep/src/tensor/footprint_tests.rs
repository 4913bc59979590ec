//! Tests of footprints against sets of units that are enumerated one by one.
#![allow(clippy::print_stdout, reason = "says what was drawn, with --nocapture")]

use std::cell::Cell;
use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::tensor::shape::Shape;

/// The units of a view, enumerated one by one.
fn units(layout: &Layout) -> BTreeSet<usize> {
    let mut found = BTreeSet::from([layout.offset()]);
    for (&len, &stride) in layout.shape().dims().iter().zip(layout.strides()) {
        found = found.iter().flat_map(|unit| (0..len).map(move |index| unit + index * stride)).collect();
    }
    found
}

fn view(dims: &[usize], strides: &[usize], offset: usize) -> Layout {
    Layout::with_strides(Shape::new(dims).expect("a shape"), strides, offset).expect("a layout")
}

#[test]
fn columns_of_one_matrix_are_apart() {
    let matrix = Layout::contiguous(Shape::new(&[1797, 10]).expect("a shape"));
    let columns = |range| Footprint::of(&matrix.slice(1, range).expect("columns"));
    assert!(!columns(0..1).overlaps(&columns(1..2)));
    assert!(!columns(0..5).overlaps(&columns(5..10)));
    assert!(columns(0..6).overlaps(&columns(5..10)));
    assert!(columns(2..3).covers(&columns(2..3)) && !columns(2..3).covers(&columns(3..4)));
    let transposed = matrix.permute(&[1, 0]).expect("a permutation");
    assert_eq!(Footprint::of(&transposed), Footprint::of(&matrix));
    assert_eq!(Footprint::of(&transposed.slice(0, 2..4).expect("rows")), columns(2..4));
}

#[test]
fn rows_are_dense() {
    let matrix = Layout::contiguous(Shape::new(&[4, 3, 5]).expect("a shape"));
    let rows = Footprint::of(&matrix.slice(0, 1..3).expect("rows"));
    assert_eq!((rows.span(), rows.axes.len()), (15..45, 0));
    assert!(Footprint::all().covers(&rows) && Footprint::all().overlaps(&rows) && !rows.covers(&Footprint::all()));
}

#[test]
fn a_view_without_elements_meets_nothing() {
    let nothing = Footprint::of(&view(&[0, 3], &[3, 1], 5));
    assert!(nothing.is_empty() && !nothing.overlaps(&Footprint::all()) && !Footprint::all().overlaps(&nothing));
    assert!(Footprint::all().covers(&nothing));
}

#[test]
fn repeated_elements_count_once() {
    let repeated = Footprint::of(&view(&[7, 3], &[0, 1], 2));
    assert_eq!((repeated.span(), repeated.axes.len()), (2..5, 0));
}

#[test]
fn bytes_of_strided_elements_are_apart_too() {
    let column = |at| Footprint::scaled(&view(&[100], &[2], at), 4096, 4);
    assert!(!column(0).overlaps(&column(1)) && column(0).overlaps(&column(2)));
    let dense = Footprint::scaled(&view(&[4], &[1], 3), 4096, 4);
    assert_eq!(dense.span(), 4108..4124);
    assert!(dense.overlaps(&column(1)));
    // The start is two bytes into an element of the other view.
    let shifted = Footprint::scaled(&view(&[100], &[2], 0), 4098, 4);
    assert!(shifted.overlaps(&column(0)) && shifted.overlaps(&column(1)));
}

/// An undecided pair counts as overlapping, so the limit on the search never hides an overlap.
#[test]
fn what_takes_too_long_counts_as_overlapping() {
    let strides: Vec<usize> = (0..4).map(|index| 101 + 2 * index).collect();
    let (one, other) = (view(&[3; 4], &strides, 0), view(&[3; 4], &strides, 7));
    assert!(units(&one).is_disjoint(&units(&other)));
    let (one, other) = (Footprint::of(&one), Footprint::of(&other));
    assert!(!one.overlaps(&other) && !one.overlaps_within(&other, MOST_STEPS));
    assert!(one.overlaps_within(&other, 2), "two tries do not decide it");
}

/// The number of values that are tried for two views.
fn tries(one: &Layout, other: &Layout) -> u32 {
    let (one, other) = (Footprint::of(one), Footprint::of(other));
    let spans_meet = one.start < other.end && other.start < one.end && !one.is_empty() && !other.is_empty();
    if !spans_meet || (one.axes.is_empty() && other.axes.is_empty()) {
        return 0;
    }
    let decided = one.overlaps(&other);
    (0..=MOST_STEPS)
        .find(|steps| one.overlaps_within(&other, *steps) == decided && (decided || *steps > 0))
        .unwrap_or(u32::MAX)
}

#[test]
fn slices_of_one_tensor_need_few_tries() {
    // In one view the outer axis is merged with the inner one, in the other it is not.
    let tensor = Layout::contiguous(Shape::new(&[5000, 3, 4]).expect("a shape"));
    let cut = |axis_1: Range<usize>, axis_2: Range<usize>| {
        tensor.slice(1, axis_1).and_then(|part| part.slice(2, axis_2)).expect("a slice")
    };
    let (one, other) = (cut(0..2, 3..4), cut(0..3, 0..3));
    assert!(!Footprint::of(&one).overlaps(&Footprint::of(&other)), "{} tries", tries(&one, &other));
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |most: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % most
    };
    let mut most = 0;
    for _ in 0..20_000 {
        let rank = 2 + below(7);
        let dims: Vec<usize> = (0..rank).map(|_| 1 + below(6)).collect();
        let tensor = Layout::contiguous(Shape::new(&dims).expect("a shape"));
        let mut part = || {
            (0..rank).fold(tensor, |layout, axis| {
                let from = below(dims[axis]);
                layout.slice(axis, from..from + 1 + below(dims[axis] - from)).expect("a slice")
            })
        };
        most = most.max(tries(&part(), &part()));
    }
    assert!(most < 20, "{most} tries");
}

fn layouts() -> impl Strategy<Value = (Layout, Layout)> {
    // Small strides and lengths, so that about half of the pairs overlap.
    let one = (prop::collection::vec((0..5_usize, 0..12_usize), 0..4), 0..40_usize);
    let made = |(axes, offset): (Vec<(usize, usize)>, usize)| {
        let (dims, strides): (Vec<usize>, Vec<usize>) = axes.into_iter().unzip();
        view(&dims, &strides, offset)
    };
    (one.clone().prop_map(made), one.prop_map(made))
}

/// Views as programs make them: slices, permutations and steps of one contiguous tensor.
fn views_of_one() -> impl Strategy<Value = (Layout, Layout)> {
    let ranges = prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 3);
    let dims = prop::collection::vec(1..6_usize, 3);
    (dims, ranges.clone(), ranges, any::<bool>()).prop_map(|(dims, one, other, turned)| {
        let whole = Layout::contiguous(Shape::new(&dims).expect("a shape"));
        let part = |ranges: Vec<(prop::sample::Index, prop::sample::Index)>| {
            ranges.iter().enumerate().fold(whole, |layout, (axis, (from, len))| {
                let from = from.index(dims[axis]);
                layout.slice(axis, from..from + 1 + len.index(dims[axis] - from)).expect("a slice")
            })
        };
        let other = part(other);
        (part(one), if turned { other.permute(&[2, 0, 1]).expect("a permutation") } else { other })
    })
}

#[test]
fn footprints_meet_as_their_sets_do() {
    let config = Config { cases: 2000, failure_persistence: None, ..Config::default() };
    let drawn = (prop_oneof![layouts(), views_of_one()], 1..4_usize);
    let [meeting, covering, bytes_meeting] = [const { Cell::new(0) }; 3];
    let count = |counter: &Cell<u32>, counts: bool| counter.set(counter.get() + u32::from(counts));
    let result = TestRunner::new(config).run(&drawn, |((a, b), size)| {
        let (mine, theirs) = (units(&a), units(&b));
        let (one, other) = (Footprint::of(&a), Footprint::of(&b));
        let meet = !mine.is_disjoint(&theirs);
        prop_assert_eq!(one.overlaps(&other), meet, "{:?} and {:?}", a, b);
        prop_assert_eq!(other.overlaps(&one), meet);
        prop_assert!(one.is_empty() || (one.overlaps(&Footprint::all()) && Footprint::all().overlaps(&one)));
        if one.covers(&other) {
            prop_assert!(theirs.is_subset(&mine), "{:?} covers {:?}", a, b);
        }
        if one == other {
            prop_assert_eq!(&mine, &theirs);
        }
        count(&meeting, meet);
        count(&covering, one.covers(&other) && !theirs.is_empty());
        let bytes = |units: &BTreeSet<usize>, base: usize| -> BTreeSet<usize> {
            units.iter().flat_map(|unit| (0..size).map(move |byte| base + unit * size + byte)).collect()
        };
        let (mine, theirs) = (bytes(&mine, 100), bytes(&theirs, 101));
        let (one, other) = (Footprint::scaled(&a, 100, size), Footprint::scaled(&b, 101, size));
        let meet = !mine.is_disjoint(&theirs);
        prop_assert_eq!(one.overlaps(&other), meet, "bytes of {:?} and {:?}", a, b);
        count(&bytes_meeting, meet);
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    let [meeting, covering, bytes_meeting] = [meeting, covering, bytes_meeting].map(Cell::into_inner);
    println!("2000 pairs of views: {meeting} meet, {covering} of them cover the other, {bytes_meeting} meet in bytes");
    assert!((250..1750).contains(&meeting) && covering > 20, "too few of one kind were drawn: {meeting}, {covering}");
}
