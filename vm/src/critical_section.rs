//! Critical sections that span several submissions: [`Vm::enter_section`] and [`CriticalSection`].

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use streamvm_ep::{InlineFn, Site};
use streamvm_instructions::{
    Critical, Error, InstructionList, InstructionsBuilder, Kind, OpenSection, Role, Section, Tensor,
};
use streamvm_stream::{StreamKey, StreamType};

use crate::engine::submission::Full;
use crate::submit::commit::Submitted;
use crate::ticket::Ticket;
use crate::vm::Vm;

/// A critical section that the calling thread has begun: from [`Vm::enter_section`] to [`CriticalSection::end`], everything that this
/// thread submits to the engine belongs to it: eager calls, lists, functions, runs of programs.
///
/// The instructions of a section run after everything of earlier sections over one of its resources, and before everything of later ones.
/// Submissions stay asynchronous: the section is over for other threads once its end is *submitted*, and the engine orders the rest.
///
/// **Dropping** it without an end, by an early return or a panic, ends the section, so that the resources do not stay blocked, and fails an
/// instruction that names the section and the line that began it; [`Vm::wait_all`] and [`Vm::shutdown`] return that failure.
///
/// Not `Send`: the section belongs to its thread.
#[must_use = "a section that is dropped without `end` is reported as a failure"]
pub struct CriticalSection<'vm> {
    vm: &'vm Vm,
    section: Section,
    site: Site,
    lane: u32,
    ended: bool,
    here: PhantomData<*const ()>,
}

impl Vm {
    /// A new resource of critical sections, with a name for lists, errors and reports. As [`Critical::new`].
    pub fn critical(&self, name: impl Into<std::sync::Arc<str>>) -> Critical {
        Critical::new(name)
    }

    /// Begins a critical section over `resources` for the calling thread. The section begins on the device when earlier sections over
    /// these resources have run and `feeds`, the tensors that it needs, are written; this call does not wait for that. If a feed failed, its
    /// readers are skipped; the section still begins.
    ///
    /// ```
    /// # fn main() -> Result<(), streamvm::Error> {
    /// let vm = streamvm::Vm::builder().build()?;
    /// let port = vm.critical("port");
    /// let total = vm.from_slice(&[0i64], &[1])?.to(streamvm::DeviceId::cpu(0))?;
    /// std::thread::scope(|threads| {
    ///     for _ in 0..4 {
    ///         threads.spawn(|| -> Result<(), streamvm::Error> {
    ///             let section = vm.enter_section(&[&port], &[&total])?;
    ///             // No other section over `port` reads or writes between these two instructions.
    ///             let more = (&total + 1)?;
    ///             total.copy_from(&more)?;
    ///             section.end(&[&total])?;
    ///             Ok(())
    ///         });
    ///     }
    /// });
    /// assert_eq!(total.to_vec::<i64>()?, [4]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// **Blocking.** While another thread has a section over one of the resources open, this call blocks, and so does the submission of a
    /// list with such a section. All resources of a section are taken at once, and a thread has one section open at most, so two holders
    /// of one engine never wait for each other. A holder must not wait for a thread that is blocked here. Blocked threads go on in no particular order.
    ///
    /// # Errors
    /// * [`Error::NestedSection`] if this thread has a section open;
    ///   [`BuildError::NoResource`](streamvm_instructions::BuildError::NoResource) without resources.
    /// * [`Error::SectionHeld`] instead of blocking, on a thread of an engine; [`Error::Timeout`] at the thread's
    ///   [`TimeLimit`](crate::TimeLimit); [`Error::Shutdown`] if the engine is closed meanwhile.
    /// * Those of [`Vm::submit`].
    #[track_caller]
    pub fn enter_section(&self, resources: &[&Critical], feeds: &[&Tensor]) -> Result<CriticalSection<'_>, Error> {
        let site = Site::caller();
        let section = Section::across_lists(resources);
        let mut builder = InstructionsBuilder::new();
        let lane = streamvm_instructions::Lane::current().0;
        builder.begin(&section, feeds, site)?;
        self.engine.submit(&mut builder.finish(), Full::Blocks, &mut Submitted::default())?;
        self.engine.section_gate.note_open(OpenSection { section: section.clone(), line: None, site });
        Ok(CriticalSection { vm: self, section, site, lane, ended: false, here: PhantomData })
    }
}

impl<'vm> CriticalSection<'vm> {
    /// Ends the section, after everything that this thread has submitted since its begin. `results` are tensors that the section wrote:
    /// what uses them later runs after the end. A failed result stays failed; the section ends all the same. The ticket is that of the end.
    ///
    /// # Errors
    /// Those of [`Vm::submit`], such as [`Error::NeverWritten`] for a result that nothing has written. The section ends also then.
    #[track_caller]
    pub fn end(mut self, results: &[&Tensor]) -> Result<Ticket<'vm>, Error> {
        let mut ticket = Ticket::new(&self.vm.engine);
        let mut list = self.ending(results, Site::caller());
        let ended = self.vm.engine.submit(&mut list, Full::Blocks, &mut ticket.submitted);
        if ended.is_err() {
            let mut plain = self.ending(&[], Site::caller());
            let again = self.vm.engine.submit(&mut plain, Full::Blocks, &mut Submitted::default());
            self.close(again.is_ok());
        } else {
            self.close(true);
        }
        self.vm.engine.failures.log_unseen();
        ended.map(|()| ticket)
    }

    /// The list that ends the section.
    fn ending(&self, results: &[&Tensor], site: Site) -> InstructionList {
        let mut builder = InstructionsBuilder::new();
        builder.on_lane(self.lane).end(&self.section, results, site);
        builder.finish()
    }

    /// Lets other threads begin. If the end could not be submitted, the engine forgets the section; the next begin still comes after its
    /// instructions.
    fn close(&mut self, submitted: bool) {
        if !submitted {
            self.vm.engine.handle.lock().abandon_section(&self.section);
        }
        self.ended = true;
        self.vm.engine.section_gate.end(&self.section);
    }
}

impl Drop for CriticalSection<'_> {
    fn drop(&mut self) {
        if self.ended || self.vm.engine.handle.fork.is_child() {
            return;
        }
        let mut list = self.ending(&[], self.site);
        let stream = StreamKey::new(streamvm_ep::DeviceId::cpu(0), StreamType::Critical, self.lane);
        let body = InlineFn::new(|_: &mut streamvm_ep::FnContext<'_>| {
            Err("it was dropped without an end; call `CriticalSection::end` on every path".into())
        });
        let name: Cow<'static, str> = format!("the critical section over {}", self.section).into();
        let reports = list.push(stream, Kind::Function { role: Role::Host, name, body: Some(body) }, [], self.site);
        debug_assert!(reports.is_ok(), "a function without uses is always accepted: {reports:?}");
        let ended = self.vm.engine.submit(&mut list, Full::Blocks, &mut Submitted::default());
        if let Err(error) = &ended {
            let (section, site) = (&self.section, self.site);
            log::error!("the critical section over {section}, begun at {site}, was dropped without an end: {error}");
        }
        self.close(ended.is_ok());
    }
}

impl fmt::Debug for CriticalSection<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CriticalSection({}, begun at {})", self.section, self.site)
    }
}
