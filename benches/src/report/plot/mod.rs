//! Plots of measurements as SVG. Axes of costs are logarithmic, since costs are compared by ratio.

pub mod dots;
pub mod growth;

use std::ops::Range;

use plotters::coord::Shift;
use plotters::prelude::*;

/// The font of all texts: the default sans-serif font of the viewer.
const FONT: &str = "sans-serif";

/// Size of texts, pixels.
const TEXT: u32 = 13;

/// Colours of series that colour-blind people can distinguish, also in print (Okabe and Ito 2008).
const COLOURS: [RGBColor; 5] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
];

/// The colour of a series.
fn colour(series: usize) -> RGBColor {
    COLOURS[series % COLOURS.len()]
}

/// Writes the names of series beside their colours, one below the other, in an area of its own, so that it covers no data.
fn legend<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    series: &[(&str, RGBColor)],
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    let text = TEXT as i32;
    for (index, (name, colour)) in series.iter().enumerate() {
        let y = 2 * text * (index as i32 + 1);
        area.draw(&Rectangle::new([(0, y), (text, y + text)], colour.filled()))?;
        area.draw(&Text::new((*name).to_owned(), (2 * text, y), (FONT, TEXT)))?;
    }
    Ok(())
}

/// The range of a logarithmic axis for `values`, with some room on both sides: at least one decade. `None` if no value has a logarithm.
fn span(values: impl IntoIterator<Item = f64>) -> Option<Range<f64>> {
    let positive = values.into_iter().filter(|value| value.is_finite() && *value > 0.0);
    let (min, max) = positive.fold((f64::INFINITY, 0.0f64), |(min, max), value| (min.min(value), max.max(value)));
    let middle = (min * max).sqrt();
    let (low, high) = (min / ROOM, max * ROOM);
    let narrow = high / low < 10.0;
    let half = 10.0f64.sqrt();
    (max > 0.0).then(|| if narrow { middle / half..middle * half } else { low..high })
}

/// Room beside the outermost values, as a factor.
const ROOM: f64 = 1.5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_holds_all_values_and_a_decade_at_least() {
        assert_eq!(span([]), None);
        assert_eq!(span([0.0, f64::NAN]), None);
        assert_eq!(span([10.0, 1_000.0]), Some(10.0 / ROOM..1_000.0 * ROOM));
        let one = span([5.0]).unwrap();
        assert!(one.start < 5.0 && 5.0 < one.end && one.end / one.start > 9.99);
    }
}
