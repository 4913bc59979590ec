//! The twelve patterns: which outputs of the row before a task reads.
//!
//! A row has the columns from 0 on: all `width` of them, but for the first rows of [`Pattern::Dom`] and [`Pattern::Tree`], which grow. Where
//! inputs differ from row to row, they repeat after [`Pattern::period`] rows. `native/taskbench.h` has the same definitions in C.

/// The most columns of a graph.
pub const MOST_COLUMNS: u32 = 64;

/// How many columns [`Pattern::Nearest`], [`Pattern::Spread`] and the random patterns choose from: the radix of the paper's figures.
const RADIX: u32 = 5;

/// After how many rows the patterns repeat whose inputs move or are random.
const RANDOM_PERIOD: u32 = 4;

/// Which outputs of the row before the task of a column reads.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// None: all tasks are independent.
    Trivial,
    /// That of its own column.
    NoComm,
    /// Those of its own column and of the columns beside it.
    Stencil1d,
    /// The same on a ring: the first column is beside the last.
    Stencil1dPeriodic,
    /// Those of its own column and of the column before: a sweep, as in discrete ordinates methods. Row `n` has `n + 1` columns until all
    /// columns are there.
    Dom,
    /// That of column `c / 2`. Rows double until all columns are there.
    Tree,
    /// Those of its own column and of the columns at a distance of a power of two, the next power each row: the butterfly.
    Fft,
    /// All.
    AllToAll,
    /// Those of the five nearest columns, its own among them.
    Nearest,
    /// Those of five columns spread evenly over the row; all but its own move on by one each row.
    Spread,
    /// Each of the five nearest columns with a probability of one half.
    RandomNearest,
    /// Five columns drawn from the whole row; those drawn twice count once.
    RandomSpread,
}

impl Pattern {
    /// All patterns.
    pub const ALL: [Pattern; 12] = [
        Pattern::Trivial,
        Pattern::NoComm,
        Pattern::Stencil1d,
        Pattern::Stencil1dPeriodic,
        Pattern::Dom,
        Pattern::Tree,
        Pattern::Fft,
        Pattern::AllToAll,
        Pattern::Nearest,
        Pattern::Spread,
        Pattern::RandomNearest,
        Pattern::RandomSpread,
    ];

    /// Its name in Task Bench, in reports, and in the protocol of the drivers.
    pub fn name(self) -> &'static str {
        match self {
            Pattern::Trivial => "trivial",
            Pattern::NoComm => "no_comm",
            Pattern::Stencil1d => "stencil_1d",
            Pattern::Stencil1dPeriodic => "stencil_1d_periodic",
            Pattern::Dom => "dom",
            Pattern::Tree => "tree",
            Pattern::Fft => "fft",
            Pattern::AllToAll => "all_to_all",
            Pattern::Nearest => "nearest",
            Pattern::Spread => "spread",
            Pattern::RandomNearest => "random_nearest",
            Pattern::RandomSpread => "random_spread",
        }
    }

    /// The number of tasks in the row of a step.
    pub fn row_width(self, width: u32, step: u32) -> u32 {
        match self {
            Pattern::Dom => width.min(step.saturating_add(1)),
            Pattern::Tree => width.min(1 << step.min(31)),
            _ => width,
        }
    }

    /// After how many rows the inputs of a column repeat.
    pub fn period(self, width: u32) -> u32 {
        match self {
            Pattern::Fft => width.next_power_of_two().trailing_zeros().max(1),
            Pattern::Spread | Pattern::RandomNearest | Pattern::RandomSpread => RANDOM_PERIOD,
            _ => 1,
        }
    }

    /// The columns of the row before whose outputs the task of `column` reads, ascending, where that row is complete. `set` is the number of
    /// the row before within the period.
    pub fn inputs(self, width: u32, set: u32, column: u32) -> Vec<u32> {
        let near = |distance: u32| column.saturating_sub(distance)..(column + distance + 1).min(width);
        let radix = RADIX.min(width);
        let mut inputs: Vec<u32> = match self {
            Pattern::Trivial => Vec::new(),
            Pattern::NoComm => vec![column],
            Pattern::Stencil1d => near(1).collect(),
            Pattern::Stencil1dPeriodic => [width - 1, 0, 1].map(|offset| (column + offset) % width).to_vec(),
            Pattern::Dom => (column.saturating_sub(1)..=column).collect(),
            Pattern::Tree => vec![column / 2],
            Pattern::Fft => near(1 << set).filter(|other| [0, 1 << set].contains(&other.abs_diff(column))).collect(),
            Pattern::AllToAll => (0..width).collect(),
            Pattern::Nearest => near(RADIX / 2).collect(),
            Pattern::Spread => {
                let moved = |k: u32| if k == 0 { 0 } else { set };
                (0..radix).map(|k| (column + k * width / radix + moved(k)) % width).collect()
            }
            Pattern::RandomNearest => {
                near(RADIX / 2).filter(|other| mixed(set, column, *other).leading_zeros() == 0).collect()
            }
            Pattern::RandomSpread => {
                (0..radix).map(|k| ((mixed(set, column, k) >> 32) % u64::from(width)) as u32).collect()
            }
        };
        inputs.sort_unstable();
        inputs.dedup();
        inputs
    }
}

