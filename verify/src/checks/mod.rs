//! Checks of a trace: the pairs that must be ordered, found from the bytes, and the waits that could go.
//!
//! Layer: uses `trace`, `report` and `graph`; is used by [`verify()`](crate::verify()).
//!
//! Main types: [`Needs`](dependences::Needs) has each pair that must be ordered, as a [`Need`](dependences::Need);
//! [`Pieces`](pieces::Pieces) says for every byte which accesses touched it last; [`excess`](excess::excess) finds the waits
//! that could go.

pub(crate) mod dependences;
pub(crate) mod excess;
mod pieces;
