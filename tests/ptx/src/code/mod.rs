//! A module ready to run: names are numbers, opcodes are functions.
//!
//! Layer: uses `text` and `compute`; is used by `run`.
//!
//! # Addresses
//!
//! Each state space but the global one has a window of addresses of its own ([`SHARED`], [`LOCAL`], ...), far below those of allocations. So an address
//! tells its space, a generic address is the same number, and `cvta` moves it.
//!
//! Functions do not call themselves, so each has registers, parameters and local memory of its own, whose places are known before anything runs.
//! Registers of all entries lie in the same places, those of called functions after them.

pub(crate) mod decode;
mod names;
pub(crate) mod operation;
mod statement;

pub use decode::Module;

/// Shared memory of the block.
pub(crate) const SHARED: u64 = 0x0100_0000;
/// Local memory of the thread.
pub(crate) const LOCAL: u64 = 0x0200_0000;
/// The parameters of the kernel.
pub(crate) const PARAMETERS: u64 = 0x0300_0000;
/// Parameters and results of called functions, of one thread.
pub(crate) const CALLS: u64 = 0x0400_0000;
/// Variables of the module.
pub(crate) const VARIABLES: u64 = 0x0500_0000;
/// Memory of a launch lies at this address or above. Below it are the addresses of shared and local memory, of parameters, and of variables of the module.
pub const END_OF_WINDOWS: u64 = 0x1000_0000;
/// The most bytes of a window.
pub(crate) const WINDOW: u64 = 0x0100_0000;
