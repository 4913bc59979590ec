//! The engine's figures as dots: one line per metric, with its median in ns, its smallest and largest value, and its floor.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{FONT, TEXT, colour, legend, span};
use crate::harness::error::Error;
use crate::harness::round_robin::Row;
use crate::harness::table::number;
use crate::report::floor_row;

/// Width, pixels.
const WIDTH: u32 = 1_000;

/// Height of a line, pixels.
const LINE: u32 = 20;

/// Height of the title and the axis, pixels.
const AROUND: u32 = 100;

/// Width of the legend, pixels.
const LEGEND: u32 = 110;

/// Width of the names of lines, pixels.
const NAMES: u32 = 290;

/// The plot of all rows of workloads in ns.
///
/// # Errors
/// The library failed.
pub fn draw(rows: &[Row]) -> Result<String, Error> {
    let mut text = String::new();
    dots(&mut text, rows).map_err(|error| Error::Draw { plot: "engine".to_owned(), reason: error.to_string() })?;
    Ok(text)
}

fn dots(text: &mut String, all: &[Row]) -> Result<(), Box<dyn std::error::Error>> {
    let is_floor = |row: &Row| row.case.name.starts_with("floor/");
    let rows: Vec<_> = all.iter().filter(|row| row.unit == "ns" && !is_floor(row)).collect();
    let root = SVGBackend::with_string(text, (WIDTH, AROUND + LINE * rows.len() as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let costs = rows.iter().flat_map(|row| {
        let floor = floor_row(row, all).map_or(row.summary.median, |floor| floor.summary.median);
        [row.summary.min, row.summary.max, floor]
    });
    let Some(costs) = span(costs) else {
        // All selected rows are floors, or have another unit than ns.
        root.draw_text("no workload was measured in ns", &(FONT, TEXT).into_text_style(&root), (12, 12))?;
        root.present()?;
        return Ok(());
    };
    // The first row is at the top.
    let place = |index: usize| rows.len() as f64 - index as f64 - 0.5;
    let start = costs.start;
    let (left, right) = root.split_horizontally(WIDTH - LEGEND);
    let mut chart = ChartBuilder::on(&left)
        .caption("engine: ns beside the floors", (FONT, TEXT + 4))
        .margin(12)
        .x_label_area_size(44)
        .margin_left(NAMES)
        .build_cartesian_2d(costs.log_scale(), 0.0..rows.len() as f64)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(0)
        .x_desc("ns, median, and smallest to largest")
        .x_label_formatter(&|cost| number(*cost))
        .label_style((FONT, TEXT))
        .max_light_lines(1)
        .draw()?;

    let (above, below) = (colour(0), colour(1));
    let line = |(index, row): (usize, &&Row)| {
        PathElement::new([(row.summary.min, place(index)), (row.summary.max, place(index))], above)
    };
    chart.draw_series(rows.iter().enumerate().map(line))?;
    let floor = |(index, row): (usize, &&Row)| {
        let floor = floor_row(row, all)?;
        Some(TriangleMarker::new((floor.summary.median, place(index)), 5, below.filled()))
    };
    chart.draw_series(rows.iter().enumerate().filter_map(floor))?;
    let dot = |(index, row): (usize, &&Row)| Circle::new((row.summary.median, place(index)), 4, above.filled());
    chart.draw_series(rows.iter().enumerate().map(dot))?;
    let name = |(index, row): (usize, &&Row)| {
        let style = (FONT, TEXT).into_text_style(&root).pos(Pos::new(HPos::Right, VPos::Center));
        let text = Text::new(format!("{}: {}", row.case.name, row.metric), (-8, 0), style);
        EmptyElement::at((start, place(index))) + text
    };
    let names: Vec<_> = rows.iter().enumerate().map(name).collect();
    chart.draw_series(names)?;
    legend(&right, &[("workload", above), ("floor", below)])?;
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::cases::find;
    use crate::harness::stats::Summary;

    fn row(case: &str, metric: &str, unit: &str) -> Row {
        let case = find(case).unwrap();
        let summary = Summary { median: 20.0, min: 10.0, max: 40.0 };
        Row { case, metric: metric.to_owned(), unit: unit.to_owned(), summary }
    }

    #[test]
    fn workloads_in_ns_have_a_line_each_and_floors_a_mark() {
        let rows = [
            row("chain", "ns_per_op_single", "ns"),
            row("floor/chain", "ns_per_op", "ns"),
            row("memory", "peak_growth", "MiB"),
        ];
        let plot = draw(&rows).unwrap();
        let xml = roxmltree::Document::parse(&plot).unwrap();
        let texts: Vec<_> = xml.descendants().filter(|node| node.is_text()).filter_map(|node| node.text()).collect();
        assert!(texts.iter().any(|text| text.trim() == "chain: ns_per_op_single"), "{texts:?}");
        assert!(!texts.iter().any(|text| text.contains("memory") || text.contains("floor/")), "{texts:?}");
        let triangles = xml.descendants().filter(|node| node.has_tag_name(("http://www.w3.org/2000/svg", "polygon")));
        assert_eq!(triangles.count(), 1, "{plot}");
    }

    #[test]
    fn no_workload_in_ns_is_a_plot_that_says_so() {
        assert!(draw(&[row("memory", "peak_growth", "MiB")]).unwrap().contains("no workload was measured in ns"));
    }
}
