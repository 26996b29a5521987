//! Variables, parameters and registers.

use super::ParseError;
use super::ast::{Initializer, ScalarType, StateSpace, Statement, Variable};
use super::lexer::TokenKind;
use super::parser::Parser;

/// Who else sees a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Linkage {
    /// Defined elsewhere.
    Extern,
    /// Defined here: `.visible`, `.weak`, `.common`, or for this module alone.
    Here,
}

/// The state space of this directive.
fn space(word: &str) -> Option<StateSpace> {
    Some(match word {
        "param" => StateSpace::Param,
        "shared" => StateSpace::Shared,
        "global" => StateSpace::Global,
        "const" => StateSpace::Const,
        "local" => StateSpace::Local,
        "reg" => StateSpace::Reg,
        _ => return None,
    })
}

/// What stands before a variable's name.
#[derive(Clone, Copy)]
struct Head {
    space: StateSpace,
    ty: ScalarType,
    vector: u32,
    align: u64,
}

impl Parser<'_> {
    /// Takes linkage directives.
    pub(super) fn linkage(&mut self) -> Linkage {
        let mut linkage = Linkage::Here;
        loop {
            match self.kind() {
                TokenKind::Dotted("extern") => linkage = Linkage::Extern,
                TokenKind::Dotted("visible" | "weak" | "common") => {}
                _ => return linkage,
            }
            self.advance();
        }
    }

    /// Whether a variable, parameter or register declaration is next.
    pub(super) fn at_variable(&self) -> bool {
        matches!(self.kind(), TokenKind::Dotted(word) if space(word).is_some())
    }

    /// A declaration up to its `;`.
    pub(super) fn variables(&mut self, is_extern: bool, variables: &mut Vec<Variable>) -> Result<(), ParseError> {
        let head = self.head()?;
        loop {
            let mut variable = self.declarator(head, is_extern)?;
            if self.accept('=') {
                self.initializer(&mut variable.initial)?;
            }
            // `a[] = {1, 2}` has as many elements as values.
            if variable.array == Some(0) && !variable.initial.is_empty() {
                variable.array = Some(variable.initial.len() as u64);
            }
            variables.push(variable);
            if self.accept(';') {
                return Ok(());
            }
            if !self.accept(',') {
                return Err(self.error("`,` or `;`"));
            }
        }
    }

    /// A variable declaration in a body, registers included.
    pub(super) fn local_declaration(&mut self, statements: &mut Vec<Statement>) -> Result<(), ParseError> {
        let linkage = self.linkage();
        if !self.at_variable() {
            return Err(self.error("a state space"));
        }
        if self.kind() != TokenKind::Dotted("reg") {
            let mut variables = Vec::new();
            self.variables(linkage == Linkage::Extern, &mut variables)?;
            statements.extend(variables.into_iter().map(Statement::Variable));
            return Ok(());
        }
        let head = self.head()?;
        loop {
            if head.vector > 1 {
                statements.push(Statement::Variable(self.declarator(head, false)?));
            } else {
                let prefix = self.name("a register's name")?;
                let mut count = None;
                if self.accept('<') {
                    count = Some(self.unsigned32("the number of registers")?);
                    self.expect('>')?;
                }
                statements.push(Statement::Registers { ty: head.ty, prefix, count });
            }
            if self.accept(';') {
                return Ok(());
            }
            if !self.accept(',') {
                return Err(self.error("`,`, `;` or `<` and the number of registers"));
            }
        }
    }

    /// A parameter or return value.
    pub(super) fn parameter(&mut self) -> Result<Variable, ParseError> {
        if !self.at_variable() {
            return Err(self.error("`.param` or `.reg`"));
        }
        let head = self.head()?;
        self.declarator(head, false)
    }

    /// State space, alignment and type, in any order but the first.
    fn head(&mut self) -> Result<Head, ParseError> {
        let space = match self.kind() {
            TokenKind::Dotted(word) => space(word),
            _ => None,
        };
        let space = space.ok_or_else(|| self.error("a state space"))?;
        self.advance();
        let (mut ty, mut vector, mut align, mut points) = (None, 1, 0, false);
        while let TokenKind::Dotted(word) = self.kind() {
            match (word, ScalarType::from_name(word)) {
                (_, Some(named)) if ty.is_none() => ty = Some(named),
                ("v2", _) => vector = 2,
                ("v4", _) => vector = 4,
                ("align", _) => {
                    self.advance();
                    let bytes = self.unsigned("an alignment in bytes")?;
                    // Behind `.ptr` it is the alignment of what the parameter points to.
                    if !points {
                        align = bytes;
                    }
                    continue;
                }
                ("ptr", _) => points = true,
                ("global" | "shared" | "const" | "local" | "param", _) if points => {}
                // Where a managed variable lies does not show.
                ("attribute", _) => {
                    self.advance();
                    self.skip_attributes()?;
                    continue;
                }
                _ => return Err(self.error("a type, `.align` or a name")),
            }
            self.advance();
        }
        let ty = ty.ok_or_else(|| self.error("a type"))?;
        Ok(Head { space, ty, vector, align })
    }

    /// Skips `(.managed)` and its like.
    fn skip_attributes(&mut self) -> Result<(), ParseError> {
        self.expect('(')?;
        while !self.accept(')') {
            if self.kind() == TokenKind::End {
                return Err(self.error("`)`"));
            }
            self.advance();
        }
        Ok(())
    }

    /// A name and its dimensions.
    fn declarator(&mut self, head: Head, is_extern: bool) -> Result<Variable, ParseError> {
        let name = self.name("a variable's name")?;
        let mut array: Option<u64> = None;
        while self.accept('[') {
            let error = self.error("an array of less than 2^64 elements");
            let size =
                if self.kind() == TokenKind::Symbol(']') { 0 } else { self.unsigned("a number of elements")? };
            self.expect(']')?;
            array = Some(array.unwrap_or(1).checked_mul(size).ok_or(error)?);
        }
        let Head { space, ty, vector, align } = head;
        Ok(Variable { space, ty, vector, align, name, array, is_extern, initial: Vec::new() })
    }

    /// A value, or values in braces.
    fn initializer(&mut self, values: &mut Vec<Initializer>) -> Result<(), ParseError> {
        if self.accept('{') {
            self.nested(|parser| parser.list('}', |parser| parser.initializer(values)))?;
            return Ok(());
        }
        let value = match self.kind() {
            TokenKind::Name("generic") => {
                self.advance();
                self.expect('(')?;
                let (name, inner) = self.symbol_and_offset()?;
                self.expect(')')?;
                let error = self.error("an offset of 64 bits");
                let offset = inner.checked_add(self.offset()?).ok_or(error)?;
                Initializer::Address { name, offset, generic: true }
            }
            TokenKind::Name(_) => {
                let (name, offset) = self.symbol_and_offset()?;
                Initializer::Address { name, offset, generic: false }
            }
            _ => self.literal("an initial value")?,
        };
        values.push(value);
        Ok(())
    }

    fn symbol_and_offset(&mut self) -> Result<(String, i64), ParseError> {
        let name = self.name("a name")?;
        Ok((name, self.offset()?))
    }
}
