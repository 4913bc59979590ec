//! Deferred reference counting: counted references, and lists that hold such references without counting them.
//!
//! Layer: uses no other folder; is used by no other folder. The crates above use it through the root of this crate.
//!
//! Main types: [`Counted`](counted::Counted), [`Own`](counted::Own), [`Hoard`](hoard::Hoard), [`Lease`](lease::Lease).

pub(crate) mod counted;
pub(crate) mod hoard;
mod lease;
mod sync;
