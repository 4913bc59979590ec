//! Checks reports of traces with times.

use streamvm_report::{Comparison, Recording, Report, write_page};

/// Reads a trace. What can be read has a report with the same result each time, whose times add up, and which can be compared.
pub(super) fn check(data: &[u8]) {
    let recording = match Recording::read(data) {
        Ok(recording) => recording,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let report = Report::of(&recording);
    assert!(report == Report::of(&recording), "two looks at one trace differ");
    for it in &report.streams {
        let idle = [it.waiting_ns, it.not_submitted_ns, it.host_waits_ns, it.held_ns, it.late_ns];
        assert_eq!(it.busy_ns + idle.iter().sum::<u64>(), report.total_ns, "{it:?}");
    }
    assert!(report.to_string().contains("the critical path"));
    let json = serde_json::to_value(&report).expect("a report is plain data");
    assert_eq!(json["total_ns"], report.total_ns);
    let mut page = Vec::new();
    write_page(&recording, &report, ("a trace", None), &mut page).expect("a vector takes it");
    assert!(page.ends_with(b"</html>\n"));
    let same = Comparison::of(report.clone(), report);
    assert!(same.changes.is_empty() && !same.to_string().is_empty(), "{same}");
}
