//! A picture of the arenas of a compiled program, as SVG: steps from left to right, bytes from the bottom to the top, and a rectangle for
//! each value while it lives. Arenas lie one above the other.

use std::error::Error;

use plotters::prelude::*;

use crate::base::engine::{BufferRole, Compiled, Storage, ValuePlace};

const SIZE: (u32, u32) = (1_000, 600);

/// Draws the arenas.
///
/// # Errors
/// The drawing library's.
pub(crate) fn draw(compiled: &Compiled) -> Result<String, Box<dyn Error>> {
    let mut bottoms = Vec::new();
    let mut top = 0;
    for arena in compiled.arenas() {
        bottoms.push(top);
        top += arena.bytes;
    }
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let title = format!("arenas of {}: {top} bytes", compiled.program().name);
        let mut chart = ChartBuilder::on(&root)
            .caption(title, ("sans-serif", 18))
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(90)
            .build_cartesian_2d(0..compiled.step_count().max(1), 0..top.max(1))?;
        chart.configure_mesh().x_desc("step").y_desc("byte").draw()?;
        for (number, place) in compiled.places().iter().enumerate() {
            let Some(bottom) = bottom(compiled, &bottoms, place) else { continue };
            let corners = [(place.lower, bottom), (place.upper, bottom + place.bytes)];
            let color = Palette99::pick(number);
            chart.draw_series([
                Rectangle::new(corners, color.mix(0.4).filled()),
                Rectangle::new(corners, color.stroke_width(1)),
            ])?;
            let name = (place.lower, bottom + place.bytes / 2);
            chart.draw_series([Text::new(place.name.clone(), name, ("sans-serif", 12))])?;
        }
        root.present()?;
    }
    Ok(text)
}

/// Where a value of an arena begins in the picture.
fn bottom(compiled: &Compiled, bottoms: &[usize], place: &ValuePlace) -> Option<usize> {
    match place.storage {
        Storage::Buffer { index, offset } => match compiled.buffers()[index].role {
            BufferRole::Arena(arena) => Some(bottoms[arena] + offset),
            _ => None,
        },
        Storage::Scratch(_) => None,
    }
}
