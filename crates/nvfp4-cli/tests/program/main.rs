//! The real program, run as a user runs it.
#![allow(clippy::unwrap_used)]

mod bench;
mod convert;
mod demo;
mod doctor;
mod explain;
mod failures;
mod inspect;
mod model;
mod quantize;
mod run;
mod terminal;
mod verify;
