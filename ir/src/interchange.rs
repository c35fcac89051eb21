//! Forms in which orders and schedules go to other tools and come back: CSV, JSON, DOT.
//!
//! One law: text in, values out, and back; no file system. Whatever a text says, reading it never panics and never
//! takes more memory than a legal plan.

pub mod csv;
pub mod dot;
pub mod json;
