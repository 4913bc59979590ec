//! Checks traces and the verifier's reports about them.

use streamvm_verify::{Trace, verify};

/// Parses a trace. The verifier must judge a valid trace, with the same result each time, and print the report as text and as JSON.
pub(super) fn check(data: &[u8]) {
    let trace = match Trace::read(data) {
        Ok(trace) => trace,
        Err(error) => {
            let lines = data.split(|byte| *byte == b'\n').count() as u64;
            assert!(error.line >= 1 && error.line <= lines, "line {} of {lines}", error.line);
            assert!(!error.what.is_empty() && error.to_string().len() < 64 << 10, "{error}");
            return;
        }
    };
    match verify(&trace) {
        Ok(report) => {
            let again = verify(&trace).expect("it was not too large before");
            assert!(report == again, "two looks at one trace differ:\n{report}\n{again}");
            assert!(!report.to_string().is_empty());
            let json = serde_json::to_value(&report).expect("a report is plain data");
            assert_eq!(json["missing"]["total"], report.missing.total);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
