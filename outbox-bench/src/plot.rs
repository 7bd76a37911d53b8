//! Curves: what scenarios draw, and the command that draws it.
//!
//! A scenario puts the points of its curves into its JSON, so that the same picture can be made of it again.

use std::fs;
use std::path::PathBuf;

use plotters::coord::Shift;
use plotters::coord::combinators::IntoLogRange;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use serde::{Deserialize, Serialize};

use crate::Result;

const SIZE: (u32, u32) = (900, 420);
const FONT: &str = "sans-serif";
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 90, 181),
    RGBColor(220, 50, 32),
    RGBColor(0, 128, 96),
    RGBColor(170, 85, 200),
    RGBColor(200, 130, 0),
    RGBColor(90, 90, 90),
];

/// Draws the curves of a run.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What a run has written with `--json`.
    file: PathBuf,
    /// The folder that the pictures go to, as SVG.
    #[arg(long, default_value = "docs/plots")]
    into: PathBuf,
}

/// Curves over one another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Plot {
    /// The name of the file, without its ending.
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) lines: Vec<Line>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Axis {
    pub(crate) name: String,
    /// Whether it is logarithmic; then it shows nothing that is not above zero.
    pub(crate) log: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

impl Axis {
    pub(crate) fn linear(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            log: false,
        }
    }

    pub(crate) fn log(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            log: true,
        }
    }

    /// From where to where it goes: from zero, or a little beyond the values where it is logarithmic.
    fn range(&self, values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
        let most = values.clone().fold(f64::MIN_POSITIVE, f64::max);
        if self.log {
            let least = values.fold(most, f64::min);
            (least / 1.5, most * 1.5)
        } else {
            (0.0, most * 1.05)
        }
    }

    fn shows(&self, value: f64) -> bool {
        value.is_finite() && (!self.log || value > 0.0)
    }
}

impl Plot {
    /// The points that can be drawn.
    fn shown(mut self) -> Self {
        for line in &mut self.lines {
            line.points
                .retain(|&(x, y)| self.x.shows(x) && self.y.shows(y));
        }
        self.lines.retain(|line| !line.points.is_empty());
        self
    }

    fn svg(self) -> Result<String> {
        let plot = self.shown();
        let points = || plot.lines.iter().flat_map(|line| line.points.iter());
        let (left, right) = plot.x.range(points().map(|point| point.0));
        let (low, high) = plot.y.range(points().map(|point| point.1));
        let mut svg = String::new();
        {
            let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
            area.fill(&WHITE)?;
            match (plot.x.log, plot.y.log) {
                (false, false) => plot.draw(&area, left..right, low..high),
                (false, true) => plot.draw(&area, left..right, (low..high).log_scale()),
                (true, false) => plot.draw(&area, (left..right).log_scale(), low..high),
                (true, true) => {
                    plot.draw(&area, (left..right).log_scale(), (low..high).log_scale())
                }
            }?;
            area.present()?;
        }
        svg.push('\n');
        Ok(svg)
    }

    fn draw<X, Y>(&self, area: &DrawingArea<SVGBackend<'_>, Shift>, x: X, y: Y) -> Result<()>
    where
        X: AsRangedCoord<Value = f64>,
        Y: AsRangedCoord<Value = f64>,
        X::CoordDescType: ValueFormatter<f64>,
        Y::CoordDescType: ValueFormatter<f64>,
    {
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, (FONT, 18))
            .margin(12)
            .x_label_area_size(42)
            .y_label_area_size(76)
            .build_cartesian_2d(x, y)?;
        chart
            .configure_mesh()
            .x_desc(&self.x.name)
            .y_desc(&self.y.name)
            .label_style((FONT, 13))
            .x_label_formatter(&|&value| short(value))
            .y_label_formatter(&|&value| short(value))
            .draw()?;
        for (line, colour) in self.lines.iter().zip(COLOURS.iter().cycle()) {
            chart
                .draw_series(LineSeries::new(
                    line.points.iter().copied(),
                    colour.stroke_width(2),
                ))?
                .label(&line.name)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(3))
                });
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::MiddleRight)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .label_font((FONT, 13))
            .draw()?;
        Ok(())
    }
}

/// A number on an axis.
fn short(value: f64) -> String {
    match value.abs() {
        it if it >= 1e6 => format!("{}M", trimmed(value / 1e6)),
        it if it >= 1e3 => format!("{}k", trimmed(value / 1e3)),
        _ => trimmed(value),
    }
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// What is read of a run.
#[derive(Deserialize)]
struct Document {
    scenarios: Vec<Scenario>,
}

#[derive(Deserialize)]
struct Scenario {
    plots: Vec<Plot>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let named = |error: &dyn std::fmt::Display| format!("{}: {error}", args.file.display());
    let json = fs::read_to_string(&args.file).map_err(|error| named(&error))?;
    let document: Document = serde_json::from_str(&json).map_err(|error| named(&error))?;
    fs::create_dir_all(&args.into)?;
    for plot in document.scenarios.into_iter().flat_map(|it| it.plots) {
        let file = args.into.join(&plot.name).with_extension("svg");
        fs::write(&file, plot.svg()?)?;
        println!("{}", file.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(y: Axis) -> Plot {
        let line = |name: &str, points| Line {
            name: name.to_owned(),
            points,
        };
        Plot {
            name: "plot".to_owned(),
            title: "what is <drawn>".to_owned(),
            x: Axis::linear("seconds"),
            y,
            lines: vec![
                line("first", vec![(0.0, 1.0), (1.0, 0.0), (2.0, f64::NAN)]),
                line("second", vec![(0.0, 0.0)]),
            ],
        }
    }

    #[test]
    fn what_cannot_be_drawn_is_left_out() {
        let linear = plot(Axis::linear("a")).shown();
        assert_eq!(linear.lines[0].points, [(0.0, 1.0), (1.0, 0.0)]);
        assert_eq!(linear.lines[1].points, [(0.0, 0.0)]);
        let log = plot(Axis::log("a")).shown();
        assert_eq!(log.lines.len(), 1);
        assert_eq!(log.lines[0].points, [(0.0, 1.0)]);
    }

    #[test]
    fn a_picture_has_its_title_axes_and_lines() {
        for axis in [Axis::linear("messages"), Axis::log("messages")] {
            let svg = plot(axis).svg().unwrap();
            for part in ["&lt;drawn&gt;", "seconds", "messages", "first", "polyline"] {
                assert!(svg.contains(part), "{part} is not in {svg}");
            }
        }
    }

    #[test]
    fn numbers_on_an_axis_are_short() {
        assert_eq!(
            [0.0, 0.25, 10.0, 10_000.0, 2_500_000.0].map(short),
            ["0", "0.25", "10", "10k", "2.5M"]
        );
    }
}
