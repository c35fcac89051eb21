//! A finished picture: SVG text, and PNG made from that very text.
//!
//! One law: there is one drawing; every format shows it.

use super::font::FONTS;
use resvg::{tiny_skia, usvg};
use std::path::{Path, PathBuf};

/// A picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    svg: String,
    width: u32,
    height: u32,
}

/// Why a picture cannot be had in the form asked for.
#[derive(Debug, thiserror::Error)]
pub enum PictureError {
    /// The file name does not say which format.
    #[error("`{}` names no picture format; end it in .svg or .png", .0.display())]
    Extension(PathBuf),
    /// The scale gives no bitmap, or one beyond 100 million pixels.
    #[error("a {width} x {height} picture cannot be drawn at scale {scale}; use a scale between 0.1 and 4")]
    Scale {
        /// Width of the picture \[px\].
        width: u32,
        /// Height of the picture \[px\].
        height: u32,
        /// The scale asked for.
        scale: f64,
    },
    /// The drawing cannot be turned into a bitmap: a fault of this program.
    #[error("the drawing cannot be turned into PNG: {0}")]
    Raster(String),
}

/// Most pixels of a PNG: 400 MB while it is drawn.
const MAX_PIXELS: f64 = 1e8;

/// Scale at which [`Picture::encode`] writes PNG: sharp on a dense screen.
const SAVED_SCALE: f64 = 2.0;

impl Picture {
    /// A picture from its parts.
    pub(super) fn new(svg: String, width: u32, height: u32) -> Self {
        Self { svg, width, height }
    }

    /// The SVG text.
    pub fn svg(&self) -> &str {
        &self.svg
    }

    /// Width and height \[px\] at scale 1.
    pub fn size(&self) -> (u32, u32) {
        (self.width, self.height)
    }

    /// The PNG file at `scale` pixels per pixel of the SVG.
    ///
    /// # Errors
    /// The scale is not positive or asks for more than 100 million pixels.
    pub fn png(&self, scale: f64) -> Result<Vec<u8>, PictureError> {
        let [width, height] = [self.width, self.height].map(|side| (f64::from(side) * scale).round());
        let refused = || PictureError::Scale { width: self.width, height: self.height, scale };
        if !(width >= 1.0 && height >= 1.0 && width * height <= MAX_PIXELS) {
            return Err(refused());
        }
        let options = usvg::Options { fontdb: FONTS.clone(), ..usvg::Options::default() };
        let tree =
            usvg::Tree::from_str(&self.svg, &options).map_err(|error| PictureError::Raster(error.to_string()))?;
        let mut pixmap = tiny_skia::Pixmap::new(width as u32, height as u32).ok_or_else(refused)?;
        let transform = tiny_skia::Transform::from_scale(scale as f32, scale as f32);
        resvg::render(&tree, transform, &mut pixmap.as_mut());
        pixmap.encode_png().map_err(|error| PictureError::Raster(error.to_string()))
    }

    /// The bytes of a file called `path`: SVG or PNG, as its extension says.
    ///
    /// # Errors
    /// Another extension.
    pub fn encode(&self, path: &Path) -> Result<Vec<u8>, PictureError> {
        let extension = path.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase);
        match extension.as_deref() {
            Some("svg") => Ok(self.svg.clone().into_bytes()),
            Some("png") => self.png(SAVED_SCALE),
            _ => Err(PictureError::Extension(path.to_owned())),
        }
    }
}
