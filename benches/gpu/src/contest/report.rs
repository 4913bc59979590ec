//! What came out, as JSON for programs and as a table for people.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::contest::Outcome;

/// An outcome as JSON: figures in its unit, ratios of speeds.
pub fn to_json(outcome: &Outcome) -> Value {
    let figure = |figure: &crate::contest::Figure| {
        let summary = figure.summary;
        json!({ "name": figure.name, "median": summary.median, "min": summary.min, "max": summary.max })
    };
    json!({
        "bench": outcome.bench,
        "work": outcome.work,
        "unit": outcome.unit,
        "ok": outcome.is_ok(),
        "figures": outcome.figures.iter().map(figure).collect::<Vec<_>>(),
        "missing": outcome.missing.iter().map(|(name, why)| json!({ "name": name, "why": why })).collect::<Vec<_>>(),
        "ratios": outcome.ratios.iter()
            .map(|ratio| json!({ "of": ratio.of, "to": ratio.to, "speed": ratio.value })).collect::<Vec<_>>(),
        "notes": outcome.notes,
    })
}

/// An outcome as lines of a table.
pub fn to_table(outcome: &Outcome) -> String {
    let mut text = format!("{}: {} ({})\n", outcome.bench, outcome.work, outcome.unit);
    for figure in &outcome.figures {
        let summary = figure.summary;
        let (median, min, max) = (number(summary.median), number(summary.min), number(summary.max));
        let range = if summary.min < summary.max { format!("  {min} to {max}") } else { String::new() };
        let _ = writeln!(text, "  {:<40} {median:>14}{range}", figure.name);
    }
    for (name, why) in &outcome.missing {
        let _ = writeln!(text, "  {name:<40} {:>14}  {why}", "none");
    }
    for ratio in &outcome.ratios {
        let _ = writeln!(text, "  {:.3} of the speed of `{}`: {}", ratio.value, ratio.to, ratio.of);
    }
    for note in &outcome.notes {
        let _ = writeln!(text, "  {note}");
    }
    text
}

/// Three digits, or all before the point.
fn number(value: f64) -> String {
    if value >= 100.0 || value == value.trunc() { format!("{value:.0}") } else { format!("{value:.3}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_told_whole() {
        let mut outcome = Outcome::new("waits", "calls", "a run".to_owned());
        outcome.add("streamvm", 16.0);
        outcome.add("by hand", 24.0);
        outcome.add_missing("PyTorch", "no PyTorch");
        outcome.compare("streamvm", &["by hand", "PyTorch"]);
        let json = to_json(&outcome);
        assert_eq!(json["figures"][0], json!({ "name": "streamvm", "median": 16.0, "min": 16.0, "max": 16.0 }));
        assert_eq!(json["missing"], json!([{ "name": "PyTorch", "why": "no PyTorch" }]));
        assert_eq!(json["ratios"], json!([{ "of": "streamvm", "to": "by hand", "speed": 1.5 }]));
        let table = to_table(&outcome);
        assert!(table.starts_with("waits: a run (calls)\n"), "{table}");
        assert!(table.contains("no PyTorch") && table.contains("1.500 of the speed of `by hand`"), "{table}");
    }
}
