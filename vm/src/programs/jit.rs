//! Closures that are recorded and compiled when they are first run with feeds of some kind.

use std::fmt;
use std::sync::{Arc, Weak};

use smallvec::SmallVec;
use streamvm_ep::{Shape, Site};
use streamvm_instructions::{BuildError, Error, InstructionsBuilder, Tensor};
use streamvm_program::{CompileOptions, Dim, Program, Recorder, Results, compile, record, record_bounded_at};

use crate::engine::core::Engine;
use crate::program_cache::key::{FeedKind, Query};
use crate::program_cache::loaded::LoadedProgram;
use crate::programs::executable::Executable;
use crate::programs::fetches::Fetches;
use crate::programs::log_reasons;
use crate::sync::fork::refuse_in_child;
use crate::vm::Vm;

/// Records the closure for feeds of these kinds, with these axes if some are bounded, for a run at a site.
type Record<const FEEDS: usize> =
    dyn Fn(&[FeedKind; FEEDS], Option<&[Vec<Dim>; FEEDS]>, Site) -> Result<Program, Error> + Send + Sync;

/// A closure that is compiled just in time; made by [`Vm::jit`]. `Send + Sync`: several threads may run it at once. It does not keep its
/// engine alive; after the engine has ended, runs give [`Error::Shutdown`].
pub struct Jit<const FEEDS: usize> {
    engine: Weak<Engine>,
    name: String,
    /// Tells its programs apart from those of other closures in the engine's cache.
    number: u64,
    feeds: [String; FEEDS],
    parameters: Vec<(String, Tensor)>,
    options: CompileOptions,
    /// The axes of the feeds, if some of them are bounded.
    axes: Option<[Vec<Dim>; FEEDS]>,
    record: Box<Record<FEEDS>>,
}

impl Vm {
    /// A function that is recorded and compiled when it is first run with feeds of some shapes, dtypes and places, and found again by these
    /// after that. `closure` gets the recorder, a tensor for each feed and a tensor for each parameter, all of the recording, and names the
    /// fetches. `parameters` are the tensors that the parameters stand for, in all runs.
    ///
    /// The closure is called only to record. What it captures is a constant of the programs from then on: feed what changes from run to
    /// run. It must record the same program each time that it gets the same kinds of feeds, because a program may be dropped from the
    /// cache of [`Vm::compiled`], which has all programs of the engine, and is then recorded anew.
    ///
    /// Make one `Jit` and keep it. Each `Jit` has its own programs, even if two have the same closure. Dropping a `Jit` does not drop its
    /// programs: they stay in the cache until they are the least recently used.
    ///
    /// ```
    /// use streamvm::{DType, DeviceId, Vm};
    ///
    /// # fn main() -> Result<(), streamvm::Error> {
    /// let vm = Vm::builder().build()?;
    /// let w = vm.full(DeviceId::cpu(0), DType::F32, &[2, 2], 0.5)?;
    /// let layer = vm.jit("layer", ["x"], [("w", &w)], |r, [x], [w]| r.fetch("y", &x.matmul(w)?.relu()?));
    /// for rows in [3, 5, 3] {
    ///     let x = vm.ones(DeviceId::cpu(0), DType::F32, &[rows, 2])?;
    ///     let run = layer.run([&x])?; // compiles for 3 rows and for 5 rows
    ///     assert_eq!(run["y"].to_vec::<f32>()?, vec![1.0; rows * 2]);
    /// }
    /// assert_eq!(vm.stats().programs.misses, 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn jit<const FEEDS: usize, const PARAMETERS: usize>(
        &self,
        name: impl Into<String>,
        feeds: [&str; FEEDS],
        parameters: [(&str, &Tensor); PARAMETERS],
        closure: impl Fn(&Recorder, &[Tensor; FEEDS], &[Tensor; PARAMETERS]) -> Result<(), Error> + Send + Sync + 'static,
    ) -> Jit<FEEDS> {
        let name = name.into();
        let feeds = feeds.map(str::to_owned);
        let parameters = parameters.map(|(name, tensor)| (name.to_owned(), tensor.clone()));
        let (of_record, names, tensors) = (name.clone(), feeds.clone(), parameters.clone());
        let record = move |kinds: &[FeedKind; FEEDS], axes: Option<&[Vec<Dim>; FEEDS]>, site: Site| {
            let once = |r: &Recorder| {
                let feed = |(place, (name, kind)): (usize, (&String, &FeedKind))| match axes {
                    None => r.feed(name.as_str(), kind.place, kind.dtype, kind.shape.dims()),
                    Some(axes) => r.bounded_feed(name.as_str(), kind.place, kind.dtype, &axes[place]),
                };
                let feeds: Vec<Tensor> = names.iter().zip(kinds).enumerate().map(feed).collect::<Result<_, Error>>()?;
                let parameter = |(name, tensor): &(String, Tensor)| r.parameter(name.as_str(), tensor);
                let parameters: Vec<Tensor> = tensors.iter().map(parameter).collect::<Result<_, Error>>()?;
                closure(r, &all(feeds), &all(parameters))
            };
            if axes.is_some() {
                record_bounded_at(of_record.clone(), site, once)
            } else {
                record(of_record.clone(), once)
            }
        };
        Jit {
            engine: Arc::downgrade(&self.engine),
            name,
            number: self.engine.programs.new_number(),
            feeds,
            parameters: parameters.into(),
            options: CompileOptions::default(),
            axes: None,
            record: Box::new(record),
        }
    }
}

