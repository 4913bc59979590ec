//! What the names of a module stand for, by the braces that they are declared in.

use std::collections::HashMap;

use crate::text::syntax::{ParseError, Type};

#[derive(Copy, Clone)]
pub(super) enum Meaning {
    Register { register: u32, declared: Type },
    Variable { address: u64, bytes: usize },
}

/// The innermost declarations last.
pub(super) struct Names {
    scopes: Vec<HashMap<String, Meaning>>,
}

impl Names {
    pub(super) fn new() -> Names {
        Names { scopes: vec![HashMap::new()] }
    }

    pub(super) fn open(&mut self) {
        self.scopes.push(HashMap::new());
    }

    pub(super) fn close(&mut self) {
        self.scopes.pop();
    }

    pub(super) fn add(&mut self, line: u32, name: &str, meaning: Meaning) -> Result<(), ParseError> {
        let scope =
            self.scopes.last_mut().ok_or_else(|| ParseError::new(line, "a brace is closed that was not opened"))?;
        match scope.insert(name.to_owned(), meaning) {
            None => Ok(()),
            Some(_) => Err(ParseError::new(line, format!("{name} is declared twice"))),
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<Meaning> {
        self.scopes.iter().rev().find_map(|scope| scope.get(name)).copied()
    }
}
