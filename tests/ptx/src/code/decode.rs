//! From what is written to what is run.

use std::collections::HashMap;
use std::ops::Range;

use crate::code::names::{Meaning, Names};
use crate::code::operation::{Action, Call, Operation, Passed};
use crate::code::statement::{Known, special};
use crate::code::{CALLS, LOCAL, PARAMETERS, SHARED, VARIABLES, WINDOW};
use crate::compute::PREDICATE;
use crate::text::parser::parse;
use crate::text::runtime::link;
use crate::text::syntax::{self, Item, Kind, Operand, ParseError, Space, Statement, Syntax, Type, Variable};

/// A module of PTX, decoded once and run any number of times. It does not change, and threads may share it.
pub struct Module {
    pub(crate) operations: Vec<Operation>,
    /// Of each operation.
    pub(crate) lines: Vec<u32>,
    pub(crate) functions: Vec<FunctionCode>,
    /// Variables, and whether they may be written.
    pub(crate) variables: Vec<(Variable, u64)>,
    /// Bytes of shared variables whose size is declared.
    pub(crate) shared_bytes: usize,
    /// Bytes of local memory and of parameters of calls, of a thread.
    pub(crate) local_bytes: usize,
    pub(crate) call_bytes: usize,
    pub(crate) registers: usize,
    /// Names of the registers of each function, for errors.
    pub(crate) text: Vec<String>,
}

pub(crate) struct FunctionCode {
    pub(crate) name: String,
    pub(crate) is_entry: bool,
    /// The operations, from the first to after the last.
    pub(crate) code: Range<usize>,
    /// The registers, local memory and parameters of calls that are its own.
    pub(crate) registers: Range<usize>,
    pub(crate) local: Range<usize>,
    pub(crate) calls: Range<usize>,
    pub(crate) parameter_bytes: usize,
    /// The name and the bytes of each parameter of a kernel.
    pub(crate) parameters: Vec<(String, Range<usize>)>,
    pub(crate) most_threads: Option<u32>,
    /// Names of the registers, in the order of their numbers.
    pub(crate) register_names: Vec<String>,
}

impl Module {
    /// Decodes the text of a module.
    ///
    /// # Errors
    ///
    /// [`ParseError`] at the first line that is no PTX, or that uses what this crate does not know: nothing is skipped.
    pub fn new(text: &str) -> Result<Module, ParseError> {
        let text = link(text);
        let syntax = parse(&text)?;
        let mut decoder = Decoder::new(&syntax)?;
        decoder.module.text = text.lines().map(str::to_owned).collect();
        // Called functions have registers after those of entries.
        let (entries, called): (Vec<_>, Vec<_>) =
            syntax.functions.iter().filter(|function| function.body.is_some()).partition(|function| function.is_entry);
        for function in &entries {
            decoder.function(function, 0)?;
        }
        for function in called {
            let first = decoder.module.registers;
            decoder.function(function, first)?;
        }
        decoder.resolve_calls()?;
        Ok(decoder.module)
    }

    /// The names of the kernels, in the order of the text.
    pub fn kernels(&self) -> impl Iterator<Item = &str> {
        self.functions.iter().filter(|function| function.is_entry).map(|function| &*function.name)
    }

    /// The parameters of a kernel: the name of each, and its bytes among those of a launch. None if there is no such kernel.
    pub fn parameters(&self, kernel: &str) -> &[(String, Range<usize>)] {
        let mut kernels = self.functions.iter().filter(|function| function.is_entry);
        kernels.find(|function| function.name == kernel).map_or(&[], |function| &function.parameters)
    }

    /// The function that an operation is of.
    pub(crate) fn function_of(&self, operation: usize) -> &FunctionCode {
        let found = self.functions.iter().find(|function| function.code.contains(&operation));
        found.expect("every operation is decoded as one of a function")
    }
}

/// A call whose function may not be decoded yet.
struct Unresolved {
    operation: usize,
    line: u32,
    name: String,
    results: Vec<(u64, usize)>,
    arguments: Vec<(u64, usize)>,
}