/// Random bits that are the same in every language: the end of splitmix64 (Steele, Lea and Flood 2014).
fn mixed(set: u32, column: u32, other: u32) -> u64 {
    let x = (u64::from(set) << 32 | u64::from(column) << 16 | u64::from(other)).wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ x >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The inputs of all columns of a row, as `--deps` of a driver prints them, but in one line.
    fn row(pattern: Pattern, width: u32, set: u32) -> String {
        let column = |column| {
            let inputs = pattern.inputs(width, set, column);
            inputs.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
        };
        (0..width).map(column).collect::<Vec<_>>().join(" | ")
    }

    #[test]
    fn inputs_are_those_of_the_lists_written_by_hand() {
        use Pattern::{AllToAll, Dom, Fft, Nearest, NoComm, Spread, Stencil1d, Stencil1dPeriodic, Tree, Trivial};
        for (pattern, width, set, expected) in [
            (Trivial, 3, 0, " |  | "),
            (NoComm, 3, 0, "0 | 1 | 2"),
            (Stencil1d, 1, 0, "0"),
            (Stencil1d, 4, 0, "0 1 | 0 1 2 | 1 2 3 | 2 3"),
            (Stencil1dPeriodic, 1, 0, "0"),
            (Stencil1dPeriodic, 2, 0, "0 1 | 0 1"),
            (Stencil1dPeriodic, 4, 0, "0 1 3 | 0 1 2 | 1 2 3 | 0 2 3"),
            (Dom, 4, 0, "0 | 0 1 | 1 2 | 2 3"),
            (Tree, 5, 0, "0 | 0 | 1 | 1 | 2"),
            (Fft, 4, 0, "0 1 | 0 1 2 | 1 2 3 | 2 3"),
            (Fft, 4, 1, "0 2 | 1 3 | 0 2 | 1 3"),
            (Fft, 6, 2, "0 4 | 1 5 | 2 | 3 | 0 4 | 1 5"),
            (AllToAll, 3, 0, "0 1 2 | 0 1 2 | 0 1 2"),
            (Nearest, 6, 0, "0 1 2 | 0 1 2 3 | 0 1 2 3 4 | 1 2 3 4 5 | 2 3 4 5 | 3 4 5"),
            // 8 * k / 5 is 0, 1, 3, 4, 6.
            (
                Spread,
                8,
                0,
                "0 1 3 4 6 | 1 2 4 5 7 | 0 2 3 5 6 | 1 3 4 6 7 | 0 2 4 5 7 | 0 1 3 5 6 | 1 2 4 6 7 | 0 2 3 5 7",
            ),
            (Spread, 2, 1, "0 | 1"),
        ] {
            assert_eq!(row(pattern, width, set), expected, "{} of width {width}, set {set}", pattern.name());
        }
    }

    #[test]
    fn random_inputs_are_the_same_everywhere() {
        // Taken once from the driver in C, which a test compares as a whole where it is built.
        assert_eq!(row(Pattern::RandomNearest, 8, 1), RANDOM_NEAREST);
        assert_eq!(row(Pattern::RandomSpread, 8, 2), RANDOM_SPREAD);
        let all: usize = (0..64).map(|column| Pattern::RandomNearest.inputs(64, 0, column).len()).sum();
        assert!((120..=200).contains(&all), "about half of 314: {all}");
    }

    const RANDOM_NEAREST: &str = "0 2 | 0 2 3 | 1 2 3 4 | 1 2 4 | 3 5 | 3 4 6 | 4 6 7 | 6 7";
    const RANDOM_SPREAD: &str = "0 2 5 | 0 1 2 4 | 2 5 6 | 0 3 4 5 | 1 2 4 7 | 1 3 4 6 7 | 0 1 4 5 7 | 0 3 4 6";

    #[test]
    fn rows_grow_until_all_columns_are_there() {
        let widths = |pattern: Pattern, width| [0, 1, 2, 3, 9, 40].map(|step| pattern.row_width(width, step));
        assert_eq!(widths(Pattern::Dom, 4), [1, 2, 3, 4, 4, 4]);
        assert_eq!(widths(Pattern::Tree, 6), [1, 2, 4, 6, 6, 6]);
        assert_eq!(widths(Pattern::Fft, 6), [6; 6]);
    }

    #[test]
    fn inputs_ascend_and_are_columns_of_the_graph() {
        for pattern in Pattern::ALL {
            for width in 1..=MOST_COLUMNS {
                for set in 0..pattern.period(width) {
                    for column in 0..width {
                        let inputs = pattern.inputs(width, set, column);
                        assert!(inputs.is_sorted_by(|a, b| a < b), "{} {width} {set} {column}", pattern.name());
                        assert!(inputs.iter().all(|input| *input < width), "{} {width} {set} {column}", pattern.name());
                    }
                }
            }
        }
    }
}
