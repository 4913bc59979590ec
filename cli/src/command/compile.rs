//! `streamvm compile`: compiles programs and shows the result. It needs no engine and no device.
//!
//! The file is a script, each of whose programs is compiled, or the text of one program, as `--show program` prints it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crate::analysis::check::checked;
use crate::base::engine::{CompileOptions, Compiled, DeviceId, Error, Program, ProgramError, compile_reporting};
use crate::base::printable::{is_stdin, printable, where_it_starts};
use crate::base::spelling::did_you_mean;
use crate::command::exit::{Exit, written};
use crate::command::memory_picture::draw;
pub use crate::command::program_report::Show;
use crate::command::program_report::{Shown, json, memory, passes};
use crate::emit::devices::{Available, Devices, MOST_DEVICES};
use crate::emit::programs::not_compiled::{not_compiled, why_not_compiled};
use crate::syntax::diagnostic::{Diagnostic, render_all};
use crate::syntax::parser::parse;
use crate::syntax::source::{ReadError, Source};

/// Longest text of a program that is read, in bytes: the most that `Program::parse` takes.
const LONGEST_PROGRAM: u64 = 64 << 20;

/// Most steps of a program whose graph is drawn, and most values of one whose memory is: no reader and no layout of Graphviz follows more.
const MOST_DRAWN: usize = 10_000;

/// Options of `streamvm compile`.
#[derive(Clone, Debug, Default)]
pub struct ProgramOptions {
    /// A script, or the text of a program.
    pub file: PathBuf,
    /// `--program`: the only program to compile.
    pub program: Option<String>,
    /// `--lanes`; `None` for the compiler's default.
    pub lanes: Option<u32>,
    /// `--show`, in this order; the plan if there is none.
    pub show: Vec<Show>,
    /// `--json`: an array with an object for each program.
    pub json: bool,
    /// `--device NAME=DEVICE`.
    pub devices: Vec<(String, DeviceId)>,
}

