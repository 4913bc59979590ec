//! The errors of recording, compiling and running programs.

use streamvm_ep::{self as ep, DType, ProgramStep, Shape, Site};

use crate::place::Place;

/// Why a call could not be recorded, or why a program could not be compiled or run.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// A call that cannot be a step of a program.
    #[error("{what}, issued at {site}, cannot be recorded: {why}")]
    NotRecordable {
        /// The call.
        what: String,
        /// Where the caller issued it.
        site: Site,
        /// The reason, and what to do instead.
        why: String,
    },
    /// A tensor of a recording was waited for, or its elements were read.
    #[error(
        "a tensor of a recording has no elements, so the call at {site} cannot wait for it or read it; fetch it by a name, and run the program"
    )]
    NoElements {
        /// The site of the call.
        site: Site,
    },
    /// A tensor of a recording was used when that recording was over, or on another thread.
    #[error(
        "this tensor{} belongs to a recording that is over, or to one of another thread; fetch it by a name, and run the program",
        used_at(*site)
    )]
    RecordingOver {
        /// The site of the call that used it, if it was a call.
        site: Option<Site>,
    },
    /// A name is empty, has spaces or control characters, or was given twice.
    #[error("program {program:?}: the {kind} that {site} names is called {name:?}, {}", unfit(name, *first))]
    Name {
        /// The program.
        program: String,
        /// Feed, parameter or fetch.
        kind: &'static str,
        /// The name.
        name: String,
        /// Where the caller gave it.
        site: Site,
        /// Where the caller gave the name before, if it was given twice.
        first: Option<Site>,
    },
    /// The program is not well formed.
    #[error("program {program:?} is not well formed: {what}")]
    Malformed {
        /// The program.
        program: String,
        /// The mistake.
        what: String,
    },
    /// A run was to be watched step by step, of a program that was compiled without that.
    #[error("program {program:?} was not compiled step by step; compile it with `step_by_step`, and run that")]
    NotStepByStep {
        /// The program.
        program: String,
    },
    /// A run was to be watched step by step, of a program that has a critical section.
    #[error(
        "program {program:?} has the critical section over {section}, begun at {site}, and cannot be watched: its steps would be submitted one by one, \
         and other holders could come in between; run it without a watch, or record it without the section and watch it within `Vm::enter_section`"
    )]
    WatchedSection {
        /// The program.
        program: String,
        /// The names of the section's resources.
        section: String,
        /// The site that recorded its begin.
        site: Site,
    },
    /// The compiler cannot compile this program.
    #[error("program {program:?} cannot be compiled: {}{what}", at(step.as_ref()))]
    NotCompiled {
        /// The program.
        program: String,
        /// The step that cannot be compiled, if the reason is one step.
        step: Option<ProgramStep>,
        /// The reason, and what to do instead. If there is a step, it goes on after its name: "runs on ...".
        what: String,
    },
    /// A program was to run that calls a function without code, because it was parsed from text.
    #[error(
        "program {program:?} calls the function {function:?}, which was parsed from text and has no code; give it code by `Program::bind_function`"
    )]
    NoCode {
        /// The program.
        program: String,
        /// The function.
        function: String,
    },
    /// A feed or parameter is given that the program does not have, or is given twice, or is missing; or a fetch, a function or a critical resource is
    /// asked for that it does not have.
    #[error("program {program:?}: {what}; {}", known_of(kind, known))]
    Unknown {
        /// The program.
        program: String,
        /// Feed, parameter, fetch, function or critical resource.
        kind: &'static str,
        /// The mistake.
        what: String,
        /// The names that there are.
        known: Vec<String>,
    },
    /// A tensor does not fit the feed or parameter that it was given for.
    #[error(
        "program {program:?}: the tensor for {kind} {name:?} is {found_dtype}{found} on {found_place}, and {dtype}{expected} on {place} is needed; cast, reshape or copy it, or use `vm.jit`, which compiles for each shape"
    )]
    Mismatch {
        /// The program.
        program: String,
        /// Feed or parameter.
        kind: &'static str,
        /// Its name.
        name: String,
        /// The dtype that is needed.
        dtype: DType,
        /// The shape that is needed, with the names of bounded sizes.
        expected: String,
        /// Where it must live.
        place: Place,
        /// The dtype of the tensor.
        found_dtype: DType,
        /// The shape of the tensor.
        found: Box<Shape>,
        /// Where the tensor lives.
        found_place: Place,
    },
    /// A feed has an axis that is longer than its bound, or of another size than an axis of the same name.
    #[error(
        "program {program:?}: the tensor for feed {feed:?} has {what}; give sizes within the bounds, the same for the same name, or record the program with a larger `Dim::up_to`"
    )]
    Size {
        /// The program.
        program: String,
        /// The feed.
        feed: String,
        /// Name and size, and what it may be.
        what: String,
    },
    /// A parameter that the program writes shares memory with another tensor that the program was given.
    #[error(
        "program {program:?}: the tensors for parameter {parameter:?} and {kind} {other:?} share memory, and the program writes the parameter; give each a tensor \
         of its own"
    )]
    Shared {
        /// The program.
        program: String,
        /// The name of the parameter.
        parameter: String,
        /// Whether the other one is a feed or a parameter.
        kind: &'static str,
        /// The name of the other one.
        other: String,
    },
    /// A tensor that is bound to a parameter views a part of its storage.
    #[error(
        "program {program:?}: the tensor for parameter {name:?} is a part of its storage; copy it to a tensor of its own"
    )]
    PartOfStorage {
        /// The program.
        program: String,
        /// The parameter.
        name: String,
    },
    /// A recorder was used inside of another recording, or when its own was over.
    #[error("a recorder was used inside of another recording of its thread; use the recorder of the innermost one")]
    NotInnermost,
    /// A text is no program.
    #[error("line {line} is no line of a program: expected {expected}; found {found:?}")]
    Text {
        /// The line, counted from 1.
        line: usize,
        /// What was expected.
        expected: String,
        /// The words that stand there.
        found: String,
    },
}

impl ProgramError {
    /// Whether its message names a site.
    pub(crate) fn has_site(&self) -> bool {
        use ProgramError::{Name, NoElements, NotRecordable, RecordingOver};
        matches!(self, Name { .. } | NotRecordable { .. } | NoElements { .. } | RecordingOver { site: Some(_) })
    }
}

fn unfit(name: &str, first: Option<Site>) -> String {
    match first {
        Some(first) => format!("as is the one that {first} names; give each a name of its own"),
        None if name.is_empty() => "which is no name; give it one".to_owned(),
        None => "which has spaces or control characters; give it a name without them".to_owned(),
    }
}

fn at(step: Option<&ProgramStep>) -> String {
    step.map(|step| format!("{step}, ")).unwrap_or_default()
}

fn used_at(site: Option<Site>) -> String {
    site.map(|site| format!(", used at {site},")).unwrap_or_default()
}

fn known_of(kind: &str, known: &[String]) -> String {
    let ending = if kind.ends_with("ch") { "es" } else { "s" };
    if known.is_empty() {
        format!("it has no {kind}{ending}")
    } else {
        format!("its {kind}{ending} are {}", known.join(", "))
    }
}

ep::debug_as_display!(ProgramError);
