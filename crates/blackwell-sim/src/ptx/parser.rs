//! From tokens to a module: directives, functions, and the steps that all of the parser is made of.

use super::ast::{Directives, Function, FunctionKind, Module};
use super::lexer::{Token, TokenKind, tokens};
use super::{ParseError, declaration::Linkage};

/// Blocks and operands may nest this deep; compilers stay far below it.
const MAX_DEPTH: u32 = 128;

/// A position in the text's tokens.
pub(super) struct Parser<'a> {
    tokens: Vec<Token<'a>>,
    position: usize,
    depth: u32,
}

/// See [`super::parse`].
pub(super) fn parse(source: &str) -> Result<Module, ParseError> {
    Parser { tokens: tokens(source)?, position: 0, depth: 0 }.module()
}

/// Steps.
impl<'a> Parser<'a> {
    /// The token `ahead` of the next one; the end of the text, however far.
    pub(super) fn peek(&self, ahead: usize) -> Token<'a> {
        let end = Token { kind: TokenKind::End, text: "", line: 1, column: 1 };
        self.tokens.get(self.position + ahead).or(self.tokens.last()).copied().unwrap_or(end)
    }

    /// What the next token is.
    pub(super) fn kind(&self) -> TokenKind<'a> {
        self.peek(0).kind
    }

    pub(super) fn advance(&mut self) -> Token<'a> {
        let token = self.peek(0);
        self.position += 1;
        token
    }

    /// The error that the next token is not what was expected.
    pub(super) fn error(&self, expected: &str) -> ParseError {
        let Token { kind, text, line, column } = self.peek(0);
        let found = if kind == TokenKind::End { "the end of the text".to_owned() } else { format!("`{text}`") };
        ParseError { line, column, found, expected: expected.to_owned() }
    }

    /// Takes the symbol if it is next.
    pub(super) fn accept(&mut self, symbol: char) -> bool {
        let is_next = self.kind() == TokenKind::Symbol(symbol);
        self.position += usize::from(is_next);
        is_next
    }

    /// Takes the directive if it is next.
    pub(super) fn accept_dotted(&mut self, word: &str) -> bool {
        let is_next = self.kind() == TokenKind::Dotted(word);
        self.position += usize::from(is_next);
        is_next
    }

    pub(super) fn expect(&mut self, symbol: char) -> Result<(), ParseError> {
        if self.accept(symbol) { Ok(()) } else { Err(self.error(&format!("`{symbol}`"))) }
    }

    /// Takes a name; `what` tells of it in an error.
    pub(super) fn name(&mut self, what: &str) -> Result<String, ParseError> {
        match self.kind() {
            TokenKind::Name(name) => {
                self.advance();
                Ok(name.to_owned())
            }
            _ => Err(self.error(what)),
        }
    }

    pub(super) fn unsigned(&mut self, what: &str) -> Result<u64, ParseError> {
        match self.kind() {
            TokenKind::Integer(value) => {
                self.advance();
                Ok(value)
            }
            _ => Err(self.error(what)),
        }
    }

    pub(super) fn unsigned32(&mut self, what: &str) -> Result<u32, ParseError> {
        let error = self.error(&format!("{what}, of at most 32 bits"));
        u32::try_from(self.unsigned(what)?).map_err(|_| error)
    }

    /// Items with commas between them up to `close`, which is taken; there may be none.
    pub(super) fn list<T>(
        &mut self,
        close: char,
        mut item: impl FnMut(&mut Self) -> Result<T, ParseError>,
    ) -> Result<Vec<T>, ParseError> {
        let mut items = Vec::new();
        if self.accept(close) {
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if self.accept(close) {
                return Ok(items);
            }
            if !self.accept(',') {
                return Err(self.error(&format!("`,` or `{close}`")));
            }
        }
    }

    /// Runs `inner` one level deeper, so that no text can exhaust the stack.
    pub(super) fn nested<T>(
        &mut self,
        inner: impl FnOnce(&mut Self) -> Result<T, ParseError>,
    ) -> Result<T, ParseError> {
        if self.depth == MAX_DEPTH {
            return Err(self.error(&format!("at most {MAX_DEPTH} nested braces and brackets")));
        }
        self.depth += 1;
        let result = inner(self);
        self.depth -= 1;
        result
    }

    /// Skips the rest of the line that the token before the next one stands on: `.file`, `.loc` and their like end there.
    pub(super) fn skip_line(&mut self, line: u32) {
        while self.kind() != TokenKind::End && self.peek(0).line == line {
            self.advance();
        }
    }

    /// Skips `.pragma "…";`, whose keyword was taken.
    pub(super) fn skip_pragma(&mut self) -> Result<(), ParseError> {
        self.list(';', |parser| match parser.kind() {
            TokenKind::Text(_) => {
                parser.advance();
                Ok(())
            }
            _ => Err(parser.error("a string")),
        })?;
        Ok(())
    }
}

