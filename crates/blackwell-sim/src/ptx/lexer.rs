//! From PTX text to tokens.

use super::ParseError;

/// What a token is. Text is borrowed from the source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum TokenKind<'a> {
    /// A name: opcode, register, label, `_`.
    Name(&'a str),
    /// A directive or modifier, without its dot. `shared::cta` is one.
    Dotted(&'a str),
    /// An integer literal.
    Integer(u64),
    /// `0f…`.
    Float32(u32),
    /// `0d…`.
    Float64(u64),
    /// A literal with a decimal point or an exponent.
    Decimal(&'a str),
    /// A string, without its quotes.
    Text(&'a str),
    /// Any other character.
    Symbol(char),
    /// The end of the text.
    End,
}

/// A token and where it begins: line and column, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Token<'a> {
    pub(super) kind: TokenKind<'a>,
    /// As it is written.
    pub(super) text: &'a str,
    pub(super) line: u32,
    pub(super) column: u32,
}

/// Splits `source` into tokens; the last one is [`TokenKind::End`].
pub(super) fn tokens(source: &str) -> Result<Vec<Token<'_>>, ParseError> {
    let mut lexer = Lexer { rest: source, line: 1, column: 1 };
    let mut tokens = Vec::new();
    loop {
        let token = lexer.token()?;
        tokens.push(token);
        if token.kind == TokenKind::End {
            return Ok(tokens);
        }
    }
}

struct Lexer<'a> {
    rest: &'a str,
    line: u32,
    column: u32,
}

fn is_name_part(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '$'
}

impl<'a> Lexer<'a> {
    /// Takes the next `length` bytes, which must end between characters.
    fn take(&mut self, length: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(length);
        self.rest = rest;
        for c in taken.chars() {
            if c == '\n' {
                self.line += 1;
                self.column = 1;
            } else {
                self.column += 1;
            }
        }
        taken
    }

    /// Bytes of the text's beginning whose characters all satisfy `accept`.
    fn span(&self, accept: impl Fn(char) -> bool) -> usize {
        self.rest.find(|c| !accept(c)).unwrap_or(self.rest.len())
    }

    fn error(&self, found: impl Into<String>, expected: &str) -> ParseError {
        ParseError { line: self.line, column: self.column, found: found.into(), expected: expected.to_owned() }
    }

    /// Skips white space and comments.
    fn skip_blank(&mut self) -> Result<(), ParseError> {
        loop {
            let length = if self.rest.starts_with(char::is_whitespace) {
                self.span(char::is_whitespace)
            } else if self.rest.starts_with("//") {
                self.span(|c| c != '\n')
            } else if let Some(comment) = self.rest.strip_prefix("/*") {
                let end = comment.find("*/");
                end.ok_or_else(|| self.error("a comment without an end", "`*/`"))? + 4
            } else {
                return Ok(());
            };
            self.take(length);
        }
    }

    fn token(&mut self) -> Result<Token<'a>, ParseError> {
        self.skip_blank()?;
        let (start, line, column) = (self.rest, self.line, self.column);
        let kind = match start.chars().next() {
            None => TokenKind::End,
            Some('"') => {
                let end = start[1..].find(['"', '\n']).filter(|&end| start[1 + end..].starts_with('"'));
                let end = end.ok_or_else(|| self.error("a string without an end", "`\"` on the same line"))?;
                TokenKind::Text(&self.take(end + 2)[1..=end])
            }
            Some(c) if c.is_ascii_digit() => self.number()?,
            Some(c) if is_name_part(c) || c == '%' => {
                let length = 1 + start[1..].find(|c| !is_name_part(c)).unwrap_or(start.len() - 1);
                TokenKind::Name(self.take(length))
            }
            Some('.') if start[1..].starts_with(is_name_part) => TokenKind::Dotted(self.dotted()),
            Some(c) => {
                self.take(c.len_utf8());
                TokenKind::Symbol(c)
            }
        };
        let text = &start[..start.len() - self.rest.len()];
        Ok(Token { kind, text, line, column })
    }

    /// A dot and words with `::` between them. The words may begin with a digit: `.128x256b`, `.scale_vec::4X`.
    fn dotted(&mut self) -> &'a str {
        let mut length = 1;
        loop {
            let rest = &self.rest[length..];
            length += rest.find(|c| !is_name_part(c)).unwrap_or(rest.len());
            match self.rest[length..].strip_prefix("::") {
                Some(rest) if rest.starts_with(is_name_part) => length += 2,
                _ => return &self.take(length)[1..],
            }
        }
    }

    /// A number: hexadecimal, octal, binary or decimal integer with an optional `U`, `0f` or `0d` and the bits, or decimal fraction.
    fn number(&mut self) -> Result<TokenKind<'a>, ParseError> {
        let word = &self.rest[..self.span(|c| c.is_ascii_alphanumeric())];
        let digits = self.span(|c| c.is_ascii_digit());
        let exponent = word[digits..].strip_prefix(['e', 'E']);
        if self.rest[digits..].starts_with('.') || exponent.is_some() {
            return self.decimal(digits);
        }
        let hexadecimal = |digits: &str, length: usize| {
            let bits = (digits.len() == length).then(|| u64::from_str_radix(digits, 16).ok()).flatten();
            bits.ok_or_else(|| {
                self.error(format!("`{word}`"), &format!("{length} hexadecimal digits for the float's bits"))
            })
        };
        let kind = match word.as_bytes() {
            [b'0', b'f' | b'F', ..] => TokenKind::Float32(hexadecimal(&word[2..], 8)? as u32),
            [b'0', b'd' | b'D', ..] => TokenKind::Float64(hexadecimal(&word[2..], 16)?),
            _ => {
                let unsigned = word.strip_suffix('U').unwrap_or(word);
                let (digits, radix) = match unsigned.as_bytes() {
                    [b'0', b'x' | b'X', ..] => (&unsigned[2..], 16),
                    [b'0', b'b' | b'B', ..] => (&unsigned[2..], 2),
                    [b'0', _, ..] => (&unsigned[1..], 8),
                    _ => (unsigned, 10),
                };
                let value = u64::from_str_radix(digits, radix);
                TokenKind::Integer(
                    value.map_err(|_| self.error(format!("`{word}`"), "an integer of at most 64 bits"))?,
                )
            }
        };
        self.take(word.len());
        Ok(kind)
    }

    /// A decimal fraction that begins with so many digits.
    fn decimal(&mut self, digits: usize) -> Result<TokenKind<'a>, ParseError> {
        let mut length = digits;
        let digits_at = |at: usize| {
            let rest = &self.rest[at..];
            rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())
        };
        if self.rest[length..].starts_with('.') {
            length += 1 + digits_at(length + 1);
        }
        if let Some(exponent) = self.rest[length..].strip_prefix(['e', 'E']) {
            length += 1 + usize::from(exponent.starts_with(['+', '-']));
            length += digits_at(length);
        }
        let text = &self.rest[..length];
        if text.parse::<f64>().is_err() || self.rest[length..].starts_with(is_name_part) {
            return Err(self.error(format!("`{text}`"), "a decimal number"));
        }
        self.take(length);
        Ok(TokenKind::Decimal(text))
    }
}
