//! Compiled programs, and the passes that made them, for people.
//!
//! Layer: uses `ir` and `plan`; is used by `compile`, whose passes report what they did.
//!
//! | file | idea |
//! |---|---|
//! | [`text`] | a compiled program as text |
//! | [`trace`] | what each pass did |
//! | [`places`] | each value with its lifetime and its place in memory |
//! | [`dependences`] | which step must follow which, and why |
//! | [`orders`] | which steps are ordered because the recording asks for that |
//! | [`edges`] | both without what follows from others, and what keeps each |
//! | [`dot`] | the edges as a graph for Graphviz |

pub(crate) mod dependences;
mod dot;
pub(crate) mod edges;
#[cfg(test)]
mod edges_tests;
mod orders;
pub(crate) mod places;
#[cfg(test)]
mod tests;
mod text;
pub(crate) mod trace;
