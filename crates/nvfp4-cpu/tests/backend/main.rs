//! The backend as its users see it.
#![allow(clippy::unwrap_used)]

mod cases;
mod golden;
mod invariance;
mod support;