/// Module and functions.
impl Parser<'_> {
    fn module(&mut self) -> Result<Module, ParseError> {
        if !self.accept_dotted("version") {
            return Err(self.error("`.version`, with which PTX begins"));
        }
        let version = self.version()?;
        if !self.accept_dotted("target") {
            return Err(self.error("`.target`"));
        }
        let target = self.name("an architecture")?;
        let mut target_options = Vec::new();
        while self.accept(',') {
            target_options.push(self.name("an option of `.target`")?);
        }
        let address_size = match self.accept_dotted("address_size") {
            true => self.unsigned32("32 or 64")?,
            false => 32,
        };
        let (variables, functions) = (Vec::new(), Vec::new());
        let mut module = Module { version, target, target_options, address_size, variables, functions };
        while self.kind() != TokenKind::End {
            self.module_item(&mut module)?;
        }
        Ok(module)
    }

    fn version(&mut self) -> Result<(u32, u32), ParseError> {
        let error = self.error("a version as `9.0`");
        let TokenKind::Decimal(text) = self.advance().kind else { return Err(error) };
        let numbers =
            text.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        numbers.ok_or(error)
    }

    fn module_item(&mut self, module: &mut Module) -> Result<(), ParseError> {
        let line = self.peek(0).line;
        match self.kind() {
            TokenKind::Dotted("pragma") => {
                self.advance();
                return self.skip_pragma();
            }
            TokenKind::Dotted("file") => {
                self.skip_line(line);
                return Ok(());
            }
            TokenKind::Dotted("section") => {
                self.advance();
                return self.skip_section();
            }
            _ => {}
        }
        let linkage = self.linkage();
        if self.accept_dotted("entry") {
            let function = self.function(FunctionKind::Entry, line)?;
            module.functions.push(function);
        } else if self.accept_dotted("func") {
            let function = self.function(FunctionKind::Device, line)?;
            module.functions.push(function);
        } else if self.at_variable() {
            self.variables(linkage == Linkage::Extern, &mut module.variables)?;
        } else {
            return Err(self.error("`.entry`, `.func`, a variable or another directive of a module"));
        }
        Ok(())
    }

    /// Skips a section of debug information, from its name on.
    fn skip_section(&mut self) -> Result<(), ParseError> {
        self.advance();
        self.expect('{')?;
        while !self.accept('}') {
            if self.kind() == TokenKind::End {
                return Err(self.error("`}` at the end of the section"));
            }
            self.advance();
        }
        Ok(())
    }

    /// What follows `.entry` or `.func`.
    fn function(&mut self, kind: FunctionKind, line: u32) -> Result<Function, ParseError> {
        let noreturn = self.accept_dotted("noreturn");
        let returns = match kind == FunctionKind::Device && self.accept('(') {
            true => self.list(')', Self::parameter)?,
            false => Vec::new(),
        };
        let name = self.name("the function's name")?;
        let params = if self.accept('(') { self.list(')', Self::parameter)? } else { Vec::new() };
        let mut directives = self.directives()?;
        directives.noreturn |= noreturn;
        let body = match self.accept('{') {
            true => Some(self.block()?),
            false if self.accept(';') => None,
            false => return Err(self.error("`{`, `;` or a directive of the function")),
        };
        Ok(Function { name, kind, returns, params, directives, body, line })
    }

    fn directives(&mut self) -> Result<Directives, ParseError> {
        let mut directives = Directives::default();
        while let TokenKind::Dotted(word) = self.kind() {
            let line = self.peek(0).line;
            match word {
                "loc" => {
                    self.skip_line(line);
                    continue;
                }
                "reqntid" | "maxntid" | "minnctapersm" | "maxnctapersm" | "maxnreg" | "reqnctapercluster"
                | "maxclusterrank" | "explicitcluster" | "blocksareclusters" | "noreturn" | "pragma" => {}
                _ => return Err(self.error("`{`, `;` or a directive of the function")),
            }
            self.advance();
            match word {
                "reqntid" => directives.reqntid = Some(self.extent()?),
                "maxntid" => directives.maxntid = Some(self.extent()?),
                "reqnctapercluster" => directives.reqnctapercluster = Some(self.extent()?),
                // The older name of the same thing.
                "minnctapersm" | "maxnctapersm" => {
                    directives.minnctapersm = Some(self.unsigned32("a number of CTAs")?);
                }
                "maxnreg" => directives.maxnreg = Some(self.unsigned32("a number of registers")?),
                "maxclusterrank" => directives.maxclusterrank = Some(self.unsigned32("a number of CTAs")?),
                "explicitcluster" => directives.explicitcluster = true,
                "blocksareclusters" => directives.blocksareclusters = true,
                "noreturn" => directives.noreturn = true,
                _ => self.skip_pragma()?,
            }
        }
        Ok(directives)
    }

    /// One to three sizes; those left out are 1.
    fn extent(&mut self) -> Result<[u32; 3], ParseError> {
        let mut extent = [self.unsigned32("a size")?, 1, 1];
        for size in &mut extent[1..] {
            if !self.accept(',') {
                break;
            }
            *size = self.unsigned32("a size")?;
        }
        Ok(extent)
    }
}
