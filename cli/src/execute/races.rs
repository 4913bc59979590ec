//! `streamvm check --races`: runs a script on simulated devices and reports the races of its statements.
//!
//! Each device that is not a CPU is replaced by a simulated one, which does everything in the worst legal order. One thread steps
//! all streams, and the race detector judges every access by the order that was issued, so one run is enough. The results of the
//! script are not printed, and no file is written. A `repeat` runs another round only while the run has fewer than
//! [`MAX_DRY`](crate::execute::run::MAX_DRY) instructions.

use std::io;

use crate::base::engine::{Finding, InstructionList, Label, Mode};
use crate::emit::devices::Devices;
use crate::execute::engine_options::EngineOptions;
use crate::execute::run::{DryRun, Engine, Stop, run};
use crate::syntax::ast::Block;
use crate::syntax::diagnostic::Diagnostic;
use crate::syntax::source::{Source, Span};

/// The seed of the simulated order. The detector judges the issued order, so it finds the same races for every seed.
const SEED: u64 = 0;

/// The outcome of a run.
#[derive(Debug, Default)]
pub(crate) struct Races {
    /// One message for each race.
    pub(crate) found: Vec<Diagnostic>,
    /// Number of instructions that ran.
    pub(crate) instructions: u64,
    /// The parts of the script that the run left out: each with its place and a sentence for the user.
    pub(crate) notes: Vec<(Span, String)>,
}

/// Runs a script that was checked and planned as `list`.
///
/// # Errors
/// The message of the statement that stopped the run.
pub(crate) fn find(
    engine: &EngineOptions,
    source: &Source,
    script: &Block,
    devices: &Devices,
    list: &InstructionList,
) -> Result<Races, Stop> {
    let devices = devices.simulated();
    let streams = list.instructions().iter().map(|instruction| instruction.stream.device);
    let simulated = streams.filter(|device| !device.kind.is_cpu()).map(|device| device.index + 1).max();
    let options = EngineOptions {
        mode: Mode::Simulated { seed: SEED },
        sim_devices: engine.sim_devices.max(simulated.unwrap_or(0)),
        ..engine.clone()
    };
    let vm = options.build(|builder| builder.detect_races(true).trace(None)).map_err(|error| {
        Diagnostic::new(Span::default(), format!("the simulated engine cannot be started: {error}"))
    })?;
    let dry = DryRun::default();
    let engine = Engine { memory: options.memory(), dry: Some(&dry), ..Engine::new(&vm) };
    let ran = run(engine, source, script, &devices, &mut io::sink(), None);
    let found: Vec<Diagnostic> = vm.races().iter().map(|finding| tell(finding, source)).collect();
    let mut notes = dry.into_left_out();
    match ran {
        // Rounds were left out, so values differ from those of a whole run, in which this statement may succeed.
        Err(Stop::Statement(stopped)) if !notes.is_empty() => {
            notes.push((
                stopped.span,
                format!("the run ended here: {}; it may, as rounds were left out", stopped.message),
            ));
        }
        Err(stop) if found.is_empty() => return Err(stop),
        _ => {}
    }
    let instructions = vm.stats().streams.iter().map(|counts| counts.instructions).sum();
    Ok(Races { found, instructions, notes })
}

/// The message about a race, at the statement whose access revealed it.
fn tell(finding: &Finding, source: &Source) -> Diagnostic {
    let Finding { kind, first, first_did, second, second_did, memory, bytes, detail } = finding;
    let mut message = format!("{kind}: {} ({second_did})", second.what);
    if let Some(first) = first {
        // No statement asked for what the engine does by itself, such as giving memory back.
        let at = source.span_of(first.site).map_or(String::new(), |_| format!(", {}", first.site));
        message.push_str(&format!(" against {} ({first_did}{at})", first.what));
    }
    if !memory.is_empty() {
        message.push_str(&format!(", bytes {}..{} of {memory}", bytes.start, bytes.end));
    }
    let statement = |label: &Label| source.span_of(label.site);
    let span = statement(second).or_else(|| first.as_ref().and_then(statement));
    Diagnostic::new(span.unwrap_or_default(), message).with_help_if((!detail.is_empty()).then(|| detail.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::engine::FindingKind;

    #[test]
    fn a_race_is_told_with_both_statements() {
        let source = Source::from_text("a.svm", "", "let a = 1\nlet b = 2\n");
        let label = |stream, what, span| {
            let _scope = source.site(span, None).enter();
            Label::new(stream, 1, what)
        };
        let mut finding =
            Finding::new(FindingKind::Conflict, &label(1, "neg", Span::new(10, 19)), "read on s1", "order them");
        finding.first = Some(label(0, "fill", Span::new(0, 9)));
        finding.first_did = "write on s0".into();
        finding.memory = "sim:0 #1".into();
        finding.bytes = 0..4;
        let shown = tell(&finding, &source).render(&source);
        assert_eq!(
            shown,
            "a.svm:2:1: error: conflict: neg (read on s1) against fill (write on s0, a.svm:1:1), bytes 0..4 of sim:0 #1\n \
             2 | let b = 2\n   | ^^^^^^^^^\n   = help: order them\n"
        );
    }
}