/// `streamvm compile FILE`
///
/// # Errors
/// Only if `err` cannot be written.
pub fn compile_programs(options: &ProgramOptions, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<Exit> {
    let text = match shown(options) {
        Ok(text) => text,
        Err(message) => {
            write!(err, "{message}")?;
            return Ok(Exit::Rejected);
        }
    };
    Ok(written(out.write_all(text.as_bytes()).and_then(|()| out.flush()), err)?.unwrap_or(Exit::Fine))
}

/// The text that the command prints, or the messages that say why it rejects its input.
fn shown(options: &ProgramOptions) -> Result<String, String> {
    let plan_alone = [Show::Plan];
    let show = if options.show.is_empty() { &plan_alone[..] } else { &options.show };
    if options.json && show.iter().any(|show| !matches!(show, Show::Plan | Show::Memory | Show::Edges)) {
        return Err("error: --json shows what --show names `plan`, `memory` and `edges`\n".to_owned());
    }
    let name = printable(&options.file.display().to_string());
    let text = read(&options.file).map_err(|message| format!("{name}: error: {message}\n"))?;
    let all = if is_program(&options.file, &text) {
        vec![parsed(&name, &text, options)?]
    } else {
        of_script(&name, text, options)?
    };
    if options.json {
        return Ok(json(&all, show));
    }
    let mut parts = Vec::new();
    for shown in &all {
        for show in show {
            parts.push(match show {
                Show::Program => shown.recorded.to_string(),
                Show::Passes => passes(shown),
                Show::Plan => shown.compiled.to_string(),
                Show::Memory => memory(&shown.compiled),
                Show::Picture => picture(&name, &shown.compiled)?,
                Show::Edges => shown.compiled.show_edges(),
                Show::Dot => dot(&name, &shown.compiled)?,
            });
        }
    }
    Ok(parts.join("\n"))
}

fn picture(file: &str, compiled: &Compiled) -> Result<String, String> {
    let (values, program) = (compiled.places().len(), &compiled.program().name);
    if values > MOST_DRAWN {
        let message =
            format!("program {program:?} has {values} values, and a picture is drawn of at most {MOST_DRAWN}");
        return Err(format!("{file}: error: {message}\n = help: `--show memory` prints any number\n"));
    }
    draw(compiled).map_err(|error| format!("{file}: error: the memory of {program:?} cannot be drawn: {error}\n"))
}

fn dot(file: &str, compiled: &Compiled) -> Result<String, String> {
    let (steps, program) = (compiled.step_count(), &compiled.program().name);
    if steps > MOST_DRAWN {
        let message = format!("program {program:?} has {steps} steps, and a graph is drawn of at most {MOST_DRAWN}");
        return Err(format!("{file}: error: {message}\n = help: `--show edges` prints any number\n"));
    }
    Ok(compiled.dot())
}

/// The text of a file, or why there is none.
fn read(path: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let open = || -> io::Result<Box<dyn Read>> {
        Ok(if is_stdin(path) { Box::new(io::stdin().lock()) } else { Box::new(File::open(path)?) })
    };
    open()
        .and_then(|input| input.take(LONGEST_PROGRAM + 1).read_to_end(&mut bytes))
        .map_err(|error| format!("cannot read the program: {error}{}", where_it_starts(path, &error)))?;
    if bytes.len() as u64 > LONGEST_PROGRAM {
        return Err(format!("the file is longer than {} MiB, which is the most that is read", LONGEST_PROGRAM >> 20));
    }
    Ok(bytes)
}

/// Is this the text of a program? It begins with the program's name in a line of its own; the line of a script would open a block. A file
/// named `.svm` is a script.
fn is_program(path: &Path, text: &[u8]) -> bool {
    let mut lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let first = lines.find(|line| !line.is_empty()).unwrap_or_default();
    let is_named = first.strip_prefix(b"program").is_some_and(|rest| rest.first().is_none_or(u8::is_ascii_whitespace));
    path.extension().is_none_or(|extension| extension != "svm") && is_named && !first.contains(&b'{')
}

/// Compiles the text of a program.
fn parsed(name: &str, text: &[u8], options: &ProgramOptions) -> Result<Shown, String> {
    let wrong = |message: &str| format!("{name}: error: {}\n", printable(message));
    let text = std::str::from_utf8(text).map_err(|error| wrong(&format!("this is no UTF-8 text: {error}")))?;
    let program = Program::parse(text).map_err(|error| match line_of(&error) {
        Some((line, message)) => format!("{name}:{line}: error: {}\n", printable(&message)),
        None => wrong(&error.to_string()),
    })?;
    if let Some(wanted) = options.program.as_ref().filter(|wanted| **wanted != program.name) {
        return Err(wrong(&format!("there is no program {wanted:?}; this file has {:?}", program.name)));
    }
    compiled(&program, options).map_err(|error| match why_not_compiled(&error) {
        Some((_, why)) => wrong(&format!("program {:?} cannot be compiled: {why}", program.name)),
        None => wrong(&error.to_string()),
    })
}

/// The line of an error in the text of a program, and the message without it.
fn line_of(error: &Error) -> Option<(usize, String)> {
    let Error::Program { error: program, .. } = error else { return None };
    let ProgramError::Text { line, expected, found } = &**program else { return None };
    Some((*line, format!("expected {expected}; found {found:?}")))
}

/// Compiles the programs of a script. Any CPU device counts as there, and no other.
fn of_script(name: &str, text: Vec<u8>, options: &ProgramOptions) -> Result<Vec<Shown>, String> {
    let folder = options.file.parent().map(Path::to_path_buf).unwrap_or_default();
    let source = Source::from_bytes(name, folder, text).map_err(|error| match error {
        ReadError::File(message) => format!("{message}\n"),
        ReadError::Text(failure) => failure.1.render(&failure.0),
    })?;
    let told = |errors: Vec<Diagnostic>| render_all(&errors, &source);
    let script = parse(&source).map_err(told)?;
    let available = Available {
        devices: (0..MOST_DEVICES).map(DeviceId::cpu).collect(),
        chosen: options.devices.clone(),
        planning: true,
        ..Available::default()
    };
    let devices = Devices::resolve(&script, available).map_err(told)?;
    let programs = checked(&source, &script, &devices).map_err(told)?;
    let names: Vec<&str> = programs.iter().map(|defined| defined.block.name.value.as_str()).collect();
    if names.is_empty() {
        let help = " = help: `program NAME ... { ... }` defines one\n";
        return Err(format!("{name}: error: the script has no program\n{help}"));
    }
    if let Some(wanted) = options.program.as_deref().filter(|wanted| !names.contains(wanted)) {
        let help =
            did_you_mean(wanted, names.iter().copied()).unwrap_or_else(|| format!("it has: {}", names.join(", ")));
        return Err(format!("{name}: error: the script has no program {wanted:?}\n = help: {help}\n"));
    }
    let wanted = programs
        .iter()
        .filter(|defined| options.program.as_ref().is_none_or(|wanted| *wanted == defined.block.name.value));
    let mut errors = Vec::new();
    let mut all = Vec::new();
    for defined in wanted {
        match compiled(&defined.program, options) {
            Ok(shown) => all.push(shown),
            Err(error) => errors.push(not_compiled(&error, defined, &source)),
        }
    }
    if errors.is_empty() { Ok(all) } else { Err(told(errors)) }
}

fn compiled(program: &Program, options: &ProgramOptions) -> Result<Shown, Error> {
    let mut passes = Vec::new();
    let default = CompileOptions::default();
    let options = CompileOptions { lanes: options.lanes.unwrap_or(default.lanes), ..default };
    let compiled = compile_reporting(program, &options, &mut |pass| passes.push(pass))?;
    Ok(Shown { recorded: program.clone(), compiled, passes })
}
