//! Reports: a table for people, JSON for programs.

use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;

use serde_json::{Value, json};

use crate::case::floor_of;
use crate::error::Error;
use crate::round_robin::Row;
use crate::stats::Summary;

/// The rows as an aligned table, with how many times its floor each median is.
pub fn table(rows: &[Row]) -> String {
    let mut cells = vec![["workload", "metric", "median", "min", "max", "unit", "ratio"].map(str::to_owned)];
    cells.extend(rows.iter().map(|row| {
        let [median, min, max] = figures(row.summary);
        [row.case.to_owned(), row.metric.clone(), median, min, max, row.unit.clone(), ratio(row, rows)]
    }));
    align(&cells, 2..=4)
}

/// Lines of cells as text: columns as wide as their widest cell, those of `numbers` to the right.
pub fn align<const COLUMNS: usize>(cells: &[[String; COLUMNS]], numbers: RangeInclusive<usize>) -> String {
    let width = |column: usize| cells.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; COLUMNS] = std::array::from_fn(width);
    let mut text = String::new();
    for line in cells {
        let pad = |(column, cell): (usize, &String)| {
            let width = widths[column];
            if numbers.contains(&column) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
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

fn ratio(row: &Row, rows: &[Row]) -> String {
    let Some((floor, metric)) = floor_of(row.case, &row.metric) else {
        return String::new();
    };
    let floor_row = rows.iter().find(|other| other.case == floor && other.metric == metric);
    floor_row
        .map_or_else(String::new, |found| format!("{} x {floor}", number(row.summary.median / found.summary.median)))
}

/// Three digits or so: more would be noise.
pub fn number(value: f64) -> String {
    let decimals = match value {
        100.0.. => 0,
        1.0.. => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}

/// The rows as a JSON list of `{"workload", "metric", "value", "unit", "min", "max"}`; the value is the median.
pub fn json(rows: &[Row]) -> Value {
    let row = |row: &Row| {
        json!({
            "workload": row.case,
            "metric": row.metric,
            "value": row.summary.median,
            "unit": row.unit,
            "min": row.summary.min,
            "max": row.summary.max,
        })
    };
    rows.iter().map(row).collect()
}

/// Writes `report` to `path`, and makes the folders on the way.
///
/// # Errors
/// The file or a folder cannot be written.
pub fn write(path: &Path, report: &Value) -> Result<(), Error> {
    let failed = |source| Error::Write { path: path.to_owned(), source };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    fs::write(path, format!("{report:#}\n")).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(case: &'static str, metric: &str, median: f64) -> Row {
        let summary = Summary { median, min: median / 2.0, max: median * 2.0 };
        Row { case, metric: metric.to_owned(), unit: "ns".to_owned(), summary }
    }

    #[test]
    fn the_table_is_aligned_and_tells_ratios() {
        let rows = [row("chain", "ns_per_op_single", 250.0), row("floor/chain", "ns_per_op", 12.5)];
        assert_eq!(
            table(&rows),
            "\
workload     metric            median  min   max  unit  ratio
chain        ns_per_op_single     250  125   500  ns    20.0 x floor/chain
floor/chain  ns_per_op           12.5  6.2  25.0  ns
"
        );
        assert!(!table(&rows[..1]).contains(" x "), "no ratio without its floor");
    }

    #[test]
    fn the_json_has_the_six_keys() {
        let expected = json!([
            {"workload": "fan", "metric": "m", "value": 4.0, "unit": "ns", "min": 2.0, "max": 8.0}
        ]);
        assert_eq!(json(&[row("fan", "m", 4.0)]), expected);
    }
}
