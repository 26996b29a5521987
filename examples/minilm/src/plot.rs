//! A plot of similarities, as SVG.

use std::fmt::Write;

const SIZE: f64 = 300.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 40.0;
const GAP: f64 = 40.0;
/// Similarities from here to 1.
const LOW: f64 = -0.25;

/// One panel for each of `series`: its similarities against `reference`, which has the same pairs.
pub(crate) fn scatter(reference: &[f64], series: &[(&str, Vec<f64>)]) -> String {
    let width = LEFT + series.len() as f64 * (SIZE + GAP);
    let height = TOP + SIZE + 56.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\" fill=\"#777\" text-anchor=\"middle\">\n"
    );
    for (number, (name, found)) in series.iter().enumerate() {
        let left = LEFT + number as f64 * (SIZE + GAP);
        let x = |value: f64| left + SIZE * (value - LOW) / (1.0 - LOW);
        let y = |value: f64| TOP + SIZE * (1.0 - (value - LOW) / (1.0 - LOW));
        let mut line = |text: String| {
            svg.push_str(&text);
            svg.push('\n');
        };
        line(format!(
            "<g stroke=\"#999\" stroke-opacity=\".35\"><rect x=\"{left}\" y=\"{TOP}\" width=\"{SIZE}\" height=\"{SIZE}\" fill=\"none\"/>"
        ));
        for tick in [0.0, 0.25, 0.5, 0.75] {
            let (tx, ty) = (x(tick), y(tick));
            line(format!("<path d=\"M{tx:.1} {TOP}v{SIZE}M{left} {ty:.1}h{SIZE}\"/>"));
        }
        line(format!(
            "<path d=\"M{:.1} {:.1}L{:.1} {:.1}\" stroke-dasharray=\"4 3\"/></g>",
            x(LOW),
            y(LOW),
            x(1.0),
            y(1.0)
        ));
        for tick in [0.0, 0.25, 0.5, 0.75, 1.0] {
            line(format!("<text x=\"{:.1}\" y=\"{:.1}\">{tick}</text>", x(tick), TOP + SIZE + 16.0));
            if number == 0 {
                line(format!(
                    "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{tick}</text>",
                    left - 6.0,
                    y(tick) + 4.0
                ));
            }
        }
        let mut points = String::new();
        for (&expected, &found) in reference.iter().zip(found) {
            // Writing to a string cannot fail.
            let _ = write!(points, "M{:.1} {:.1}h0", x(expected), y(found));
        }
        line(format!(
            "<path d=\"{points}\" stroke=\"#2a78c8\" stroke-opacity=\".55\" stroke-width=\"4\" stroke-linecap=\"round\" fill=\"none\"/>"
        ));
        let middle = left + SIZE / 2.0;
        line(format!("<text x=\"{middle}\" y=\"{:.1}\" font-size=\"14\">{name}</text>", TOP - 14.0));
        line(format!("<text x=\"{middle}\" y=\"{:.1}\">similarity of a pair in f32</text>", TOP + SIZE + 38.0));
    }
    let middle = TOP + SIZE / 2.0;
    let _ = writeln!(
        svg,
        "<text transform=\"translate(18 {middle}) rotate(-90)\">similarity with NVFP4 layers</text>\n</svg>"
    );
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_is_a_point_in_its_panel() {
        let svg = scatter(&[0.0, 0.5, 1.0], &[("a", vec![0.0, 0.5, 1.0]), ("b", vec![0.1, 0.4, 0.9])]);
        assert_eq!(svg.matches("h0").count(), 6);
        assert!(svg.contains(">a</text>") && svg.contains(">b</text>") && svg.ends_with("</svg>\n"));
        // (1, 1) is the upper right corner of the first panel.
        assert!(svg.contains(&format!("M{:.1} {TOP:.1}h0", LEFT + SIZE)), "{svg}");
    }
}
