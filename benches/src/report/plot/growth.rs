//! A curve as lines over its sizes, one line per series.

use plotters::prelude::*;

use super::{FONT, TEXT, colour, legend, span};
use crate::catalogue::curve::{Curve, Point};
use crate::harness::error::Error;
use crate::harness::round_robin::Row;
use crate::harness::table::number;

/// Width and height, pixels.
const SIZE: (u32, u32) = (920, 480);

/// Width of the names of series, pixels.
const NAMES: u32 = 180;

/// The plot of `curve`, from those of `rows` that belong to it.
///
/// # Errors
/// The library failed.
pub fn draw(curve: &Curve, rows: &[Row<Point>]) -> Result<String, Error> {
    let mut text = String::new();
    let rows: Vec<_> = rows.iter().filter(|row| row.case.curve.name == curve.name).collect();
    lines(&mut text, curve, &rows)
        .map_err(|error| Error::Draw { plot: curve.name.to_owned(), reason: error.to_string() })?;
    Ok(text)
}

fn lines(text: &mut String, curve: &Curve, rows: &[&Row<Point>]) -> Result<(), Box<dyn std::error::Error>> {
    let sizes = span(rows.iter().map(|row| row.case.size as f64)).ok_or("there is no size")?;
    let costs = span(rows.iter().flat_map(|row| [row.summary.min, row.summary.max])).ok_or("there is no cost")?;
    // The axis has a mark at each size.
    let step = (curve.points[1] / curve.points[0]) as f64;
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (left, right) = root.split_horizontally(SIZE.0 - NAMES);
    let mut chart = ChartBuilder::on(&left)
        .caption(format!("{}: ns by {}", curve.name, curve.axis), (FONT, TEXT + 4))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(sizes.log_scale().base(step), costs.log_scale())?;
    chart
        .configure_mesh()
        .x_desc(curve.axis)
        .y_desc("ns, median, and smallest to largest")
        .x_label_formatter(&|size| format!("{size}"))
        .y_label_formatter(&|cost| number(*cost))
        .label_style((FONT, TEXT))
        .max_light_lines(1)
        .draw()?;

    let mut names: Vec<_> = rows.iter().map(|row| row.metric.as_str()).collect();
    names.dedup();
    let series: Vec<_> = names.into_iter().enumerate().map(|(index, name)| (name, colour(index))).collect();
    for &(name, colour) in &series {
        let own = rows.iter().filter(|row| row.metric == name);
        let medians = own.clone().map(|row| (row.case.size as f64, row.summary.median));
        chart.draw_series(LineSeries::new(medians, colour.stroke_width(2)).point_size(3))?;
        let extremes = |row: &&Row<Point>| [row.summary.min, row.summary.max].map(|cost| (row.case.size as f64, cost));
        chart.draw_series(own.map(|row| PathElement::new(extremes(row), colour)))?;
    }
    legend(&right, &series)?;
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::curve::CURVES;
    use crate::harness::stats::Summary;

    fn row(curve: &'static Curve, series: &str, size: usize) -> Row<Point> {
        let summary = Summary { median: 20.0, min: 10.0, max: 40.0 };
        Row { case: Point { curve, size }, metric: series.to_owned(), unit: "ns".to_owned(), summary }
    }

    #[test]
    fn a_plot_has_the_series_of_its_own_curve() {
        let [curve, other] = [&CURVES[0], &CURVES[1]];
        let rows = [row(curve, "one & two", 1), row(curve, "one & two", 10), row(other, "three", 1)];
        let plot = draw(curve, &rows).unwrap();
        let xml = roxmltree::Document::parse(&plot).unwrap();
        let texts: Vec<_> = xml.descendants().filter(|node| node.is_text()).filter_map(|node| node.text()).collect();
        let has = |part: &str| texts.iter().any(|text| text.trim() == part);
        assert!(has("one & two") && has(curve.axis) && !has("three"), "{texts:?}");
    }

    #[test]
    fn nothing_measured_is_no_plot() {
        assert!(matches!(draw(&CURVES[0], &[]), Err(Error::Draw { .. })));
    }
}
