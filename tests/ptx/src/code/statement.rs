//! One statement: its operands are resolved and compared with what the opcode takes.

use crate::code::names::{Meaning, Names};
use crate::code::operation::{Action, Place, Source, Special, Target};
use crate::compute::{Computation, Function, computation, with_carry};
use crate::text::syntax::{Kind, Operand, ParseError, Space, Statement, Type};

pub(super) fn special(name: &str) -> Option<Special> {
    let (register, axis) = name.rsplit_once('.')?;
    let axis = ["x", "y", "z"].iter().position(|&known| known == axis)?;
    Some(match register {
        "%tid" => Special::Thread(axis),
        "%ntid" => Special::ThreadsOfBlock(axis),
        "%ctaid" => Special::Block(axis),
        "%nctaid" => Special::BlocksOfGrid(axis),
        _ => return None,
    })
}

/// One statement and the names that it may use.
pub(super) struct Known<'n> {
    pub(super) names: &'n Names,
    pub(super) statement: &'n Statement,
}

impl Known<'_> {
    pub(super) fn refused(&self, reason: &str) -> ParseError {
        ParseError::new(self.statement.line, format!("`{}` {reason}", self.statement.opcode.join(".")))
    }

    /// Is a register of the declared type an operand of the type `of`? Bits match every kind.
    fn fits(&self, name: &str, declared: Type, of: Type, may_be_wider: bool) -> Result<(), ParseError> {
        let kinds = match (declared.kind, of.kind) {
            (Kind::Predicate, kind) | (kind, Kind::Predicate) => kind == Kind::Predicate,
            (Kind::Float, kind) | (kind, Kind::Float) => matches!(kind, Kind::Float | Kind::Bits),
            _ => true,
        };
        let widths = declared.bits == of.bits || (may_be_wider && declared.bits > of.bits);
        if kinds && widths {
            return Ok(());
        }
        Err(self
            .refused(&format!("does not take {name}, a register of {:?} with {} bits", declared.kind, declared.bits)))
    }

    pub(super) fn target(&self, operand: &Operand, of: Type, may_be_wider: bool) -> Result<Target, ParseError> {
        match operand {
            Operand::Name(name) => match self.names.get(name) {
                Some(Meaning::Register { register, declared }) => {
                    self.fits(name, declared, of, may_be_wider)?;
                    Ok(Target { register, mask: ones(declared.bits) })
                }
                _ => Err(self.refused(&format!("writes {name}, which is no register"))),
            },
            other => Err(self.refused(&format!("writes {other:?}, which is no register"))),
        }
    }

    pub(super) fn source(&self, operand: &Operand, of: Type, may_be_wider: bool) -> Result<Source, ParseError> {
        match operand {
            Operand::Name(name) => match self.names.get(name) {
                Some(Meaning::Register { register, declared }) => {
                    self.fits(name, declared, of, may_be_wider)?;
                    Ok(Source::Register(register))
                }
                Some(Meaning::Variable { address, .. }) if of.kind != Kind::Float && of.bits >= 32 => {
                    Ok(Source::Constant(address))
                }
                _ => Err(self.refused(&format!("reads {name}, which is not declared or no operand of it"))),
            },
            Operand::Integer(number) if of.kind == Kind::Predicate => Ok(Source::Constant((*number != 0).into())),
            Operand::Integer(number) if of.kind != Kind::Float => Ok(Source::Constant(number & ones(of.bits))),
            Operand::F32(bits) if of.bits == 32 => Ok(Source::Constant(u64::from(*bits))),
            Operand::F64(bits) if of.bits == 64 => Ok(Source::Constant(*bits)),
            other => Err(self.refused(&format!("reads {other:?}, which is no operand of its type"))),
        }
    }

    pub(super) fn computed(&self) -> Result<Action, ParseError> {
        let operands = &self.statement.operands;
        if let Some((function, count, reads, writes)) = with_carry(&self.statement.opcode) {
            let of = Type { kind: Kind::Unsigned, bits: 32 };
            let (to, from) = self.signature(operands, of, &[of; 3][..count], false)?;
            return Ok(Action::WithCarry { function, to, from, reads, writes });
        }
        let Computation { function, to, from, divides, may_be_wider } = computation(&self.statement.opcode)
            .ok_or_else(|| self.refused("is no instruction that this interpreter knows; add it to compute/"))?;
        let (to, from) = self.signature(operands, to, &from, may_be_wider)?;
        Ok(if divides { Action::Divide { function, to, from } } else { Action::Compute { function, to, from } })
    }

    fn signature(
        &self,
        operands: &[Operand],
        to: Type,
        from: &[Type],
        may_be_wider: bool,
    ) -> Result<(Target, [Source; 3]), ParseError> {
        if operands.len() != from.len() + 1 {
            return Err(self.refused(&format!("has {} operands, {} are expected", operands.len(), from.len() + 1)));
        }
        let mut sources = [Source::Constant(0); 3];
        for ((source, operand), &of) in sources.iter_mut().zip(&operands[1..]).zip(from) {
            *source = self.source(operand, of, may_be_wider)?;
        }
        Ok((self.target(&operands[0], to, may_be_wider)?, sources))
    }

    pub(super) fn pack(&self, width: &str, to: &Operand, from: &[Operand]) -> Result<Action, ParseError> {
        let of = Type::named(width).ok_or_else(|| self.refused("has no type"))?;
        let each = Type { kind: Kind::Bits, bits: of.bits / from.len().max(1) as u32 };
        let from = from.iter().map(|operand| self.source(operand, each, false)).collect::<Result<_, _>>()?;
        Ok(Action::Pack { to: self.target(to, of, false)?, from, bits: each.bits })
    }

    pub(super) fn unpack(&self, width: &str, to: &[Operand], from: &Operand) -> Result<Action, ParseError> {
        let of = Type::named(width).ok_or_else(|| self.refused("has no type"))?;
        let each = Type { kind: Kind::Bits, bits: of.bits / to.len().max(1) as u32 };
        let target = |operand: &Operand| match operand {
            Operand::Name(name) if name == "_" => Ok(None),
            _ => self.target(operand, each, false).map(Some),
        };
        let to = to.iter().map(target).collect::<Result<_, _>>()?;
        Ok(Action::Unpack { to, from: self.source(from, of, false)?, bits: each.bits })
    }

    /// The place of an access, and the type of its elements.
    fn place(&self, words: &[&str], name: &str, offset: i64) -> Result<(Place, Type), ParseError> {
        let (mut space, mut elements, mut is_volatile) = (Space::Generic, 1, false);
        let unknown = || self.refused("is no access to memory that this interpreter knows");
        let (&of, modifiers) = words[1..].split_last().ok_or_else(unknown)?;
        for &modifier in modifiers {
            match modifier {
                "param" => space = Space::Param,
                "global" => space = Space::Global,
                "const" => space = Space::Constant,
                "shared" => space = Space::Shared,
                "local" => space = Space::Local,
                "volatile" => is_volatile = true,
                // A hint for caches.
                "nc" if words[0] == "ld" && space == Space::Global => {}
                "v2" => elements = 2,
                "v4" => elements = 4,
                _ => return Err(unknown()),
            }
        }
        let of = Type::named(of).filter(|of| of.bits >= 8).ok_or_else(unknown)?;
        let address = Type { kind: Kind::Unsigned, bits: 64 };
        let base = match self.names.get(name) {
            // Addresses of shared memory may be kept in 32 bits.
            Some(Meaning::Register { register, declared: Type { kind: Kind::Bits | Kind::Unsigned, bits: 32 } })
                if space == Space::Shared =>
            {
                Source::Register(register)
            }
            _ => self.source(&Operand::Name(name.to_owned()), address, false)?,
        };
        Ok((Place { space, base, offset, bytes: of.bytes() as u32, elements, is_volatile }, of))
    }

    /// The operands of one access, as many as the vector has.
    fn elements<'o>(&self, operand: &'o Operand, place: &Place) -> Result<&'o [Operand], ParseError> {
        let all = match operand {
            Operand::Vector(all) => &**all,
            one => std::slice::from_ref(one),
        };
        if all.len() == place.elements as usize {
            return Ok(all);
        }
        Err(self.refused(&format!("has {} registers for {} elements", all.len(), place.elements)))
    }

    pub(super) fn load(&self, words: &[&str], to: &Operand, name: &str, offset: i64) -> Result<Action, ParseError> {
        let (place, of) = self.place(words, name, offset)?;
        let mut targets = [None; 4];
        for (target, operand) in targets.iter_mut().zip(self.elements(to, &place)?) {
            *target = Some(self.target(operand, of, true)?);
        }
        Ok(Action::Load { to: targets, place, is_signed: of.kind == Kind::Signed })
    }

    pub(super) fn store(&self, words: &[&str], name: &str, offset: i64, from: &Operand) -> Result<Action, ParseError> {
        let (place, of) = self.place(words, name, offset)?;
        let mut sources = [Source::Constant(0); 4];
        for (source, operand) in sources.iter_mut().zip(self.elements(from, &place)?) {
            *source = self.source(operand, of, true)?;
        }
        Ok(Action::Store { from: sources, place })
    }

    pub(super) fn atomic(&self, words: &[&str], operands: &[Operand]) -> Result<Action, ParseError> {
        let unknown = || self.refused("is no atomic operation that this interpreter knows");
        let [name, space @ .., operation, of] = words else { return Err(unknown()) };
        let returns = *name == "atom";
        let (to, operands) = match operands {
            [to, operands @ ..] if returns => (Some(to), operands),
            operands => (None, operands),
        };
        let [Operand::Address(base, offset), operands @ ..] = operands else { return Err(unknown()) };
        let place = [&[*name], space, &[*of]].concat();
        let (place, of) = self.place(&place, base, *offset)?;
        let place = Place { is_volatile: true, ..place };
        // The memory is the first operand.
        let function: Function = match (*operation, operands.len()) {
            ("exch", 1) => |_, given, _| given,
            ("cas", 2) => |memory, expected, given| if memory == expected { given } else { memory },
            ("add" | "min" | "max" | "and" | "or" | "xor", 1) => {
                let opcode = [*operation, &format!("{}{}", kind_letter(of), of.bits)].map(str::to_owned);
                computation(&opcode).ok_or_else(unknown)?.function
            }
            _ => return Err(unknown()),
        };
        let mut from = [Source::Constant(0); 2];
        for (source, operand) in from.iter_mut().zip(operands) {
            *source = self.source(operand, of, false)?;
        }
        let to = to.map(|to| self.target(to, of, false)).transpose()?;
        Ok(Action::Atomic { function, to, place, from })
    }
}

fn kind_letter(of: Type) -> char {
    match of.kind {
        Kind::Signed => 's',
        Kind::Unsigned => 'u',
        Kind::Bits | Kind::Predicate => 'b',
        Kind::Float => 'f',
    }
}

/// As many bits set.
fn ones(bits: u32) -> u64 {
    u64::MAX >> (64 - bits)
}
