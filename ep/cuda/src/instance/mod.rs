//! The CUDA devices of one engine share this state: contexts, addresses, loaded kernels and events, and for each device its queued and failed work.
//!
//! Layer: uses `driver`, `plan`, `elementwise` and `fused`; is used by `stream`.
//!
//! | file | idea |
//! |---|---|
//! | `state` | the instance and its devices |
//! | `config` | what a caller can set |
//! | `address_map` | from addresses to the allocations of these devices |
//! | `loaded_kernels` | our kernels, each loaded at its first use |
//! | `fused_kernels` | the kernels of fused steps of one device: loaded once, found again by their steps |
//! | `driver_events` | the driver's events of each slot of the event pool |
//! | `progress` | how far a stream has been launched and has passed |
//! | `statuses` | launches in flight that may fail |
//! | `timing` | the times of instructions |
//! | `conditions` | what blocks of graphs need of a device |

#[cfg(feature = "cuda")]
mod address_map;
#[cfg(feature = "cuda")]
pub(crate) mod conditions;
pub(crate) mod config;
#[cfg(feature = "cuda")]
pub(crate) mod driver_events;
#[cfg(feature = "cuda")]
mod fused_kernels;
#[cfg(feature = "cuda")]
pub(crate) mod loaded_kernels;
#[cfg(feature = "cuda")]
pub(crate) mod progress;
#[cfg(feature = "cuda")]
mod state;
#[cfg(feature = "cuda")]
pub(crate) mod statuses;
#[cfg(feature = "cuda")]
pub(crate) mod timing;

#[cfg(feature = "cuda")]
pub(crate) use address_map::Owner;
#[cfg(feature = "cuda")]
pub(crate) use state::{DeviceState, Instance, Opened};
