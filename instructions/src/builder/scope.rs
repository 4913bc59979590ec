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
    /// Whether operands that do not fit are copied and cast.
    pub(crate) transfers: bool,
}

impl BuilderOptions {
    /// The options of a new builder.
    pub(super) fn new() -> BuilderOptions {
        let (lane, compute, launch) = (Lane::current().0, StreamType::Compute, LaunchOptions::default());
        BuilderOptions { lane, compute, launch, transfers: false }
    }
}

/// An [`InstructionsBuilder`] with an option that holds until the scope is dropped. It derefs to the builder, so it has all calls of
/// the builder, and a function that takes a `&mut InstructionsBuilder` takes a `&mut BuilderScope`.
///
/// Made by [`InstructionsBuilder::on_lane`], [`on_compute`](InstructionsBuilder::on_compute),
/// [`on_pinned`](InstructionsBuilder::on_pinned), [`on_workers`](InstructionsBuilder::on_workers), [`on_collective`](InstructionsBuilder::on_collective),
/// [`with_launch_options`](InstructionsBuilder::with_launch_options) and [`with_transfers`](InstructionsBuilder::with_transfers). Entering and leaving a scope copies a few bytes.
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
        self.on_type(StreamType::Compute)
    }

    /// The builder with kernels and functions on pinned compute streams; the outputs of kernels lie in pinned host memory.
    #[inline]
    pub fn on_pinned(&mut self) -> BuilderScope<'_> {
        self.on_type(StreamType::PinnedCompute)
    }

    /// The builder with functions, and kernels of CPU devices, on the workers of their device. Each of them runs as soon as its dependences
    /// are satisfied, whatever was issued before it. The lane tells apart several pools of workers of one device.
    #[inline]
    pub fn on_workers(&mut self) -> BuilderScope<'_> {
        self.on_type(StreamType::Workers)
    }

    /// The builder with functions on the collective stream of their device, where a function may start an
    /// [`Operation`](streamvm_ep::Operation) that goes on after it has returned. The lane tells apart several collective streams of one device:
    /// their operations go on side by side, each stream has one at a time.
    #[inline]
    pub fn on_collective(&mut self) -> BuilderScope<'_> {
        self.on_type(StreamType::Collective)
    }

    /// The builder with launch options for functions. The priority matters only among the functions that are ready on workers: ordered
    /// streams run in order.
    #[inline]
    pub fn with_launch_options(&mut self, launch: LaunchOptions) -> BuilderScope<'_> {
        let options = BuilderOptions { launch, ..self.options };
        BuilderScope::enter(self, options)
    }

    /// The builder with copies and casts in front of each call whose operands are on different devices or of different dtypes. Without it, such a call is
    /// refused. They are instructions of the list like others, at the line of the call.
    ///
    /// * An op runs on the device of its first operand that is on one, or on that of the output which it is given. Operands of other places are copied there.
    /// * Operands that need one dtype get that of the output which the op is given, else the [promoted](streamvm_ep::DType::promoted) one, or the error stays.
    /// * `copy_into`, `cat` and `stack` cast to the dtype of the target, or of the first tensor.
    /// * Devices that do not reach each other are joined by way of the host.
    /// * Functions get their operands as they are.
    ///
    /// ```
    /// use streamvm_ep::{DType, DeviceId};
    /// use streamvm_instructions::InstructionsBuilder;
    ///
    /// # fn main() -> Result<(), streamvm_instructions::Error> {
    /// let (first, second) = (DeviceId::cpu(0), DeviceId::cpu(1));
    /// let mut b = InstructionsBuilder::new();
    /// let (x, i) = (b.zeros(first, DType::F32, &[2])?, b.zeros(second, DType::I64, &[2])?);
    /// assert!(b.add(&x, &i).is_err());
    /// let y = b.with_transfers().add(&x, &i)?; // copies `i` to the first device, and casts the copy
    /// assert_eq!((y.place(), y.dtype()), (first.into(), DType::F32));
    /// let kinds: Vec<String> = b.list().instructions().iter().map(|it| it.kind.name().to_owned()).collect();
    /// assert_eq!(kinds[2..], ["copy", "cast", "add"]);
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn with_transfers(&mut self) -> BuilderScope<'_> {
        let options = BuilderOptions { transfers: true, ..self.options };
        BuilderScope::enter(self, options)
    }

    /// The builder with kernels and functions on this type of stream.
    #[inline]
    pub fn on_type(&mut self, compute: StreamType) -> BuilderScope<'_> {
        let options = BuilderOptions { compute, ..self.options };
        BuilderScope::enter(self, options)
    }
}