struct Decoder<'s> {
    module: Module,
    names: Names,
    declared: HashMap<&'s str, &'s syntax::Function>,
    unresolved: Vec<Unresolved>,
    /// For each called function the addresses and sizes of its results and parameters.
    called: HashMap<String, (usize, Vec<(u64, usize)>)>,
    /// The labels of the function, and the branches to them.
    labels: HashMap<String, u32>,
    branches: Vec<(usize, u32, String)>,
    register_names: Vec<String>,
    first_register: usize,
}

impl<'s> Decoder<'s> {
    fn new(syntax: &'s Syntax) -> Result<Decoder<'s>, ParseError> {
        let module = Module {
            operations: Vec::new(),
            lines: Vec::new(),
            functions: Vec::new(),
            variables: Vec::new(),
            shared_bytes: 0,
            local_bytes: 0,
            call_bytes: 0,
            registers: 0,
            text: Vec::new(),
        };
        let mut decoder = Decoder {
            module,
            names: Names::new(),
            declared: syntax.functions.iter().map(|function| (&*function.name, function)).collect(),
            unresolved: Vec::new(),
            called: HashMap::new(),
            labels: HashMap::new(),
            branches: Vec::new(),
            register_names: Vec::new(),
            first_register: 0,
        };
        let mut next = VARIABLES;
        // Memory whose size the launch gives lies after the shared variables.
        let (sized, dynamic): (Vec<_>, Vec<_>) = syntax.variables.iter().partition(|variable| variable.bytes > 0);
        for variable in sized.into_iter().chain(dynamic) {
            let meaning = match variable.space {
                Space::Shared => decoder.shared(variable)?,
                Space::Global | Space::Constant => {
                    next = next.next_multiple_of(variable.alignment as u64);
                    let address = next;
                    // A gap between variables, so that one cannot be reached from another.
                    next += variable.bytes as u64 + 64;
                    decoder.module.variables.push((variable.clone(), address));
                    Meaning::Variable { address, bytes: variable.bytes }
                }
                _ => {
                    return Err(ParseError::new(variable.line, "a variable of a module is global, constant or shared"));
                }
            };
            decoder.names.add(variable.line, &variable.name, meaning)?;
        }
        Ok(decoder)
    }

    fn shared(&mut self, variable: &Variable) -> Result<Meaning, ParseError> {
        let offset = self.module.shared_bytes.next_multiple_of(variable.alignment);
        self.module.shared_bytes = offset + variable.bytes;
        self.within(variable, offset, SHARED)
    }

    fn within(&self, variable: &Variable, offset: usize, window: u64) -> Result<Meaning, ParseError> {
        if (offset + variable.bytes) as u64 > WINDOW {
            return Err(ParseError::new(
                variable.line,
                format!("{} is too large: {WINDOW} bytes are supported", variable.name),
            ));
        }
        Ok(Meaning::Variable { address: window + offset as u64, bytes: variable.bytes })
    }

    fn call_space(&mut self, variable: &Variable) -> Result<Meaning, ParseError> {
        let offset = self.module.call_bytes.next_multiple_of(variable.alignment);
        self.module.call_bytes = offset + variable.bytes;
        self.within(variable, offset, CALLS)
    }

    fn function(&mut self, function: &syntax::Function, first_register: usize) -> Result<(), ParseError> {
        let start = self.module.operations.len();
        let (local, calls) =
            (self.module.local_bytes.next_multiple_of(16), self.module.call_bytes.next_multiple_of(16));
        (self.module.local_bytes, self.module.call_bytes) = (local, calls);
        self.first_register = first_register;
        self.register_names.clear();
        self.labels.clear();
        self.names.open();
        let (mut parameter_bytes, mut places, mut parameters) = (0usize, Vec::new(), Vec::new());
        for parameter in &function.parameters {
            let meaning = if function.is_entry {
                let offset = parameter_bytes.next_multiple_of(parameter.alignment);
                parameter_bytes = offset + parameter.bytes;
                parameters.push((parameter.name.clone(), offset..parameter_bytes));
                self.within(parameter, offset, PARAMETERS)?
            } else {
                self.call_space(parameter)?
            };
            if let Meaning::Variable { address, bytes } = meaning {
                places.push((address, bytes));
            }
            self.names.add(parameter.line, &parameter.name, meaning)?;
        }
        self.called.insert(function.name.clone(), (self.module.functions.len(), places));
        for item in function.body.iter().flatten() {
            self.item(item)?;
        }
        self.names.close();
        // A function that runs past its end returns.
        self.push(function.line, None, Action::Return);
        for (operation, line, label) in std::mem::take(&mut self.branches) {
            let target = self.labels.get(&label);
            let &target = target
                .ok_or_else(|| ParseError::new(line, format!("there is no label {label} in {}", function.name)))?;
            self.module.operations[operation].action = Action::Branch(target);
        }
        let registers = first_register..first_register + self.register_names.len();
        self.module.registers = self.module.registers.max(registers.end);
        self.module.functions.push(FunctionCode {
            name: function.name.clone(),
            is_entry: function.is_entry,
            code: start..self.module.operations.len(),
            registers,
            local: local..self.module.local_bytes,
            calls: calls..self.module.call_bytes,
            parameter_bytes,
            parameters,
            most_threads: function.most_threads,
            register_names: std::mem::take(&mut self.register_names),
        });
        Ok(())
    }

    fn item(&mut self, item: &Item) -> Result<(), ParseError> {
        match item {
            Item::Open => self.names.open(),
            Item::Close => self.names.close(),
            Item::Label(line, name) => {
                let here = self.module.operations.len() as u32;
                if self.labels.insert(name.clone(), here).is_some() {
                    return Err(ParseError::new(*line, format!("the label {name} is there twice")));
                }
            }
            Item::Registers { line, declared, name, count } => match count {
                None => self.register(*line, name, *declared)?,
                Some(count) => {
                    for number in 0..*count {
                        self.register(*line, &format!("{name}{number}"), *declared)?;
                    }
                }
            },
            Item::Variable(variable) => {
                let meaning = match variable.space {
                    Space::Local => {
                        let offset = self.module.local_bytes.next_multiple_of(variable.alignment);
                        self.module.local_bytes = offset + variable.bytes;
                        self.within(variable, offset, LOCAL)?
                    }
                    Space::Param => self.call_space(variable)?,
                    Space::Shared => self.shared(variable)?,
                    _ => {
                        return Err(ParseError::new(
                            variable.line,
                            "a variable of a function is local, shared or a parameter",
                        ));
                    }
                };
                self.names.add(variable.line, &variable.name, meaning)?;
            }
            Item::Statement(statement) => self.statement(statement)?,
        }
        Ok(())
    }

    fn register(&mut self, line: u32, name: &str, declared: Type) -> Result<(), ParseError> {
        let register = (self.first_register + self.register_names.len()) as u32;
        self.register_names.push(name.to_owned());
        self.names.add(line, name, Meaning::Register { register, declared })
    }

    fn push(&mut self, line: u32, guard: Option<(u32, bool)>, action: Action) {
        self.module.operations.push(Operation { guard, action });
        self.module.lines.push(line);
    }

    fn statement(&mut self, statement: &Statement) -> Result<(), ParseError> {
        let guard = match &statement.guard {
            None => None,
            Some((name, is_negated)) => match self.names.get(name) {
                Some(Meaning::Register { register, declared: PREDICATE }) => Some((register, !is_negated)),
                _ => return Err(ParseError::new(statement.line, format!("{name} is no predicate"))),
            },
        };
        let action = self.action(statement)?;
        self.push(statement.line, guard, action);
        Ok(())
    }

    fn action(&mut self, statement: &Statement) -> Result<Action, ParseError> {
        let words: Vec<&str> = statement.opcode.iter().map(String::as_str).collect();
        let known = Known { names: &self.names, statement };
        match (&*words, &*statement.operands) {
            (["ret" | "exit"], []) => Ok(Action::Return),
            (["bra"] | ["bra", "uni"], [Operand::Name(label)]) => {
                self.branches.push((self.module.operations.len(), statement.line, label.clone()));
                Ok(Action::Branch(0))
            }
            (["bar", "sync"] | ["barrier", "sync"], [Operand::Integer(0)]) => Ok(Action::Barrier),
            (["membar", "cta" | "gl" | "sys"], []) => Ok(Action::Fence),
            (["ld", ..], [to, Operand::Address(name, offset)]) => known.load(&words, to, name, *offset),
            (["st", ..], [Operand::Address(name, offset), from]) => known.store(&words, name, *offset, from),
            (["atom" | "red", ..], operands) => known.atomic(&words, operands),
            (["call", "uni"] | ["call"], operands) => self.call(statement, operands),
            (["bfi", "b32" | "b64"], [to, from @ ..]) if from.len() == 4 => {
                let of = if words[1] == "b32" { 32 } else { 64 };
                let of = Type { kind: Kind::Bits, bits: of };
                let (to, count) = (known.target(to, of, false)?, Type { kind: Kind::Unsigned, bits: 32 });
                let [a, b, c, d] =
                    [(0, of), (1, of), (2, count), (3, count)].map(|(place, of)| known.source(&from[place], of, false));
                Ok(Action::Insert { to, from: [a?, b?, c?, d?] })
            }
            (["mov", width], [to, Operand::Vector(from)]) => known.pack(width, to, from),
            (["mov", width], [Operand::Vector(to), from]) => known.unpack(width, to, from),
            (["mov", "u32"], [to, Operand::Name(name)]) if special(name).is_some() => {
                let of = Type { kind: Kind::Unsigned, bits: 32 };
                let which = special(name).ok_or_else(|| known.refused("is no special register"))?;
                Ok(Action::Special { to: known.target(to, of, false)?, which })
            }
            _ => known.computed(),
        }
    }

    fn call(&mut self, statement: &Statement, operands: &[Operand]) -> Result<Action, ParseError> {
        let (results, name, arguments): (&[Operand], _, &[Operand]) = match operands {
            [Operand::List(results), Operand::Name(name), Operand::List(arguments)] => (results, name, arguments),
            [Operand::Name(name), Operand::List(arguments)] => (&[], name, arguments),
            [Operand::Name(name)] => (&[], name, &[]),
            _ => return Err(ParseError::new(statement.line, "a call has results, a function and arguments")),
        };
        let places = |operands: &[Operand]| -> Result<Vec<(u64, usize)>, ParseError> {
            let place = |operand: &Operand| match operand {
                Operand::Name(name) => match self.names.get(name) {
                    Some(Meaning::Variable { address, bytes }) => Ok((address, bytes)),
                    _ => Err(ParseError::new(statement.line, format!("{name} is no parameter"))),
                },
                _ => Err(ParseError::new(statement.line, "a call passes parameters by name")),
            };
            operands.iter().map(place).collect()
        };
        let unresolved = Unresolved {
            operation: self.module.operations.len(),
            line: statement.line,
            name: name.clone(),
            results: places(results)?,
            arguments: places(arguments)?,
        };
        self.unresolved.push(unresolved);
        Ok(Action::Fence)
    }

    fn resolve_calls(&mut self) -> Result<(), ParseError> {
        for call in std::mem::take(&mut self.unresolved) {
            let refused = |reason: &str| ParseError::new(call.line, format!("{} {reason}", call.name));
            let (function, places) =
                self.called.get(&call.name).ok_or_else(|| refused("has no body in this module"))?;
            let declared = self.declared[&*call.name];
            if declared.is_entry
                || declared.results != call.results.len()
                || places.len() != call.results.len() + call.arguments.len()
            {
                return Err(refused("is called with other parameters than it has"));
            }
            let (of_results, of_arguments) = places.split_at(declared.results);
            let pairs = |from: &[(u64, usize)], to: &[(u64, usize)]| -> Result<Vec<Passed>, ParseError> {
                let pair = |(&(from, bytes), &(to, expected)): (&(u64, usize), &(u64, usize))| match bytes == expected {
                    true => Ok(Passed { from, to, bytes }),
                    false => Err(refused("is called with parameters of other sizes than it has")),
                };
                from.iter().zip(to).map(pair).collect()
            };
            let call_of = Call {
                function: *function,
                arguments: pairs(&call.arguments, of_arguments)?,
                results: pairs(of_results, &call.results)?,
            };
            self.module.operations[call.operation].action = Action::Call(Box::new(call_of));
        }
        Ok(())
    }
}
