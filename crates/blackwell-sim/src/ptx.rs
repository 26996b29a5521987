//! PTX text: its syntax tree.

mod ast;

pub use ast::{
    Directives, Function, FunctionKind, Guard, Initializer, Instruction, Module, Operand, ScalarType, StateSpace,
    Statement, Variable,
};
