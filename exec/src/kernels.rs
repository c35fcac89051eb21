#![allow(missing_docs)]
//! The operations of a transformer on plain tensors, forward and backward.
pub mod activation;
pub mod attention;
pub mod dropout;
pub mod embedding;
pub mod linear;
pub mod loss;
pub mod norm;
pub mod optimizer;
pub mod residual;
pub mod rope;
