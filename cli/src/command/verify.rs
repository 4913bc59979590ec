//! `streamvm verify`: judges a trace with the independent verifier.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;

use streamvm_verify::{Trace, verify};

use crate::base::printable::{is_stdin, json_without_controls, printable, where_it_starts};
use crate::command::exit::{Exit, written};

/// `streamvm verify TRACE`; `-` is stdin.
///
/// # Errors
/// Only if `err` cannot be written.
pub fn verify_trace(path: &Path, json: bool, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<Exit> {
    let name = printable(&path.display().to_string());
    let input: Box<dyn BufRead> = if is_stdin(path) {
        Box::new(io::stdin().lock())
    } else {
        match File::open(path) {
            Ok(file) => Box::new(BufReader::new(file)),
            Err(error) => {
                let help = where_it_starts(path, &error);
                writeln!(err, "{name}: error: cannot read the trace: {error}{help}")?;
                return Ok(Exit::Rejected);
            }
        }
    };
    let trace = match Trace::read(input) {
        Ok(trace) => trace,
        Err(error) => {
            writeln!(err, "{name}:{}: error: {}", error.line, printable(&error.what))?;
            if error.line == 1 {
                writeln!(err, " = help: `streamvm run --record FILE` writes a trace; docs/trace.md has the format")?;
            }
            return Ok(Exit::Rejected);
        }
    };
    log::info!("read {name}");
    let report = match verify(&trace) {
        Ok(report) => report,
        Err(error) => {
            writeln!(err, "{name}: error: {error}")?;
            return Ok(Exit::Rejected);
        }
    };
    let exit = if report.is_ok() { Exit::Fine } else { Exit::Failed };
    let text = if json { as_json(&report)? } else { report.to_string() };
    let result = write!(out, "{text}").and_then(|()| out.flush());
    Ok(written(result, err)?.unwrap_or(exit))
}

/// The report's fields, and `ok`.
fn as_json(report: &streamvm_verify::Report) -> io::Result<String> {
    let mut value = serde_json::to_value(report)?;
    value["ok"] = report.is_ok().into();
    Ok(json_without_controls(format!("{value:#}\n")))
}
