//! What all plots share: size, colours, frame and legend.

use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::element::{Circle, Cross, DynElement, IntoDynElement, Text, TriangleMarker};
use plotters::prelude::{
    BLACK, Color, DrawingArea, IntoDrawingArea, IntoFont, PathElement, RGBColor, SVGBackend, WHITE,
};
use plotters::style::{ShapeStyle, TRANSPARENT, TextStyle};

use super::PlotError;
use super::axis::Axis;

/// Width of every plot, in the units of its SVG.
pub(super) const WIDTH: u32 = 760;

/// Colours that differ in lightness too, after Okabe and Ito.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 92, 158),
    RGBColor(213, 94, 0),
    RGBColor(0, 138, 100),
    RGBColor(168, 80, 138),
    RGBColor(90, 90, 90),
    RGBColor(200, 140, 0),
    RGBColor(60, 160, 215),
];

const FONT: &str = "system-ui, 'DejaVu Sans', sans-serif";
/// The library shows texts at 1 / 1.24 of the size it is given.
const TEXT: f64 = 15.5;
/// Width of a character of that, about.
const CHARACTER: usize = 7;
/// Height of a line of the legend.
const LEGEND_LINE: u32 = 22;

pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(super) type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Axis, Axis>>;
pub(super) type Shape<'b, C> = DynElement<'static, SVGBackend<'b>, C>;

/// The colour of a series.
pub(super) fn colour(series: usize) -> RGBColor {
    COLOURS[series % COLOURS.len()]
}

/// A line of a series.
pub(super) fn stroke(series: usize) -> ShapeStyle {
    colour(series).stroke_width(2)
}

/// The style of plain text.
pub(super) fn text_style() -> TextStyle<'static> {
    (FONT, TEXT).into_font().color(&RGBColor(50, 58, 66))
}

/// A marker of a series, at a place of a chart or of a picture.
pub(super) fn marker<'b, C: Clone + 'static>(series: usize, at: C) -> Shape<'b, C> {
    let colour = colour(series);
    match series % 4 {
        0 => Circle::new(at, 4, colour.filled()).into_dyn(),
        1 => TriangleMarker::new(at, 6, colour.filled()).into_dyn(),
        2 => Cross::new(at, 4, colour.stroke_width(2)).into_dyn(),
        _ => Circle::new(at, 4, colour.stroke_width(2)).into_dyn(),
    }
}

/// Draws a picture of this height.
pub(super) fn picture(
    height: u32,
    draw: impl FnOnce(&Area) -> Result<(), PlotError>,
) -> Result<String, PlotError> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        area.fill(&WHITE)?;
        draw(&area)?;
        area.present()?;
    }
    Ok(svg)
}

/// Axes with marks, lines behind the marks and what the axes count.
pub(super) fn frame<'a, 'b>(
    area: &'a Area<'b>,
    x: (&str, Axis),
    y: (&str, Axis),
) -> Result<Chart<'a, 'b>, PlotError> {
    let characters = y.1.widest_mark();
    aligned_frame(area, x, y, characters)
}

/// The same with room for marks of so many characters on the left: panels above each other begin at the same
/// place.
pub(super) fn aligned_frame<'a, 'b>(
    area: &'a Area<'b>,
    (x_name, x): (&str, Axis),
    (y_name, y): (&str, Axis),
    characters: usize,
) -> Result<Chart<'a, 'b>, PlotError> {
    let left = 34 + CHARACTER * characters;
    let mut chart = ChartBuilder::on(area)
        .margin_left(6)
        .margin_top(10)
        .margin_right(26)
        .x_label_area_size(48)
        .y_label_area_size(left as u32)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .bold_line_style(RGBColor(226, 231, 235))
        .light_line_style(TRANSPARENT)
        .axis_style(RGBColor(120, 130, 138))
        .label_style(text_style())
        .axis_desc_style(text_style())
        .x_desc(x_name)
        .y_desc(y_name)
        .draw()?;
    Ok(chart)
}

/// How a series looks in a legend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// A marker.
    Points(usize),
    /// A line.
    Line(usize),
    /// A line with a marker on it.
    Both(usize),
}

/// Draws a legend at the top and returns the area below it. One series needs no legend.
pub(super) fn legend<'b>(
    area: &Area<'b>,
    entries: &[(Look, String)],
) -> Result<Area<'b>, PlotError> {
    if entries.len() < 2 {
        return Ok(area.clone());
    }
    let width = |name: &str| 44 + CHARACTER * name.chars().count();
    let (mut places, mut x, mut line) = (Vec::new(), 12, 0);
    for (_, name) in entries {
        if x > 12 && x + width(name) > WIDTH as usize {
            (x, line) = (12, line + 1);
        }
        places.push((x as i32, line * LEGEND_LINE as i32 + LEGEND_LINE as i32 / 2 + 2));
        x += width(name);
    }
    let (top, below) = area.split_vertically((line as u32 + 1) * LEGEND_LINE);
    for ((look, name), (x, y)) in entries.iter().zip(places) {
        let line = |series| PathElement::new(vec![(x, y), (x + 20, y)], stroke(series));
        let point = |series| marker(series, (x + 10, y));
        match look {
            Look::Points(series) => top.draw(&point(*series))?,
            Look::Line(series) => top.draw(&line(*series))?,
            Look::Both(series) => {
                top.draw(&line(*series))?;
                top.draw(&point(*series))?;
            }
        }
        top.draw(&Text::new(name.clone(), (x + 26, y - 7), text_style()))?;
    }
    Ok(below)
}

/// A thin dark line, for zero and for whiskers.
pub(super) fn hairline() -> ShapeStyle {
    BLACK.mix(0.75).stroke_width(1)
}
