//! Instruction lists, which the builder makes and an engine takes, and the checks that make them well formed.
//!
//! Layer: uses `place`, `error`, `engine` and `tensor`; is used by `text`, `builder`, `eager` and `plan`.
//!
//! * An [`InstructionList`](instruction_list::InstructionList) holds [`Instruction`](instruction::Instruction)s, each of a
//!   [`Kind`](kind::Kind), and their uses. A thread keeps the buffers of its last list for its next one.
//! * A [`Single`](batch::Single) is one instruction that borrows its operands. Engines take both types as a
//!   [`Batch`](batch::Batch).
//! * [`check`](check::check) refuses instructions that are not well formed, for the builder, the parser and `InstructionList::push`
//!   alike.
//! * [`ListSections`](sections::ListSections) checks, line by line, that each critical section of a list is ended.
//! * [`stage`] splits copies that a device cannot make by itself into copies through pinned memory.

pub(crate) mod batch;
pub(crate) mod buffers;
pub(crate) mod check;
pub(crate) mod instruction;
pub(crate) mod instruction_list;
pub(crate) mod kind;
pub(crate) mod sections;
pub(crate) mod stage;
