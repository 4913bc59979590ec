//! Tables as text: aligned columns, and figures as cells.

use crate::harness::stats::Summary;

/// Lines of cells in aligned columns; the columns whose numbers are in `right` are aligned right.
pub fn aligned<const COLUMNS: usize>(lines: &[[String; COLUMNS]], right: &[usize]) -> String {
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; COLUMNS] = std::array::from_fn(width);
    let mut text = String::new();
    for line in lines {
        let pad = |(column, cell): (usize, &String)| {
            let width = widths[column];
            if right.contains(&column) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        };
        let line = line.iter().enumerate().map(pad).collect::<Vec<_>>().join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Median, smallest and largest, as cells.
pub fn figures(summary: Summary) -> [String; 3] {
    [summary.median, summary.min, summary.max].map(number)
}

/// A value with about three digits: more would be noise.
pub fn number(value: f64) -> String {
    let decimals = match value {
        100.0.. => 0,
        1.0.. => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}