/// The largest shape of a feed with these axes.
fn bounds(axes: &[Dim]) -> Result<Shape, Error> {
    let sizes = axes.iter().map(|axis| match axis {
        Dim::Fixed(size) => *size,
        Dim::Bounded(dim) => dim.most,
    });
    Ok(Shape::new(&sizes.collect::<SmallVec<[usize; 8]>>()).map_err(BuildError::from)?)
}

/// The vector as an array.
fn all<const COUNT: usize>(tensors: Vec<Tensor>) -> [Tensor; COUNT] {
    tensors.try_into().unwrap_or_else(|_| unreachable!("one tensor was made for each name"))
}

impl<const FEEDS: usize> Jit<FEEDS> {
    /// Submits one run over these feeds, and returns its results at once, as [`Executable::run`] does. Blocks while the closure is
    /// recorded and compiled, if that was not done yet for feeds of these kinds.
    ///
    /// # Errors
    /// Those of the closure and of [`Vm::compile`]; those of [`Executable::run`].
    #[track_caller]
    pub fn run(&self, feeds: [&Tensor; FEEDS]) -> Result<Fetches, Error> {
        let executable = self.compiled(feeds)?;
        executable.run(&self.named(feeds))
    }

    /// Appends one run over these feeds to the list that is being built, and returns its results, as [`Executable::run_in`] does. So neighbouring elementwise calls of a
    /// list can be fused, as those of a program.
    ///
    /// ```
    /// use streamvm::{DType, DeviceId, InstructionsBuilder, Vm};
    ///
    /// # fn main() -> Result<(), streamvm::Error> {
    /// let vm = Vm::builder().build()?;
    /// let scale = vm.jit("scale", ["x"], [], |r, [x], []| r.fetch("y", &((x * 2)? + 1)?));
    /// let mut b = InstructionsBuilder::new();
    /// let x = b.full(DeviceId::cpu(0), DType::F32, &[2], 3)?;
    /// let scaled = scale.run_in(&mut b, [&x])?;
    /// let y = b.neg(&scaled["y"])?;
    /// vm.submit(b.finish())?;
    /// assert_eq!(y.to_vec::<f32>()?, [-7.0; 2]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`run`](Jit::run) but of the submission; the list is unchanged then.
    #[track_caller]
    pub fn run_in(&self, builder: &mut InstructionsBuilder, feeds: [&Tensor; FEEDS]) -> Result<Results, Error> {
        let executable = self.compiled(feeds)?;
        executable.run_in(builder, &self.named(feeds))
    }

