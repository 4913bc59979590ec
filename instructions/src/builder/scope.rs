//! Options of a builder that hold for a scope: the lane, the type of stream that computes, and the launch options of functions.
//!
//! A [`BuilderScope`] borrows the builder, changes one option, and restores it in its `drop`. So an option ends with its scope also where
//! the scope is left by `?`, `break` or a panic, and inner scopes end before outer ones. [`Lane::enter`](crate::Lane::enter) is the same
//! for eager calls: it sets the lane of a thread, on which new builders begin.

use std::ops::{Deref, DerefMut};

use streamvm_stream::StreamType;

use crate::builder::instructions_builder::InstructionsBuilder;
use crate::lane::Lane;
use crate::list::kind::LaunchOptions;

/// The options of a builder: every instruction that it builds gets them, until a scope changes them.
#[derive(Copy, Clone, Debug)]
pub(crate) struct BuilderOptions {
    pub(super) lane: u32,
    /// The type of stream that runs kernels and functions.
    pub(super) compute: StreamType,
    pub(super) launch: LaunchOptions,
}

impl BuilderOptions {
    /// The options of a new builder.
    pub(super) fn new() -> BuilderOptions {
        BuilderOptions { lane: Lane::current().0, compute: StreamType::Compute, launch: LaunchOptions::default() }
    }
}

/// An [`InstructionsBuilder`] with an option that holds until the scope is dropped. It derefs to the builder, so it has all calls of
/// the builder, and a function that takes a `&mut InstructionsBuilder` takes a `&mut BuilderScope`.
///
/// Made by [`InstructionsBuilder::on_lane`], [`on_compute`](InstructionsBuilder::on_compute),
/// [`on_pinned`](InstructionsBuilder::on_pinned), [`on_workers`](InstructionsBuilder::on_workers) and
/// [`with_launch_options`](InstructionsBuilder::with_launch_options). Entering and leaving a scope copies a few bytes.
#[derive(Debug)]
#[must_use = "the option holds until the scope is dropped: call the builder through it"]
pub struct BuilderScope<'b> {
    builder: &'b mut InstructionsBuilder,
    before: BuilderOptions,
}

impl<'b> BuilderScope<'b> {
    fn enter(builder: &'b mut InstructionsBuilder, options: BuilderOptions) -> BuilderScope<'b> {
        let before = std::mem::replace(&mut builder.options, options);
        BuilderScope { builder, before }
    }
}

impl Drop for BuilderScope<'_> {
    #[inline]
    fn drop(&mut self) {
        self.builder.options = self.before;
    }
}

impl Deref for BuilderScope<'_> {
    type Target = InstructionsBuilder;

    #[inline]
    fn deref(&self) -> &InstructionsBuilder {
        self.builder
    }
}

impl DerefMut for BuilderScope<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut InstructionsBuilder {
        self.builder
    }
}

/// Options that hold for a scope. Each call returns the builder with the option; the option ends when that value is dropped: at the end of
/// the statement, or of the block that has it in a variable. Scopes nest.
///
/// ```
/// use streamvm_ep::{DType, DeviceId};
/// use streamvm_instructions::InstructionsBuilder;
///
/// # fn main() -> Result<(), streamvm_instructions::Error> {
/// let cpu = DeviceId::cpu(0);
/// let mut b = InstructionsBuilder::new();
/// let x = b.full(cpu, DType::F32, &[2], 1.0)?; // lane 0
/// let y = b.on_lane(1).relu(&x)?; // this call on lane 1
/// {
///     let mut b = b.on_lane(2); // this block on lane 2
///     let z = b.add(&x, &y)?;
///     b.on_workers().push("note", cpu, [z.read()], || Ok(())); // workers, on lane 2
///     b.neg(&z)?;
/// }
/// b.neg(&x)?; // lane 0 again
/// let streams: Vec<String> = b.list().instructions().iter().map(|i| i.stream.to_string()).collect();
/// let compute = |lane: u32| format!("compute@cpu:0:{lane}");
/// assert_eq!(streams, [compute(0), compute(1), compute(2), "workers@cpu:0:2".into(), compute(2), compute(0)]);
/// # Ok(())
/// # }
/// ```
///
/// A list may be finished when the scope has ended:
///
/// ```compile_fail,E0505
/// use streamvm_instructions::InstructionsBuilder;
///
/// let mut b = InstructionsBuilder::new();
/// let mut on_lane = b.on_lane(1);
/// on_lane.barrier();
/// b.finish(); // the scope still borrows the builder
/// ```
impl InstructionsBuilder {
    /// The builder on another lane. Without it, a builder is on the [`Lane`](crate::Lane) that was current when it was made.
    #[inline]
    pub fn on_lane(&mut self, lane: u32) -> BuilderScope<'_> {
        let options = BuilderOptions { lane, ..self.options };
        BuilderScope::enter(self, options)
    }

    /// The builder with kernels and functions on compute streams, as in a new builder.
    #[inline]
    pub fn on_compute(&mut self) -> BuilderScope<'_> {
        self.computing_on(StreamType::Compute)
    }

    /// The builder with kernels and functions on pinned compute streams; the outputs of kernels lie in pinned host memory.
    #[inline]
    pub fn on_pinned(&mut self) -> BuilderScope<'_> {
        self.computing_on(StreamType::PinnedCompute)
    }

    /// The builder with functions, and kernels of CPU devices, on the workers of their device. Each of them runs as soon as its dependences
    /// are satisfied, whatever was issued before it. The lane tells apart several pools of workers of one device.
    #[inline]
    pub fn on_workers(&mut self) -> BuilderScope<'_> {
        self.computing_on(StreamType::Workers)
    }

    /// The builder with launch options for functions. The priority matters only among the functions that are ready on workers: ordered
    /// streams run in order.
    #[inline]
    pub fn with_launch_options(&mut self, launch: LaunchOptions) -> BuilderScope<'_> {
        let options = BuilderOptions { launch, ..self.options };
        BuilderScope::enter(self, options)
    }

    #[inline]
    fn computing_on(&mut self, compute: StreamType) -> BuilderScope<'_> {
        let options = BuilderOptions { compute, ..self.options };
        BuilderScope::enter(self, options)
    }
}
