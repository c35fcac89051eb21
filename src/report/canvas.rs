//! A sheet to draw on: shapes in pixels, painted in the order they came, written by plotters as SVG.
//!
//! One law: the only place that knows plotters. Its backend takes whole numbers, so the drawing is made in tenths of a
//! pixel and the viewport scales it.

use super::colour::WHITE;
use super::font::{CAP_HEIGHT, FAMILIES};
use super::picture::Picture;
use plotters::backend::{DrawingBackend, SVGBackend};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontDesc, FontFamily, FontStyle, RGBColor, ShapeStyle, TextStyle};

/// Drawing units a pixel.
const FINE: f64 = 10.0;

/// plotters divides a font's size by this before it writes it.
const PLOTTERS_FONT_SCALE: f64 = 1.24;

/// Where the top of a text lies above its baseline, in font sizes, as plotters writes it.
const PLOTTERS_TOP: f64 = 0.76;

/// A point [px] from the upper left corner.
pub(super) type Point = (f64, f64);

/// How a text is set.
#[derive(Clone, Copy)]
pub(super) struct Type {
    /// Font size [px].
    pub(super) size: f64,
    pub(super) bold: bool,
    pub(super) colour: RGBColor,
    /// Which point of the text its position gives.
    pub(super) anchor: HPos,
}

enum Shape {
    Rect(Point, Point, RGBColor),
    Path(Vec<Point>, f64, RGBColor),
    Polygon(Vec<Point>, RGBColor),
    Dot(Point, f64, RGBColor),
    Text(Point, String, Type),
}

/// The sheet.
pub(super) struct Canvas {
    shapes: Vec<Shape>,
}

impl Canvas {
    /// A sheet without an edge; its size comes last, when all is drawn.
    pub(super) fn new() -> Self {
        Self { shapes: Vec::new() }
    }

    /// A filled rectangle.
    pub(super) fn rect(&mut self, from: Point, to: Point, colour: RGBColor) {
        self.shapes.push(Shape::Rect(from, to, colour));
    }

    /// A line through points.
    pub(super) fn path(&mut self, points: Vec<Point>, width: f64, colour: RGBColor) {
        self.shapes.push(Shape::Path(points, width, colour));
    }

    /// A filled polygon.
    pub(super) fn polygon(&mut self, points: Vec<Point>, colour: RGBColor) {
        self.shapes.push(Shape::Polygon(points, colour));
    }

    /// A filled circle.
    pub(super) fn dot(&mut self, centre: Point, radius: f64, colour: RGBColor) {
        self.shapes.push(Shape::Dot(centre, radius, colour));
    }

    /// A text on a baseline.
    pub(super) fn text(&mut self, at: Point, text: impl Into<String>, set: Type) {
        self.shapes.push(Shape::Text(at, text.into(), set));
    }

    /// A text whose capital letters are centred on the height `at.1`.
    pub(super) fn text_middle(&mut self, at: Point, text: impl Into<String>, set: Type) {
        self.text((at.0, at.1 + set.size * CAP_HEIGHT / 2.0), text, set);
    }

    /// The picture: a white sheet of this size [px], with the shapes on it.
    pub(super) fn finish(self, width: f64, height: f64) -> Picture {
        let [width, height] = [width, height].map(|side| side.ceil().max(1.0));
        let [wide, high] = [width, height].map(|side| (side * FINE) as u32);
        let mut svg = String::new();
        {
            let mut backend = SVGBackend::with_string(&mut svg, (wide, high));
            paint(&mut backend, &Shape::Rect((0.0, 0.0), (width, height), WHITE));
            for shape in &self.shapes {
                paint(&mut backend, shape);
            }
            // Writing to a string cannot fail.
            let _ = backend.present();
        }
        let fine = format!("width=\"{wide}\" height=\"{high}\"");
        let svg = svg.replacen(&fine, &format!("width=\"{width}\" height=\"{height}\""), 1);
        // Defaults that plotters spells out; quotes in texts are escaped, so this meets attributes alone.
        let svg = svg.replace(" opacity=\"1\"", "").replace(" stroke=\"none\"", "").replace(" \"/>", "\"/>");
        Picture::new(svg, width as u32, height as u32)
    }
}

fn fine(point: Point) -> (i32, i32) {
    ((point.0 * FINE).round() as i32, (point.1 * FINE).round() as i32)
}

fn style(colour: RGBColor, width: f64) -> ShapeStyle {
    ShapeStyle { color: colour.into(), filled: true, stroke_width: (width * FINE).round() as u32 }
}

fn paint(backend: &mut SVGBackend<'_>, shape: &Shape) {
    // Writing to a string cannot fail.
    let _ = match shape {
        Shape::Rect(from, to, colour) => backend.draw_rect(fine(*from), fine(*to), &style(*colour, 0.0), true),
        Shape::Path(points, width, colour) => {
            backend.draw_path(points.iter().copied().map(fine), &style(*colour, *width))
        }
        Shape::Polygon(points, colour) => backend.fill_polygon(points.iter().copied().map(fine), &style(*colour, 0.0)),
        Shape::Dot(centre, radius, colour) => {
            backend.draw_circle(fine(*centre), (radius * FINE) as u32, &style(*colour, 0.0), true)
        }
        Shape::Text(at, text, set) => {
            let size = (set.size * FINE).round();
            let weight = if set.bold { FontStyle::Bold } else { FontStyle::Normal };
            let text_style = TextStyle {
                font: FontDesc::new(FontFamily::Name(FAMILIES), size * PLOTTERS_FONT_SCALE, weight),
                color: set.colour.to_backend_color(),
                pos: Pos::new(set.anchor, VPos::Top),
            };
            backend.draw_text(text, &text_style, fine((at.0, at.1 - set.size * PLOTTERS_TOP)))
        }
    };
}
