//! The planner of memory on public problems, on random ones, and on a large one.

mod data;
mod generated;

use std::fs;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use streamvm_program::memory::{Budget, Buffer, Ended, Misplaced, Table, check, lower_bound, plan};

/// A public problem, or nothing where its file is not beside the checkout.
fn public(name: &str) -> Option<Vec<Buffer>> {
    let text = fs::read_to_string(data::file(&format!("planner/{name}"))?).unwrap();
    Some(Table::read(&text).unwrap_or_else(|error| panic!("{name}:{error}")).buffers)
}

#[test]
fn the_challenging_problems_fit_into_their_capacity() {
    for name in ["A", "B", "C", "D", "E", "F"] {
        let Some(buffers) = public(&format!("{name}.1048576.csv")) else { continue };
        let plan = plan(&buffers, Some(1 << 20), &Budget::steps(1_000_000)).unwrap();
        assert_eq!(check(&buffers, &plan.offsets), Ok(plan.peak), "{name}");
        assert!(plan.peak <= 1 << 20, "{name}: {} after {} steps", plan.peak, plan.steps);
    }
}

#[test]
fn real_networks_are_planned_at_their_lower_bound() {
    for name in ["resnet50.csv", "G_1.csv"] {
        let Some(buffers) = public(name) else { continue };
        let plan = plan(&buffers, None, &Budget::steps(100_000)).unwrap();
        assert_eq!(check(&buffers, &plan.offsets), Ok(plan.peak), "{name}");
        assert!(plan.peak * 1000 <= plan.lower_bound * 1001, "{name}: {} of {}", plan.peak, plan.lower_bound);
    }
}

/// A quadratic pass with a large constant, or a search without a bound, would take minutes here.
#[test]
fn many_buffers_are_planned_within_the_time() {
    let buffers = generated::many_buffers(28_000);
    let begin = Instant::now();
    let plan = plan(&buffers, None, &Budget::time(Duration::from_millis(100))).unwrap();
    let took = begin.elapsed();
    assert_eq!(check(&buffers, &plan.offsets), Ok(plan.peak));
    assert!(plan.peak * 100 <= plan.lower_bound * 105, "{} of {}", plan.peak, plan.lower_bound);
    // A quiet machine takes less than a second; tests share theirs.
    assert!(took < Duration::from_secs(20), "{took:?}");
}

#[test]
fn a_search_through_thousands_of_buffers_does_not_overflow_the_stack() {
    let buffers: Vec<Buffer> = (0..5000).map(|index| Buffer::new(index, index + 3, 1 + index * 7 % 13)).collect();
    let plan = plan(&buffers, None, &Budget::steps(30_000)).unwrap();
    assert_eq!(check(&buffers, &plan.offsets), Ok(plan.peak));
    assert!(plan.is_optimal() || plan.steps == 30_000, "{} steps", plan.steps);
}

/// More buffers than the search accepts, and as many as first fit accepts or more: a repair uses what is left.
#[test]
fn a_budget_is_used_where_the_plan_is_not_proven_best() {
    for (count, steps) in [(6_000, 26_000), (31_000, 40)] {
        let buffers = generated::long_lives(count, 1);
        let few = plan(&buffers, None, &Budget::steps(0)).unwrap();
        let more = plan(&buffers, None, &Budget::steps(steps)).unwrap();
        assert_eq!(check(&buffers, &more.offsets), Ok(more.peak), "{count} buffers");
        assert_eq!(
            (few.ended, more.ended, more.steps),
            (Ended::BudgetUsed, Ended::BudgetUsed, steps),
            "{count} buffers"
        );
        assert!(count > 30_000 || more.peak < few.peak, "{count} buffers: {} of {}", more.peak, few.peak);
        let again = plan(&buffers, None, &Budget { steps, time: Some(Duration::from_secs(3600)) }).unwrap();
        assert_eq!(again, more, "{count} buffers");
    }
}

/// First fit ends 3 percent above the lower bound.
#[test]
fn a_repair_halves_what_first_fit_leaves_above_the_lower_bound() {
    let buffers = generated::long_lives(2_000, 1);
    let above = |steps: u64| {
        let plan = plan(&buffers, None, &Budget::steps(steps)).unwrap();
        assert_eq!(check(&buffers, &plan.offsets), Ok(plan.peak));
        plan.peak - plan.lower_bound
    };
    let (first, repaired) = (above(0), above(30_000));
    assert!(repaired * 2 <= first, "{repaired} of {first}");
}