    /// The feeds with their names.
    fn named<'t>(&'t self, feeds: [&'t Tensor; FEEDS]) -> SmallVec<[(&'t str, &'t Tensor); 4]> {
        self.feeds.iter().map(String::as_str).zip(feeds).collect()
    }

    /// The executable for feeds like these, of which only shapes, dtypes and places matter. Records and compiles the closure if that was
    /// not done yet; runs nothing.
    ///
    /// # Errors
    /// Those of the closure and of [`Vm::compile`]; [`Error::Shutdown`] when the engine is gone.
    #[track_caller]
    pub fn compiled(&self, feeds: [&Tensor; FEEDS]) -> Result<Executable, Error> {
        let site = Site::caller();
        let Some(engine) = self.engine.upgrade() else { return Err(Error::shutdown()) };
        refuse_in_child(engine.handle.fork)?;
        let mut kinds = feeds.map(FeedKind::of);
        if let Some(axes) = &self.axes {
            for (kind, axes) in kinds.iter_mut().zip(axes) {
                kind.shape = bounds(axes)?;
            }
        }
        let query = Query::Closure { number: self.number, feeds: &kinds };
        let loaded = match engine.programs.made(query) {
            Some(made) => made,
            None => {
                // The closure is the caller's code, so it runs before the entry is made: no other thread waits for it.
                let program = (self.record)(&kinds, self.axes.as_ref(), site)?;
                let load = || LoadedProgram::new(&engine, compile(program, &self.options)?);
                let loaded = engine.programs.get_or_load(query, load);
                log_reasons(&engine);
                loaded
            }
        };
        let parameters: SmallVec<[(&str, &Tensor); 8]> =
            self.parameters.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let made = loaded.and_then(|loaded| Executable::new(&engine, loaded, &parameters, site));
        made.map_err(|error| error.called_from(site))
    }

    /// The same closure for feeds with these axes, some of them with a bound ([`Dim::up_to`]). It is recorded and compiled once, for the bounds, and runs with
    /// all sizes up to them; a run compiles nothing. What the closure reads of the shapes of its feeds is one of several examples, for which it is called in turn
    /// ([`Vm::record_bounded`]).
    ///
    /// ```
    /// use streamvm::program::Dim;
    /// use streamvm::{DType, DeviceId, Vm};
    ///
    /// # fn main() -> Result<(), streamvm::Error> {
    /// let vm = Vm::builder().build()?;
    /// let w = vm.full(DeviceId::cpu(0), DType::F32, &[2, 2], 0.5)?;
    /// let layer = vm.jit("layer", ["x"], [("w", &w)], |r, [x], [w]| r.fetch("y", &x.matmul(w)?.relu()?));
    /// let layer = layer.bounded([&[Dim::up_to("rows", 64), 2.into()]]);
    /// for rows in [3, 5, 64] {
    ///     let x = vm.ones(DeviceId::cpu(0), DType::F32, &[rows, 2])?;
    ///     let run = layer.run([&x])?; // compiles at the first run
    ///     assert_eq!(run["y"].to_vec::<f32>()?, vec![1.0; rows * 2]);
    /// }
    /// assert_eq!(vm.stats().programs.misses, 1);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn bounded(mut self, axes: [&[Dim]; FEEDS]) -> Jit<FEEDS> {
        if let Some(engine) = self.engine.upgrade() {
            self.number = engine.programs.new_number();
        }
        self.axes = Some(axes.map(<[Dim]>::to_vec));
        self
    }

    /// The same closure, compiled with other options than the default.
    #[must_use]
    pub fn with_options(mut self, options: CompileOptions) -> Jit<FEEDS> {
        if let Some(engine) = self.engine.upgrade() {
            self.number = engine.programs.new_number();
        }
        self.options = options;
        self
    }
}

impl<const FEEDS: usize> fmt::Debug for Jit<FEEDS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jit").field("name", &self.name).field("feeds", &self.feeds).finish_non_exhaustive()
    }
}
