//! The backend as its users see it.

mod cases;
mod conformance;
mod golden;
mod invariance;
mod support;
