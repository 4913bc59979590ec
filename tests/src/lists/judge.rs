//! Gives the instructions of a seed to an engine in every form, and checks the results.

use std::collections::BTreeMap;
use std::fmt::{self, Display};

use streamvm::ep::Error as DeviceError;
use streamvm::instructions::Role;
use streamvm::stream::{Passing, StreamClass, StreamPolicy};
use streamvm::{BuildError, Cause, Error, InstructionList, InstructionsBuilder, Place, Tensor, Vm};

use super::drawn::{Declared, Drawn, Scene, What};
use super::give::{Named, build, push};
use super::model::Model;

/// Counts of the drawn instructions and lists, and their outcomes.
#[derive(Clone, Debug, Default)]
pub struct Census {
    /// By kind of instruction: the numbers that `push` has accepted and refused.
    kinds: BTreeMap<&'static str, (u64, u64)>,
    /// Number of refused instructions, by variant of the error.
    refusals: BTreeMap<&'static str, u64>,
    /// Number of lists, by form and outcome.
    lists: BTreeMap<(&'static str, String), u64>,
}

impl Census {
    /// The kinds of instructions of which none was accepted.
    pub fn missing(&self) -> Vec<&'static str> {
        let accepted = |kind: &&str| self.kinds.get(*kind).is_some_and(|(accepted, _)| *accepted > 0);
        KINDS.into_iter().filter(|kind| !accepted(kind)).collect()
    }

    /// Adds another census.
    pub fn add(&mut self, other: Census) {
        for (kind, (accepted, refused)) in other.kinds {
            let counts = self.kinds.entry(kind).or_default();
            *counts = (counts.0 + accepted, counts.1 + refused);
        }
        other.refusals.into_iter().for_each(|(error, count)| *self.refusals.entry(error).or_default() += count);
        other.lists.into_iter().for_each(|(list, count)| *self.lists.entry(list).or_default() += count);
    }

    /// Number of lists that passed completely, over all forms.
    pub fn passed(&self) -> u64 {
        self.lists.iter().filter(|((_, what), _)| what == PASSED).map(|(_, count)| count).sum()
    }

    /// Number of instructions that were refused with this variant of the error.
    pub fn refused(&self, variant: &str) -> u64 {
        self.refusals.get(variant).copied().unwrap_or(0)
    }

    fn list(&mut self, form: &'static str, what: impl Into<String>) {
        *self.lists.entry((form, what.into())).or_default() += 1;
    }
}

/// Every kind of instruction, as lists print it.
const KINDS: [&str; 18] = [
    "call", "copy", "fill", "alloc", "release", "touch", "fn", "host", "access", "cuda", "program", "push", "barrier",
    "record", "wait", "begin", "end", "sync",
];

const PASSED: &str = "passed";

impl Display for Census {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (kind, (accepted, refused)) in &self.kinds {
            writeln!(f, "instructions  {kind:<10} accepted {accepted:>6}   refused {refused:>6}")?;
        }
        for (error, count) in &self.refusals {
            writeln!(f, "refused by    {error:<32} {count:>6}")?;
        }
        for ((form, what), count) in &self.lists {
            writeln!(f, "lists         {form:<7} {what:<36} {count:>6}")?;
        }
        Ok(())
    }
}

/// Gives the instructions of `seed` to the engine, which must have the drawn devices.
///
/// # Errors
/// The property that does not hold, with the list.
pub fn judge(vm: &Vm, seed: u64) -> Result<Census, String> {
    let scene = Scene::draw(seed);
    let mut judge = Judge { vm, scene: &scene, census: Census::default() };
    judge.judge().map_err(|what| format!("seed {seed}: {what}"))?;
    Ok(judge.census)
}

struct Judge<'a> {
    vm: &'a Vm,
    scene: &'a Scene,
    census: Census,
}

