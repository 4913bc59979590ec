//! Programs as text: the form of instruction lists, with lines for the program's name, feeds, parameters and fetches.
//!
//! Layer: uses `ir` and `record`; is used by no other folder.
//!
//! ```text
//! program layer
//! t0 = tensor cpu:0 f32[2,3]
//! t1 = tensor cpu:0 f32[3,4]
//! %0 call     compute@cpu:0:0       matmul t0 t1 -> t2                        f32[2,4]
//! feed x t0
//! param w t1
//! fetch y t2
//! ```
//!
//! A critical section prints as in lists: `begin` after a `touch` of its feeds, and `end` before a `touch update` of each result.
//!
//! A function prints as in lists, `fn "name"`, and parses without code. A line `order %0 to %2 before %4 to %4` says which steps come before
//! others, beside what tensors tell.
//!
//! A program with bounded sizes prints as the list for some sizes, with lines such as `size rows 5 of 1 to 64` that tell these, and lines such as
//! `vary t1 [2*rows,4]` for the layouts that follow from them.
//!
//! The lane of a line is that of its step; lines that begin and end blocks have none. The rest of the stream is not part of a program: the compiler chooses it.

mod parse;
mod print;
mod sizes;
#[cfg(test)]
mod tests;