#[test]
fn packings_without_gaps_are_found() {
    for seed in 0..10 {
        let buffers = generated::packing(100, 1 << 20, 1_000, seed);
        let plan = plan(&buffers, Some(1 << 20), &Budget::steps(50_000)).unwrap();
        assert_eq!(check(&buffers, &plan.offsets), Ok(plan.peak), "seed {seed}");
        assert_eq!((plan.peak, plan.ended), (1 << 20, Ended::ProvenBest), "seed {seed} after {} steps", plan.steps);
    }
}

#[test]
fn a_plan_says_why_the_planner_stopped() {
    let buffers = generated::packing(100, 1 << 20, 1_000, 3);
    let ended = |capacity: u64, steps: u64| plan(&buffers, Some(capacity), &Budget::steps(steps)).unwrap().ended;
    assert_eq!(ended(1 << 20, 10).to_string(), "budget used");
    assert_eq!(ended((1 << 20) - 1, 10).to_string(), "nothing fits");
    assert_eq!(ended(2 << 20, 10).to_string(), "fits");
    assert_eq!(ended(1 << 20, 100_000).to_string(), "proven best");
}

#[test]
fn a_small_problem_is_solved_and_proven() {
    // First fit does not reach the lowest peak, which is above the lower bound, so the search has to find it and to prove it.
    let buffers = [(0, 2, 3), (0, 4, 1), (2, 6, 3), (4, 8, 1), (6, 8, 3), (1, 3, 2), (3, 7, 1)];
    let buffers = buffers.map(|(lower, upper, size)| Buffer::new(lower, upper, size));
    let plan = plan(&buffers, None, &Budget::steps(100_000)).unwrap();
    assert!(plan.is_optimal() && plan.steps < 100_000, "{plan:?}");
    assert_eq!(plan.peak, optimum(&buffers));
}

#[test]
fn a_capacity_below_the_lower_bound_ends_at_once() {
    let buffers = [Buffer::new(0, 2, 3), Buffer::new(1, 4, 4)];
    let plan = plan(&buffers, Some(6), &Budget::time(Duration::from_secs(60))).unwrap();
    assert_eq!((plan.peak, plan.steps, plan.ended), (7, 0, Ended::ProvenBest));
}

#[test]
fn what_cannot_be_planned_is_refused() {
    let refused =
        |buffer: Buffer| plan(&[Buffer::new(0, 1, 1), buffer], None, &Budget::steps(1)).unwrap_err().to_string();
    assert_eq!(refused(Buffer::new(4, 3, 1)), "buffer 1 lives from 4 to 3, which is earlier: swap the two times");
    assert_eq!(
        refused(Buffer { alignment: 0, ..Buffer::new(0, 1, 1) }),
        "buffer 1 has alignment 0: the least is 1, for any offset"
    );
    assert!(
        refused(Buffer::new(0, 1, u64::MAX))
            .starts_with("the sizes and alignments of all buffers sum to 18446744073709551618 bytes")
    );
    let nothing = plan(&[], None, &Budget::steps(1)).unwrap();
    assert_eq!((nothing.peak, nothing.is_optimal()), (0, true));
}

/// The lowest peak, by trying every order: each solution that is pushed down is first fit in some order.
fn optimum(buffers: &[Buffer]) -> u64 {
    fn place(buffers: &[Buffer], left: &[usize], placed: &mut Vec<(usize, u64)>, best: &mut u64) {
        if left.is_empty() {
            let end = |&(index, offset): &(usize, u64)| offset + buffers[index].size;
            *best = (*best).min(placed.iter().map(end).max().unwrap_or(0));
            return;
        }
        for &index in left {
            let buffer = &buffers[index];
            let alive = |&&(other, _): &&(usize, u64)| {
                buffer.lower < buffers[other].upper && buffers[other].lower < buffer.upper
            };
            let mut offset = 0;
            // Pushed down means on top of what is placed, so no gap below has to be looked for: another order fills it.
            for &(other, at) in placed.iter().filter(alive) {
                offset = offset.max((at + buffers[other].size).next_multiple_of(buffer.alignment));
            }
            if offset + buffer.size >= *best {
                continue;
            }
            placed.push((index, offset));
            let left: Vec<usize> = left.iter().copied().filter(|&other| other != index).collect();
            place(buffers, &left, placed, best);
            placed.pop();
        }
    }
    let takes_memory = |&index: &usize| buffers[index].size > 0 && buffers[index].lower < buffers[index].upper;
    let all: Vec<usize> = (0..buffers.len()).filter(takes_memory).collect();
    if all.is_empty() {
        return 0;
    }
    let mut best = u64::MAX;
    place(buffers, &all, &mut Vec::new(), &mut best);
    best
}