impl Judge<'_> {
    fn judge(&mut self) -> Result<(), String> {
        let scene = self.scene;
        let (tensors, mut pushed, mut accepted) = (scene.handles(), InstructionList::new(), Vec::new());
        let (mut named, mut no_list) = (Named::new(&scene.instructions), InstructionList::new());
        for drawn in &scene.instructions {
            // Checked alone: the steps of a program, which no list has, and the end of a section whose begin was refused.
            let alone =
                drawn.what == What::Function(Role::Program) || drawn.what == What::End && !named.is_section_open();
            let outcome = push(drawn, &tensors, &mut named, if alone { &mut no_list } else { &mut pushed });
            let counts = self.census.kinds.entry(drawn.what.word()).or_default();
            match &outcome {
                Ok(()) => counts.0 += 1,
                Err(error) => {
                    counts.1 += 1;
                    *self.census.refusals.entry(refusal(error)).or_default() += 1;
                }
            }
            self.reads_alike(drawn, outcome.as_ref().err())?;
            if drawn.what == What::Function(Role::Program) && outcome.is_ok() {
                self.reaches(drawn)?;
            }
            if outcome.is_ok() && !alone {
                accepted.push(drawn);
            }
        }
        let text: Vec<&Drawn> =
            accepted.iter().copied().filter(|drawn| !drawn.what.has_code() && scene.fits(drawn)).collect();
        let lines: String = text.iter().enumerate().filter_map(|(at, drawn)| scene.line(at, drawn)).collect();
        let lines = scene.declarations() + &lines;
        let parsed = InstructionList::parse(&lines).map_err(|error| format!("{error}, in\n{lines}"))?;
        let printed = parsed.to_string();
        let again = InstructionList::parse(&printed).map_err(|error| format!("{error}, in\n{printed}"))?;
        if again.to_string() != printed {
            return Err(format!("what is printed reads as another list:\n{printed}"));
        }
        let found = self.owners_of(&again, &text);
        self.run("text", again, &text, &found)?;
        let owners = tensors.into_iter().map(Some).collect::<Vec<_>>();
        self.run("pushed", pushed, &accepted, &owners)?;
        self.built()
    }

    /// The parser of lists must refuse exactly the instructions that `push` refuses.
    fn reads_alike(&self, drawn: &Drawn, refused: Option<&Error>) -> Result<(), String> {
        let Some(text) = self.scene.alone(drawn) else { return Ok(()) };
        match (InstructionList::parse(&text), refused) {
            (Ok(_), None) | (Err(_), Some(_)) => Ok(()),
            (Err(_), None) if !self.scene.fits(drawn) => Ok(()),
            (Ok(_), Some(error)) => Err(format!("a list refuses what a text says: {error}\n{text}")),
            (Err(error), None) => Err(format!("a list takes what a text may not say: {error}\n{text}")),
        }
    }

    /// The steps of an accepted program must be able to use its tensors, by the runner of its stream: a device those in its own memory, threads of
    /// the host those in memory of the host. Text and list share their check, and no list runs such steps, so this is their only judge.
    fn reaches(&self, drawn: &Drawn) -> Result<(), String> {
        let by_host = StreamPolicy::of(StreamClass::of(&drawn.stream)).passing() != Passing::Later;
        for (tensor, _) in &drawn.uses {
            let Declared { place, memory, .. } = self.scene.tensors[*tensor];
            let of_host = place.device().is_none_or(|device| device.kind.is_cpu()) || memory.is_page_locked();
            if if by_host { !of_host } else { place != Place::Device(drawn.stream.device) } {
                return Err(format!("a program on {} is given t{tensor}, {memory} memory of {place}", drawn.stream));
            }
        }
        Ok(())
    }

    /// The tensors of a parsed list, by the numbers of the drawn tensors.
    fn owners_of(&self, list: &InstructionList, drawn: &[&Drawn]) -> Vec<Option<Tensor>> {
        let mut owners = vec![None; self.scene.tensors.len()];
        for (instruction, drawn) in list.instructions().iter().zip(drawn) {
            for (used, (tensor, _)) in list.uses(instruction).iter().zip(&drawn.uses) {
                owners[self.scene.owner(*tensor)] = used.as_tensor().map(|tensor| tensor.owner().clone());
            }
        }
        owners
    }

    /// Adds the same instructions with the calls of a builder; the printed list must parse.
    fn built(&mut self) -> Result<(), String> {
        let (tensors, mut builder, mut accepted) = (self.scene.handles(), InstructionsBuilder::new(), Vec::new());
        let mut named = Named::new(&self.scene.instructions);
        for drawn in &self.scene.instructions {
            if let Some(Ok(())) = build(drawn, &tensors, &mut named, &mut builder) {
                accepted.push(drawn);
            }
        }
        let list = builder.finish();
        let printed = list.to_string();
        if let Err(error) = InstructionList::parse(&printed) {
            return Err(format!("a builder made what a text may not say: {error}, in\n{printed}"));
        }
        let owners = tensors.into_iter().map(Some).collect::<Vec<_>>();
        self.run("built", list, &accepted, &owners)
    }

    /// Submits a list and waits for it. Afterwards the tensors must hold what the model computes.
    fn run(
        &mut self,
        form: &'static str,
        list: InstructionList,
        drawn: &[&Drawn],
        tensors: &[Option<Tensor>],
    ) -> Result<(), String> {
        let text = list.to_string();
        let wrong = |what: String| Err(format!("{form}: {what}, of\n{text}"));
        let ticket = match self.vm.submit(list) {
            Ok(ticket) => ticket,
            Err(error) => {
                self.census.list(form, format!("refused by {}", refused_by(&error)));
                return Ok(());
            }
        };
        let failed = match ticket.wait() {
            Ok(()) => None,
            Err(Error::Failed(failure)) => Some(failure),
            Err(error) => return wrong(format!("neither passed nor failed: {error}")),
        };
        match &failed {
            None => self.census.list(form, PASSED),
            Some(failure) => {
                let Some(cause) = may_fail(&failure.cause) else { return wrong(failure.to_string()) };
                self.census.list(form, format!("failed by {cause}"));
            }
        }
        let mut model = Model::new(self.scene);
        drawn.iter().for_each(|drawn| model.run(drawn));
        for (owner, tensor) in tensors.iter().enumerate().filter(|(owner, _)| model.is_written(*owner)) {
            let Some(tensor) = tensor else { continue };
            match tensor.to_vec::<f32>() {
                Ok(elements) if model.may_hold(owner, &elements) => {}
                Ok(elements) => {
                    return wrong(format!("t{owner} holds {elements:?}, and {} is right", model.told(owner)));
                }
                Err(Error::Failed(_)) if failed.is_some() => {}
                Err(error) => return wrong(format!("t{owner} cannot be read: {error}")),
            }
        }
        Ok(())
    }
}

