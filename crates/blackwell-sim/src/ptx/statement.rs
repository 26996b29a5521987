//! Bodies: statements, instructions and their operands.

use super::ParseError;
use super::ast::{Guard, Initializer, Instruction, Operand, Statement};
use super::lexer::TokenKind;
use super::parser::Parser;

impl Parser<'_> {
    /// Statements up to `}`, which is taken.
    pub(super) fn block(&mut self) -> Result<Vec<Statement>, ParseError> {
        self.nested(|parser| {
            let mut statements = Vec::new();
            while !parser.accept('}') {
                parser.statement(&mut statements)?;
            }
            Ok(statements)
        })
    }

    fn statement(&mut self, statements: &mut Vec<Statement>) -> Result<(), ParseError> {
        let line = self.peek(0).line;
        match self.kind() {
            TokenKind::Symbol('{') => {
                self.advance();
                let block = self.block()?;
                statements.push(Statement::Block(block));
            }
            // An empty statement.
            TokenKind::Symbol(';') => {
                self.advance();
            }
            TokenKind::Dotted("pragma") => {
                self.advance();
                self.skip_pragma()?;
            }
            TokenKind::Dotted("loc" | "file") => self.skip_line(line),
            TokenKind::Dotted(_) => self.local_declaration(statements)?,
            TokenKind::Name(label) if self.peek(1).kind == TokenKind::Symbol(':') => {
                self.advance();
                self.advance();
                statements.push(self.labelled(label.to_owned(), line)?);
            }
            TokenKind::Name(_) | TokenKind::Symbol('@') => {
                let instruction = self.instruction()?;
                statements.push(Statement::Instruction(instruction));
            }
            _ => return Err(self.error("an instruction, a declaration, a label, `{` or `}`")),
        }
        Ok(())
    }

    /// What a label stands for: a place, a list of targets or a prototype.
    fn labelled(&mut self, label: String, line: u32) -> Result<Statement, ParseError> {
        if self.accept_dotted("branchtargets") {
            let targets = self.list(';', |parser| parser.name("a label"))?;
            return Ok(Statement::BranchTargets { label, targets });
        }
        if self.accept_dotted("callprototype") {
            let returns = if self.accept('(') { self.list(')', Self::parameter)? } else { Vec::new() };
            self.name("`_`")?;
            let params = if self.accept('(') { self.list(')', Self::parameter)? } else { Vec::new() };
            self.accept_dotted("noreturn");
            self.expect(';')?;
            return Ok(Statement::CallPrototype { label, returns, params });
        }
        if self.kind() == TokenKind::Dotted("calltargets") {
            return Err(self.error(
                "an instruction, `.branchtargets` or `.callprototype` (a list of call targets is not read)",
            ));
        }
        Ok(Statement::Label(label, line))
    }

    fn instruction(&mut self) -> Result<Instruction, ParseError> {
        let mut guard = None;
        if self.accept('@') {
            let negated = self.accept('!');
            guard = Some(Guard { register: self.name("a predicate")?, negated });
        }
        let line = self.peek(0).line;
        let opcode = self.name("an opcode")?;
        let mut modifiers = Vec::new();
        while let TokenKind::Dotted(modifier) = self.kind() {
            self.advance();
            modifiers.push(modifier.to_owned());
        }
        let operands = match opcode == "call" {
            true => vec![self.call()?],
            false => self.list(';', Self::operand)?,
        };
        Ok(Instruction { line, guard, opcode, modifiers, operands })
    }

    /// The operands of `call`, up to `;`: `(results), function, (arguments), prototype`.
    fn call(&mut self) -> Result<Operand, ParseError> {
        let mut returns = Vec::new();
        if self.accept('(') {
            returns = self.list(')', Self::operand)?;
            self.expect(',')?;
        }
        let function = Box::new(Operand::Name(self.name("a function")?));
        let (mut arguments, mut prototype) = (Vec::new(), None);
        if self.accept(',') {
            if self.accept('(') {
                arguments = self.list(')', Self::operand)?;
                if self.accept(',') {
                    prototype = Some(self.name("a prototype")?);
                }
            } else {
                prototype = Some(self.name("`(` or a prototype")?);
            }
        }
        self.expect(';')?;
        Ok(Operand::Call { returns, function, arguments, prototype })
    }

    /// An operand; `a|b` included.
    fn operand(&mut self) -> Result<Operand, ParseError> {
        let first = self.single_operand()?;
        if !self.accept('|') {
            return Ok(first);
        }
        let second = self.single_operand()?;
        Ok(Operand::Pair(Box::new(first), Box::new(second)))
    }

    fn single_operand(&mut self) -> Result<Operand, ParseError> {
        match self.kind() {
            TokenKind::Symbol('[') => {
                self.advance();
                self.nested(Self::address)
            }
            TokenKind::Symbol('{') => {
                self.advance();
                Ok(Operand::Vector(self.nested(|parser| parser.list('}', Self::operand))?))
            }
            TokenKind::Symbol('!') => {
                self.advance();
                Ok(Operand::Not(Box::new(self.nested(Self::single_operand)?)))
            }
            TokenKind::Name(_) => {
                let name = self.operand_name()?;
                self.with_offset(name)
            }
            _ => Ok(match self.literal("an operand")? {
                Initializer::Integer(value) => Operand::Integer(value),
                Initializer::Float32(bits) => Operand::Float32(bits),
                Initializer::Float64(bits) => Operand::Float64(bits),
                Initializer::Address { name, .. } => Operand::Name(name),
            }),
        }
    }

    /// A name with its parts: `%tid.x`.
    fn operand_name(&mut self) -> Result<Operand, ParseError> {
        let mut name = self.name("a name")?;
        while let TokenKind::Dotted(part) = self.kind() {
            self.advance();
            name.push('.');
            name.push_str(part);
        }
        Ok(Operand::Name(name))
    }

    /// `base`, or `base+offset`.
    fn with_offset(&mut self, base: Operand) -> Result<Operand, ParseError> {
        match self.kind() {
            TokenKind::Symbol('+' | '-') => {
                Ok(Operand::Address { base: Some(Box::new(base)), offset: self.offset()? })
            }
            _ => Ok(base),
        }
    }

    /// What follows `[`: an address up to `]`, or a tensor map and coordinates.
    fn address(&mut self) -> Result<Operand, ParseError> {
        if !matches!(self.kind(), TokenKind::Name(_)) {
            let error = self.error("an address of 64 bits");
            let Initializer::Integer(value) = self.literal("a register, variable or address")? else {
                return Err(error);
            };
            // Addresses above 2^63 wrap: only the 64 bits count.
            let offset =
                i64::try_from(value).or_else(|_| u64::try_from(value).map(u64::cast_signed)).map_err(|_| error)?;
            self.expect(']')?;
            return Ok(Operand::Address { base: None, offset });
        }
        let name = self.operand_name()?;
        let base = self.with_offset(name)?;
        if self.accept(',') {
            self.expect('{')?;
            let coordinates = self.nested(|parser| parser.list('}', Self::operand))?;
            self.expect(']')?;
            return Ok(Operand::TensorCoordinates { map: Box::new(base), coordinates });
        }
        if !self.accept(']') {
            return Err(self.error("`+`, `-`, `,` or `]`"));
        }
        Ok(match base {
            Operand::Address { .. } => base,
            base => Operand::Address { base: Some(Box::new(base)), offset: 0 },
        })
    }

    /// The sum of `+n`, `-n` and `+-n`; 0 if there is none.
    pub(super) fn offset(&mut self) -> Result<i64, ParseError> {
        let mut sum = 0_i64;
        loop {
            let negative = match self.kind() {
                TokenKind::Symbol('+') => false,
                TokenKind::Symbol('-') => true,
                _ => return Ok(sum),
            };
            self.advance();
            let negative = negative ^ self.accept('-');
            let error = self.error("an offset of 64 bits");
            let value = i128::from(self.unsigned("an offset")?);
            let value = i128::from(sum) + if negative { -value } else { value };
            sum = i64::try_from(value).map_err(|_| error)?;
        }
    }

    /// A number with its sign; `what` tells of it in an error.
    pub(super) fn literal(&mut self, what: &str) -> Result<Initializer, ParseError> {
        let negative = self.accept('-');
        if !negative {
            self.accept('+');
        }
        let value = match self.kind() {
            TokenKind::Integer(value) => {
                Initializer::Integer(if negative { -i128::from(value) } else { value.into() })
            }
            TokenKind::Float32(bits) => Initializer::Float32(bits ^ (u32::from(negative) << 31)),
            TokenKind::Float64(bits) => Initializer::Float64(bits ^ (u64::from(negative) << 63)),
            TokenKind::Decimal(text) => {
                let value: f64 = text.parse().map_err(|_| self.error("a decimal number"))?;
                Initializer::Float64(if negative { -value } else { value }.to_bits())
            }
            _ => return Err(self.error(what)),
        };
        self.advance();
        Ok(value)
    }
}