fn buffers(most: usize, span: u64, sizes: u64, alignments: bool) -> impl Strategy<Value = Vec<Buffer>> {
    let alignment =
        if alignments { prop_oneof![Just(1_u64), Just(2), Just(4), Just(3)].boxed() } else { Just(1).boxed() };
    let buffer = (0..span, 0..span, 0..=sizes, alignment).prop_map(|(a, b, size, alignment)| Buffer {
        alignment,
        ..Buffer::new(a.min(b), a.max(b) + u64::from(a > 2), size)
    });
    prop::collection::vec(buffer, 0..most)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn random_problems_are_planned_without_overlap(buffers in buffers(60, 24, 20, true), steps in 0_u64..3000, capacity in prop::option::of(1_u64..200)) {
        let made = plan(&buffers, capacity, &Budget::steps(steps)).unwrap();
        prop_assert_eq!(check(&buffers, &made.offsets), Ok(made.peak));
        prop_assert_eq!(made.lower_bound, lower_bound(&buffers));
        prop_assert!(made.peak >= made.lower_bound && made.steps <= steps);
        // The same again, and the steps decide, not the clock.
        prop_assert_eq!(plan(&buffers, capacity, &Budget { steps, time: Some(Duration::from_secs(3600)) }).unwrap(), made);
    }

    #[test]
    fn small_problems_are_planned_as_well_as_possible(buffers in buffers(8, 8, 9, true)) {
        let made = plan(&buffers, None, &Budget::steps(1_000_000)).unwrap();
        prop_assert_eq!(check(&buffers, &made.offsets), Ok(made.peak));
        prop_assert!(made.is_optimal(), "after {} steps", made.steps);
        prop_assert_eq!(made.peak, optimum(&buffers));
    }

    /// A reader of files never panics, and what it accepts can be planned or is refused.
    #[test]
    fn noise_is_no_panic(lines in prop::collection::vec("[0-9,a-zäé\\- \t\"]{0,12}|\\PC{0,20}|[0-9]{1,20},[0-9]{1,20},[0-9]{1,20}", 0..6), has_header: bool) {
        let header = if has_header { "lower,upper,size\n" } else { "" };
        if let Ok(table) = Table::read(&(header.to_owned() + &lines.join("\n")))
            && let Ok(made) = plan(&table.buffers, None, &Budget::steps(100))
        {
            prop_assert_eq!(check(&table.buffers, &made.offsets), Ok(made.peak));
        }
    }

    /// The tests above would notice a planner that lets two buffers share one byte.
    #[test]
    fn a_plan_that_overlaps_by_one_byte_is_found(buffers in buffers(40, 12, 20, false), pick in any::<prop::sample::Index>()) {
        let made = plan(&buffers, None, &Budget::steps(1000)).unwrap();
        // Buffers that lie on another one, which is alive at the same time.
        let alive = |a: &Buffer, b: &Buffer| a.size > 0 && b.size > 0 && a.lower < b.upper && b.lower < a.upper && a.lower < a.upper && b.lower < b.upper;
        let lies_on = |upper: usize| (0..buffers.len()).any(|lower| alive(&buffers[upper], &buffers[lower]) && made.offsets[lower] + buffers[lower].size == made.offsets[upper]);
        let supported: Vec<usize> = (0..buffers.len()).filter(|&index| lies_on(index)).collect();
        prop_assume!(!supported.is_empty());
        let mut offsets = made.offsets.clone();
        offsets[supported[pick.index(supported.len())]] -= 1;
        let found = matches!(check(&buffers, &offsets), Err(Misplaced::Overlap { .. }));
        prop_assert!(found);
    }
}
