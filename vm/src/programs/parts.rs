//! Runs for some of the fetches of a program.

use hashbrown::HashSet;
use smallvec::SmallVec;
use streamvm_ep::Site;
use streamvm_instructions::{Error, Tensor};
use streamvm_program::compile;

use crate::program_cache::key::Query;
use crate::program_cache::loaded::LoadedProgram;
use crate::programs::executable::Executable;
use crate::programs::fetches::Fetches;
use crate::programs::log_reasons;
use crate::sync::fork::refuse_in_child;

impl Executable {
    /// Runs what these fetches need, and gives these alone: steps that none of them needs do not run, functions and updates of parameters among them, and feeds
    /// that none needs may be left out. So the loss of a training program can be asked for without training.
    ///
    /// The first call with these names compiles the needed steps ([`Program::for_fetches`](streamvm_program::Program::for_fetches)) with the options of this executable, and keeps them beside its program,
    /// for later calls: for at most 16 choices of names, the least recently used goes first. A run that draws random numbers counts as a run
    /// ([`next_run`](Executable::next_run)), and draws those that the whole program would draw in it.
    ///
    /// ```
    /// use streamvm::program::CompileOptions;
    /// use streamvm::{DType, DeviceId, Vm};
    ///
    /// # fn main() -> Result<(), streamvm::Error> {
    /// let (vm, cpu) = (Vm::builder().build()?, DeviceId::cpu(0));
    /// let w = vm.full(cpu, DType::F32, &[], 3.0)?;
    /// let program = vm.record("descent", |r| {
    ///     let (x, w) = (r.feed("x", cpu, DType::F32, &[])?, r.parameter("w", &w)?);
    ///     let error = (&w - &x)?;
    ///     r.fetch("loss", &(&error * &error)?)?;
    ///     w.sub_assign(&(&error * 0.5)?)
    /// })?;
    /// let step = vm.compile(program, &[("w", &w)], &CompileOptions::default())?;
    /// let x = vm.full(cpu, DType::F32, &[], 1.0)?;
    /// assert_eq!(step.run_for(&[("x", &x)], &["loss"])?["loss"].to_scalar::<f32>()?, 4.0);
    /// assert_eq!(w.to_scalar::<f32>()?, 3.0); // no step was taken
    /// step.run(&[("x", &x)])?;
    /// assert_eq!(w.to_scalar::<f32>()?, 2.0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ProgramError::Unknown`](streamvm_instructions::ProgramError::Unknown) for a name that is no fetch, or is given twice, or a feed that the program does not have; those of
    /// [`run`](Executable::run).
    #[track_caller]
    pub fn run_for(&self, feeds: &[(&str, &Tensor)], fetches: &[&str]) -> Result<Fetches, Error> {
        let site = Site::caller();
        let part = self.part_for(fetches, site).map_err(|error| error.called_from(site))?;
        // A feed that no named fetch needs is left out; the run refuses one that the whole program does not have.
        let [whole, needed] = [self, &part].map(|it| &it.inner.compiled.program().feeds);
        let needed: HashSet<&str> = needed.iter().map(|port| port.name.as_str()).collect();
        let names = whole.iter().map(|port| port.name.as_str());
        let unneeded: HashSet<&str> = names.filter(|name| !needed.contains(name)).collect();
        let feeds: SmallVec<[(&str, &Tensor); 4]> =
            feeds.iter().filter(|(name, _)| !unneeded.contains(name)).copied().collect();
        part.run_as(None, &feeds, site).map_err(|error| part.refused(error, &feeds, site))
    }

    /// The executable of what these fetches need.
    fn part_for(&self, fetches: &[&str], site: Site) -> Result<Executable, Error> {
        let Some(engine) = self.engine.upgrade() else { return Err(Error::shutdown()) };
        refuse_in_child(engine.handle.fork)?;
        let whole = &self.inner;
        let parts = whole.parts.get_or_init(|| Box::new(engine.programs.of_parts()));
        let query = Query::Fetches { names: fetches };
        let loaded = match parts.made(query) {
            Some(made) => made?,
            None => {
                // A name that is no fetch takes no room in the cache.
                let program = whole.compiled.program().for_fetches(fetches)?;
                let load = || {
                    let compiled = compile(program, whole.compiled.options())?.drawing_as(&whole.compiled);
                    let loaded = LoadedProgram::new(&engine, compiled)?;
                    Ok(LoadedProgram { next_run: whole.next_run.clone(), ..loaded })
                };
                let loaded = parts.get_or_load(query, load);
                log_reasons(&engine);
                loaded?
            }
        };
        // The part has some of the parameters, in the same order.
        let mut needed = loaded.compiled.program().parameters.iter().peekable();
        let is_needed = |(name, _): &(&str, &Tensor)| needed.next_if(|port| port.name == *name).is_some();
        let parameters: SmallVec<[(&str, &Tensor); 8]> = self.parameters().filter(is_needed).collect();
        Executable::new(&engine, loaded.clone(), &parameters, site)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;

    use streamvm_ep::{DType, DeviceId};
    use streamvm_program::CompileOptions;

    use super::*;
    use crate::vm::Vm;

    /// A part is compiled once, goes with its program, counts nothing in the engine's cache, and a wrong name pushes none out.
    #[test]
    fn parts_are_kept_with_their_program() {
        let (vm, cpu, held) = (Vm::builder().build().expect("an engine"), DeviceId::cpu(0), Arc::new(()));
        let captured = held.clone();
        let program = vm.record("both", |r| {
            let (x, y) = (r.feed("x", cpu, DType::F32, &[2])?, r.zeros(cpu, DType::F32, &[2])?);
            r.call_fn("copies", cpu, [x.read(), y.write()], move |context| {
                let _held = &captured;
                context.writes.take::<f32>(0)?.copy_from_slice(context.reads.get(0)?);
                Ok(())
            })?;
            (0..20).try_for_each(|number| r.fetch(format!("y{number}"), &y))?;
            r.fetch("z", &x.neg()?)
        });
        let both = vm.compile(program.expect("a program"), &[], &CompileOptions::default()).expect("it compiles");
        let part = |name: &str| both.part_for(&[name], Site::caller()).map(|part| part.inner);
        let first = part("z").expect("a part");
        for _ in 0..20 {
            assert!(part("nothing").is_err());
        }
        assert!(Arc::ptr_eq(&first, &part("z").expect("a part")));
        for number in 0..20 {
            part(&format!("y{number}")).expect("a part");
        }
        assert!(!Arc::ptr_eq(&first, &part("z").expect("a part")), "at most 16 are kept");
        assert_eq!(vm.stats().programs.programs, 0);
        drop(both);
        assert_eq!(Arc::strong_count(&held), 1, "the functions went with the program");
    }
}
