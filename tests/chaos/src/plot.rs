//! A plot over time as SVG: lines, and bars in rows under them for what was broken meanwhile.

use std::fmt::Write as _;

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 34.0;
const ROW: f64 = 16.0;
const COLOURS: [&str; 4] = ["#1f6fb4", "#d0701a", "#3a8f3a", "#8a4fb0"];

pub(crate) struct Plot {
    pub(crate) title: String,
    pub(crate) lines: Vec<Line>,
    pub(crate) bars: Vec<Bar>,
}

pub(crate) struct Line {
    pub(crate) name: String,
    /// Seconds, and a value that is not negative.
    pub(crate) points: Vec<(f64, f64)>,
}

pub(crate) struct Bar {
    pub(crate) row: &'static str,
    pub(crate) label: String,
    pub(crate) from: f64,
    pub(crate) until: f64,
}

impl Plot {
    pub(crate) fn svg(&self) -> String {
        let mut rows: Vec<&str> = self.bars.iter().map(|bar| bar.row).collect();
        rows.sort_unstable();
        rows.dedup();
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let ends = points()
            .map(|it| it.0)
            .chain(self.bars.iter().map(|bar| bar.until));
        let (x_step, x_top) = axis(ends.fold(1.0, f64::max));
        let (y_step, y_top) = axis(points().map(|it| it.1).fold(f64::MIN_POSITIVE, f64::max));
        let x = |seconds: f64| LEFT + seconds / x_top * (WIDTH - LEFT - RIGHT);
        let y = |value: f64| TOP + (1.0 - value / y_top) * HEIGHT;
        let below = TOP + HEIGHT + BOTTOM;
        let height = below + ROW * rows.len() as f64 + 8.0;

        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             font-family=\"sans-serif\" font-size=\"11\">\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n\
             <text x=\"{LEFT}\" y=\"18\" font-size=\"14\">{}</text>\n",
            escaped(&self.title)
        );
        let mut put = |element: String| {
            svg.push_str(&element);
            svg.push('\n');
        };
        let mut value = 0.0;
        while value <= y_top * 1.001 {
            let at = y(value);
            put(format!(
                "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                at + 4.0,
                short(value)
            ));
            value += y_step;
        }
        let mut seconds = 0.0;
        while seconds <= x_top * 1.001 {
            put(format!(
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{} s</text>",
                x(seconds),
                TOP + HEIGHT + 16.0,
                short(seconds)
            ));
            seconds += x_step;
        }
        for (line, colour) in self.lines.iter().zip(COLOURS.iter().cycle()) {
            let mut path = String::new();
            for (seconds, value) in &line.points {
                let _ = write!(path, "{:.1},{:.1} ", x(*seconds), y(*value));
            }
            put(format!(
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.3\"/>",
                path.trim_end()
            ));
        }
        for (number, (line, colour)) in self.lines.iter().zip(COLOURS.iter().cycle()).enumerate() {
            put(format!(
                "<text x=\"{:.1}\" y=\"33\" fill=\"{colour}\">{}</text>",
                LEFT + 220.0 * number as f64,
                escaped(&line.name)
            ));
        }
        for (number, row) in rows.iter().enumerate() {
            let top = below + ROW * number as f64;
            put(format!(
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{row}</text>",
                LEFT - 6.0,
                top + 11.0
            ));
            for bar in self.bars.iter().filter(|bar| bar.row == *row) {
                put(format!(
                    "<rect x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"#c33\" \
                     fill-opacity=\"0.6\"><title>{}</title></rect>",
                    x(bar.from),
                    (x(bar.until) - x(bar.from)).max(2.0),
                    ROW - 4.0,
                    escaped(&bar.label)
                ));
            }
        }
        svg.push_str("</svg>\n");
        svg
    }
}

/// A round step, and the first multiple of it that is not below the largest value.
fn axis(largest: f64) -> (f64, f64) {
    let power = 10f64.powf((largest / 5.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|it| it * power)
        .find(|step| step * 6.0 >= largest)
        .unwrap_or(power * 10.0);
    (step, (largest / step).ceil() * step)
}

fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_few_round_steps_and_room_for_the_largest() {
        for (largest, expected) in [(1.0, 0.2), (97.0, 20.0), (600.0, 100.0), (0.037, 0.01)] {
            let (step, top) = axis(largest);
            assert!((step - expected).abs() < 1e-9, "{largest}: {step}");
            assert!(
                top >= largest && top < largest + step * 1.01,
                "{largest}: {top}"
            );
        }
    }

    #[test]
    fn what_is_named_is_in_the_picture() {
        let svg = Plot {
            title: "a < b".to_owned(),
            lines: vec![Line {
                name: "delivered".to_owned(),
                points: vec![(0.0, 0.0), (10.0, 50.0)],
            }],
            bars: vec![Bar {
                row: "broker",
                label: "killed".to_owned(),
                from: 2.0,
                until: 4.0,
            }],
        }
        .svg();
        for part in [
            "a &lt; b",
            ">delivered<",
            ">broker<",
            "<title>killed</title>",
            "980.0,40.0",
        ] {
            assert!(svg.contains(part), "{part} in {svg}");
        }
    }
}
