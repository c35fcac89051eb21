//! Passes: each turns a program into a fuller one and keeps the law.
//!
//! One law: a pass is a function of its input alone; the order of what was there before stays.

mod accumulate;
mod add_data_reduction;
mod add_gradient_clipping;
mod add_gradient_reduction;
mod add_optimizer_step;
mod add_send_recv;
mod add_tensor_reduction;
mod add_tied_reduction;
mod behind_backward;

pub use accumulate::accumulate;
pub use add_data_reduction::{add_data_reduction, add_parameter_gather};
pub use add_gradient_clipping::add_gradient_clipping;
pub use add_gradient_reduction::add_gradient_reduction;
pub use add_optimizer_step::add_optimizer_step;
pub use add_send_recv::add_send_recv;
pub use add_tensor_reduction::add_tensor_reduction;
pub use add_tied_reduction::add_tied_reduction;
