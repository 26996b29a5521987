//! PTX text: its syntax tree, and the parser that makes it.
//!
//! The parser knows PTX's syntax alone. It accepts any opcode with any modifiers and operands, and leaves the rest to who gives
//! them a meaning. The grammar is that of the chapters "Syntax" and "Directives" of NVIDIA's PTX ISA.

mod ast;
mod declaration;
mod lexer;
mod parser;
mod statement;
#[cfg(test)]
mod tests;

use thiserror::Error;

pub use ast::{
    Directives, Function, FunctionKind, Guard, Initializer, Instruction, Module, Operand, ScalarType, StateSpace,
    Statement, Variable,
};

/// Where text stops being PTX.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("PTX line {line}, column {column}: found {found}, expected {expected}")]
pub struct ParseError {
    /// Line, counted from 1.
    pub line: u32,
    /// Column in characters, counted from 1.
    pub column: u32,
    /// What is there.
    pub found: String,
    /// What could have been there.
    pub expected: String,
}

/// Parses a module.
///
/// Not read, and refused: lists of call targets, constant expressions beyond a sign and sums behind a name, texture and sampler
/// variables, `.alias`.
///
/// # Errors
/// The first place where `source` is no PTX.
pub fn parse(source: &str) -> Result<Module, ParseError> {
    parser::parse(source)
}
