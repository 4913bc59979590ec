//! Launches that run the PTX of their kernel, with the setting `kernels=ptx`; without it, the two launches of a reduction in parts alone.
//!
//! A module is decoded when it is loaded, or, without that setting, at the first such launch ([`PtxCode`]). A launch ([`PtxLaunch`]) gives the interpreter (`streamvm-ptx`) the parameter, grid and blocks that
//! `cuLaunchKernel` got, and a copy of the bytes that the launch may access, at their addresses. These are the bytes that its decoded parameter declares, which
//! the race detector is told too: so an access of the kernel that the race detector does not know of is a finding. What the kernel has written is copied back.

mod code;
mod launch;

pub(crate) use code::{PtxCode, coverage};
pub(crate) use launch::{Extent, PtxLaunch, Region, Stopped};
