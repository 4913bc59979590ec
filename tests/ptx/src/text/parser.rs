//! From tokens to functions and variables. Everything that is not known is an error; nothing is skipped but debugging information.

use crate::text::lexer::{Token, tokens};
use crate::text::syntax::{Function, Item, Operand, ParseError, Space, Statement, Syntax, Type, Variable};

pub(crate) fn parse(text: &str) -> Result<Syntax, ParseError> {
    let mut parser = Parser { tokens: tokens(text)?, at: 0 };
    let mut syntax = Syntax::default();
    while parser.at < parser.tokens.len() {
        parser.declaration(&mut syntax)?;
    }
    Ok(syntax)
}

struct Parser {
    tokens: Vec<(u32, Token)>,
    at: usize,
}

impl Parser {
    /// The line of the next token, or of the last.
    fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |&(line, _)| line)
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|(_, token)| token)
    }

    fn next(&mut self) -> Result<Token, ParseError> {
        let token =
            self.peek().cloned().ok_or_else(|| ParseError::new(self.line(), "the text ends in the midst of it"))?;
        self.at += 1;
        Ok(token)
    }

    /// An error at the last token that was taken.
    fn found(&self, token: &Token, expected: &str) -> ParseError {
        let line = self.tokens[self.at.saturating_sub(1)].0;
        ParseError::new(line, format!("{token:?} was found where {expected} was expected"))
    }

    fn take(&mut self, sign: char) -> bool {
        let is_next = self.peek() == Some(&Token::Sign(sign));
        self.at += usize::from(is_next);
        is_next
    }

    fn expect(&mut self, sign: char) -> Result<(), ParseError> {
        match self.next()? {
            Token::Sign(found) if found == sign => Ok(()),
            token => Err(self.found(&token, &format!("`{sign}`"))),
        }
    }

    fn name(&mut self) -> Result<String, ParseError> {
        match self.next()? {
            Token::Name(name) => Ok(name),
            token => Err(self.found(&token, "a name")),
        }
    }

    fn integer(&mut self) -> Result<u64, ParseError> {
        let is_negative = self.take('-');
        match self.next()? {
            Token::Integer(number) => Ok(if is_negative { number.wrapping_neg() } else { number }),
            token => Err(self.found(&token, "an integer")),
        }
    }

    /// Debugging information ends with its line.
    fn skip_line(&mut self) {
        let line = self.tokens[self.at - 1].0;
        while self.tokens.get(self.at).is_some_and(|&(next, _)| next == line) {
            self.at += 1;
        }
    }

    fn declaration(&mut self, syntax: &mut Syntax) -> Result<(), ParseError> {
        let line = self.line();
        let mut directive = self.name()?;
        while matches!(&*directive, ".visible" | ".extern" | ".weak") {
            directive = self.name()?;
        }
        match &*directive {
            ".version" => match self.next()? {
                Token::Version(_) => Ok(()),
                token => Err(self.found(&token, "a version such as 8.0")),
            },
            ".target" => {
                self.name()?;
                while self.take(',') {
                    self.name()?;
                }
                Ok(())
            }
            ".address_size" => match self.integer()? {
                64 => Ok(()),
                bits => Err(ParseError::new(line, format!("addresses of {bits} bits are not supported, 64 are"))),
            },
            ".file" | ".loc" => {
                self.skip_line();
                Ok(())
            }
            ".entry" | ".func" => {
                let function = self.function(line, directive == ".entry")?;
                syntax.functions.push(function);
                Ok(())
            }
            _ => {
                let variable = self.variable(line, &directive)?;
                self.expect(';')?;
                syntax.variables.push(variable);
                Ok(())
            }
        }
    }

    /// What follows the name of a state space: `.align 8 .b8 name[8] = {..}`.
    fn variable(&mut self, line: u32, space: &str) -> Result<Variable, ParseError> {
        let space = match space {
            ".param" => Space::Param,
            ".global" => Space::Global,
            ".const" => Space::Constant,
            ".shared" => Space::Shared,
            ".local" => Space::Local,
            other => return Err(ParseError::new(line, format!("the directive {other} is not known"))),
        };
        let mut directive = self.name()?;
        let mut alignment = None;
        if directive == ".align" {
            alignment = Some(self.integer()? as usize);
            directive = self.name()?;
        }
        let declared = self.type_named(line, &directive)?;
        let name = self.name()?;
        let element = declared.bytes();
        let mut bytes = element;
        if self.take('[') {
            bytes = if self.peek() == Some(&Token::Sign(']')) { 0 } else { element * self.integer()? as usize };
            self.expect(']')?;
        }
        let mut value = None;
        if self.take('=') {
            let mut given = Vec::new();
            if self.take('{') {
                loop {
                    given.extend_from_slice(&self.integer()?.to_le_bytes()[..element]);
                    if !self.take(',') {
                        break;
                    }
                }
                self.expect('}')?;
            } else {
                given.extend_from_slice(&self.integer()?.to_le_bytes()[..element]);
            }
            if given.len() > bytes {
                return Err(ParseError::new(line, format!("{name} has {bytes} bytes and {} are given", given.len())));
            }
            given.resize(bytes, 0);
            value = Some(given);
        }
        let alignment = alignment.unwrap_or(element);
        if !alignment.is_power_of_two() {
            return Err(ParseError::new(line, format!("an alignment of {alignment} bytes is no power of two")));
        }
        Ok(Variable { line, space, name, alignment, bytes, value })
    }

    fn type_named(&self, line: u32, directive: &str) -> Result<Type, ParseError> {
        let named = directive.strip_prefix('.').and_then(Type::named);
        named.ok_or_else(|| ParseError::new(line, format!("{directive} is no type")))
    }

    fn parameters(&mut self) -> Result<Vec<Variable>, ParseError> {
        let mut all = Vec::new();
        self.expect('(')?;
        while !self.take(')') {
            if !all.is_empty() {
                self.expect(',')?;
            }
            let line = self.line();
            let space = self.name()?;
            all.push(self.variable(line, &space)?);
        }
        Ok(all)
    }

    fn function(&mut self, line: u32, is_entry: bool) -> Result<Function, ParseError> {
        let mut parameters = Vec::new();
        if self.peek() == Some(&Token::Sign('(')) {
            parameters = self.parameters()?;
        }
        let results = parameters.len();
        let name = self.name()?;
        if self.peek() == Some(&Token::Sign('(')) {
            parameters.extend(self.parameters()?);
        }
        let mut function = Function { line, name, is_entry, results, parameters, most_threads: None, body: None };
        loop {
            match self.next()? {
                Token::Sign(';') => return Ok(function),
                Token::Sign('{') => {
                    function.body = Some(self.body()?);
                    return Ok(function);
                }
                Token::Name(directive) if directive == ".maxntid" || directive == ".reqntid" => {
                    let mut threads = self.integer()?;
                    while self.take(',') {
                        threads *= self.integer()?;
                    }
                    function.most_threads = Some(threads as u32);
                }
                // These guide the allocation of registers.
                Token::Name(directive) if directive == ".minnctapersm" || directive == ".maxnreg" => {
                    self.integer()?;
                }
                token => return Err(self.found(&token, "`{`, `;` or a directive of a function")),
            }
        }
    }

    /// The items up to the brace that closes the body.
    fn body(&mut self) -> Result<Vec<Item>, ParseError> {
        let (mut items, mut depth) = (Vec::new(), 0);
        loop {
            let line = self.line();
            match self.next()? {
                Token::Sign('}') if depth == 0 => return Ok(items),
                Token::Sign('}') => {
                    depth -= 1;
                    items.push(Item::Close);
                }
                Token::Sign('{') => {
                    depth += 1;
                    items.push(Item::Open);
                }
                Token::Sign(';') => {}
                Token::Sign('@') => {
                    let is_negated = self.take('!');
                    let predicate = self.name()?;
                    let opcode = self.name()?;
                    items.push(self.statement(line, Some((predicate, is_negated)), &opcode)?);
                }
                Token::Name(name) if name.starts_with('.') => self.directive(line, &name, &mut items)?,
                Token::Name(name) if self.take(':') => items.push(Item::Label(line, name)),
                Token::Name(opcode) => items.push(self.statement(line, None, &opcode)?),
                token => return Err(self.found(&token, "an instruction")),
            }
        }
    }

    fn directive(&mut self, line: u32, name: &str, items: &mut Vec<Item>) -> Result<(), ParseError> {
        match name {
            ".loc" | ".file" => {
                self.skip_line();
                return Ok(());
            }
            ".pragma" => match self.next()? {
                Token::Text(_) => {}
                token => return Err(self.found(&token, "a string")),
            },
            ".reg" => {
                let directive = self.name()?;
                let declared = self.type_named(line, &directive)?;
                loop {
                    let name = self.name()?;
                    let mut count = None;
                    if self.take('<') {
                        count = Some(self.integer()? as u32);
                        self.expect('>')?;
                    }
                    items.push(Item::Registers { line, declared, name, count });
                    if !self.take(',') {
                        break;
                    }
                }
            }
            _ => {
                let variable = self.variable(line, name)?;
                items.push(Item::Variable(variable));
            }
        }
        self.expect(';')
    }

    fn statement(&mut self, line: u32, guard: Option<(String, bool)>, opcode: &str) -> Result<Item, ParseError> {
        let mut operands = Vec::new();
        if !self.take(';') {
            loop {
                operands.push(self.operand()?);
                if self.take(';') {
                    break;
                }
                self.expect(',')?;
            }
        }
        let opcode = opcode.split('.').map(str::to_owned).collect();
        Ok(Item::Statement(Statement { line, guard, opcode, operands }))
    }

    fn operand(&mut self) -> Result<Operand, ParseError> {
        match self.next()? {
            Token::Name(name) => Ok(Operand::Name(name)),
            Token::Integer(number) => Ok(Operand::Integer(number)),
            Token::Sign('-') => {
                self.at -= 1;
                self.integer().map(Operand::Integer)
            }
            Token::F32(bits) => Ok(Operand::F32(bits)),
            Token::F64(bits) => Ok(Operand::F64(bits)),
            Token::Sign('[') => {
                let name = self.name()?;
                let offset = if self.take('+') { self.integer()? as i64 } else { 0 };
                self.expect(']')?;
                Ok(Operand::Address(name, offset))
            }
            Token::Sign('{') => self.operands('}').map(Operand::Vector),
            Token::Sign('(') => self.operands(')').map(Operand::List),
            token => Err(self.found(&token, "an operand")),
        }
    }

    fn operands(&mut self, end: char) -> Result<Vec<Operand>, ParseError> {
        let mut all = Vec::new();
        while !self.take(end) {
            if !all.is_empty() {
                self.expect(',')?;
            }
            all.push(self.operand()?);
        }
        Ok(all)
    }
}