/// The name of a failure with which an instruction of an accepted list may end: an error that only the device can find when it runs the
/// instruction, or an error of the function.
fn may_fail(cause: &Cause) -> Option<&'static str> {
    match cause {
        Cause::Device(DeviceError::HostFunction { .. }) => Some("HostFunction"),
        Cause::Device(DeviceError::NoRawStream) => Some("NoRawStream"),
        Cause::Device(DeviceError::OutOfReach { .. }) => Some("OutOfReach"),
        Cause::Function(_) => Some("Function"),
        _ => None,
    }
}

/// The name of the error with which a list refuses an instruction.
fn refusal(error: &Error) -> &'static str {
    let Error::Build { error, .. } = error else { return "no build error" };
    match error {
        BuildError::Op(_) => "Op",
        BuildError::Shape(_) => "Shape",
        BuildError::Place { .. } => "Place",
        BuildError::OutOfReach { .. } => "OutOfReach",
        BuildError::OnHost { .. } => "OnHost",
        BuildError::Output { .. } => "Output",
        BuildError::Overlap { .. } => "Overlap",
        BuildError::WritesBroadcast { .. } => "WritesBroadcast",
        BuildError::WritesUpload { .. } => "WritesUpload",
        BuildError::Form { .. } => "Form",
        BuildError::WritesNothing { .. } => "WritesNothing",
        BuildError::Section { .. } => "Section",
        _ => "another",
    }
}

/// The name of the error with which an engine refuses a list.
fn refused_by(error: &Error) -> &'static str {
    match error {
        Error::NeverWritten { .. } => "NeverWritten",
        Error::Released { .. } => "Released",
        Error::Unordered { .. } => "Unordered",
        Error::WaitsForLater { .. } => "WaitsForLater",
        Error::NotEnded { .. } => "NotEnded",
        _ => "another",
    }
}
