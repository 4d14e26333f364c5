//! Plots as SVG.
//!
//! Series differ in colour and in marker, so that they can be told apart on paper and by those who do not see
//! colours. Every plot has a title and a description that is read out in its place.

mod axis;
mod bars;
mod canvas;
mod curves;
mod distribution;
mod fit;
mod roofline;

use std::io;

use plotters::drawing::DrawingAreaErrorKind;
use thiserror::Error;

pub use axis::Scale;
pub use bars::{Bar, Bars};
pub use curves::{Curves, Series};
pub use distribution::Distribution;
pub use fit::FitPlot;
pub use roofline::{Mark, Roofline};

/// Why there is no plot.
#[derive(Debug, Error)]
pub enum PlotError {
    /// There is nothing to draw.
    #[error("the plot '{title}' has nothing to draw")]
    Empty {
        /// Its title.
        title: String,
    },
    /// A value has no place on its axis.
    #[error("the plot '{title}' has the value {value}, which has no place on its axis")]
    NoPlace {
        /// Its title.
        title: String,
        /// The value.
        value: f64,
    },
    /// The plotting library failed.
    #[error("cannot draw")]
    Draw(#[from] DrawingAreaErrorKind<io::Error>),
}

/// A plot that has been drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// What it shows, in a few words.
    pub title: String,
    /// What is in it, for those who do not see it and for the line below it.
    pub description: String,
    drawn: String,
}

impl Plot {
    /// The picture with its title and description inside; `at` keeps names apart within one page.
    pub(super) fn svg(&self, at: usize) -> String {
        let label =
            format!("<svg role=\"img\" aria-labelledby=\"plot-{at}-title plot-{at}-about\"",);
        let (title, about) = (escaped(&self.title), escaped(&self.description));
        let names = format!(
            ">\n<title id=\"plot-{at}-title\">{title}</title>\n<desc id=\"plot-{at}-about\">{about}</desc>"
        );
        self.drawn.replacen("<svg", &label, 1).replacen('>', &names, 1)
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests;
