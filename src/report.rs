//! What people see: pictures and traces, all functions of a schedule and a timeline.
//!
//! One law: a function of its [`Run`]s and nothing else, to the byte: no clock, no locale, no fonts of the machine.

pub mod accuracy;
mod axis;
mod canvas;
mod colour;
mod comparison;
pub mod explanation;
mod font;
mod gantt;
pub mod json;
mod legend;
mod live;
mod memory_plot;
pub mod pareto;
mod picture;
mod rows;
mod run;
pub mod step;
pub mod step_plot;
pub mod table;
mod text;
mod trace;

pub use comparison::{comparison, predicted_against_measured};
pub use gantt::gantt;
pub use memory_plot::{memory, memory_against};
pub use pareto::pareto;
pub use picture::{Picture, PictureError};
pub use run::{Run, TimeUnit};
pub use trace::trace;
