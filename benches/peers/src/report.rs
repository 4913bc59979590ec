//! Reports: a table for people, JSON for programs.

use serde_json::{Value, json};
use streamvm_benches::harness::round_robin::Row;
use streamvm_benches::harness::table::{aligned, figures, number};

use crate::case::Case;
use crate::run::{NotRun, Outcome};

/// A figure of streamvm, and how many times it a peer's figure is.
struct Ratio {
    engine: &'static str,
    metric: String,
    times: f64,
}

/// The ratios of a row: against those of its counterparts that ran.
fn ratios(row: &Row<Case>, rows: &[Row<Case>]) -> Vec<Ratio> {
    let ratio = |(engine, metric): (&'static str, String)| {
        let is = |other: &&Row<Case>| {
            other.case.workload == row.case.workload && other.case.engine.name == engine && other.metric == metric
        };
        let times = row.summary.median / rows.iter().find(is)?.summary.median;
        Some(Ratio { engine, metric, times })
    };
    row.case.engine.against.figures(row.case.workload, &row.metric).into_iter().filter_map(ratio).collect()
}

/// The rows as an aligned table, with how many times streamvm's each median is, then what did not run.
pub fn table(outcome: &Outcome) -> String {
    let head = ["workload", "engine", "metric", "median", "min", "max", "unit", "peer / streamvm"];
    let line = |row: &Row<Case>| {
        let [median, min, max] = figures(row.summary);
        let [workload, engine] = [row.case.workload.name(), row.case.engine.name].map(str::to_owned);
        let ratios = ratios(row, &outcome.rows);
        // Lanes are streamvm's own; its other engines are named.
        let ratio = |ratio: &Ratio| {
            let engine = ratio.engine.strip_prefix("streamvm").unwrap_or(ratio.engine).trim();
            format!("{} x {}{}{}", number(ratio.times), engine, if engine.is_empty() { "" } else { " " }, ratio.metric)
        };
        let ratios = ratios.iter().map(ratio).collect::<Vec<_>>().join(", ");
        [workload, engine, row.metric.clone(), median, min, max, row.unit.clone(), ratios]
    };
    let lines: Vec<_> = [head.map(str::to_owned)].into_iter().chain(outcome.rows.iter().map(line)).collect();
    let not_run = |NotRun { name, why }: &NotRun| format!("{name}: not run: {why}\n");
    aligned(&lines, &[3, 4, 5]) + &outcome.not_run.iter().map(not_run).collect::<String>()
}

/// What came out as JSON: `{"measured": […], "not_run": […]}`.
///
/// What was measured is `{"workload", "engine", "metric", "value", "unit", "min", "max", "ratios"}`, where the value is the
/// median, and each ratio is `{"engine", "metric", "times"}`: how many times that figure of streamvm the value is. What
/// did not run is `{"name", "why"}`.
pub fn json(outcome: &Outcome) -> Value {
    let ratio = |ratio: &Ratio| json!({"engine": ratio.engine, "metric": ratio.metric, "times": ratio.times});
    let row = |row: &Row<Case>| {
        json!({
            "workload": row.case.workload.name(),
            "engine": row.case.engine.name,
            "metric": row.metric,
            "value": row.summary.median,
            "unit": row.unit,
            "min": row.summary.min,
            "max": row.summary.max,
            "ratios": ratios(row, &outcome.rows).iter().map(ratio).collect::<Vec<_>>(),
        })
    };
    let not_run = |NotRun { name, why }: &NotRun| json!({"name": name, "why": why});
    json!({
        "measured": outcome.rows.iter().map(row).collect::<Vec<_>>(),
        "not_run": outcome.not_run.iter().map(not_run).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case;
    use streamvm_benches::harness::stats::Summary;

    fn row(case: &str, metric: &str, median: f64) -> Row<Case> {
        let case = case::find(case).expect("a case");
        let summary = Summary { median, min: median / 2.0, max: median * 2.0 };
        Row { case, metric: metric.to_owned(), unit: "ns".to_owned(), summary }
    }

    fn outcome() -> Outcome {
        Outcome {
            rows: vec![
                row("chain/streamvm", "ns_per_op_lists_of_64", 40.0),
                row("chain/streamvm", "ns_per_op_single", 80.0),
                row("chain/tokio 1 thread", "ns_per_op", 400.0),
                row("random/mxnet 1 worker", "ns_per_op", 4000.0),
                row("fan/streamvm workers", "ns_per_op_single", 300.0),
                row("fan/mxnet 2 workers", "ns_per_op", 1500.0),
            ],
            not_run: vec![NotRun { name: "starpu".to_owned(), why: "there is no apt-get".to_owned() }],
        }
    }

    #[test]
    fn the_table_tells_ratios_and_what_is_missing() {
        assert_eq!(
            table(&outcome()),
            "\
workload  engine            metric                 median   min   max  unit  peer / streamvm
chain     streamvm          ns_per_op_lists_of_64    40.0  20.0  80.0  ns
chain     streamvm          ns_per_op_single         80.0  40.0   160  ns
chain     tokio 1 thread    ns_per_op                 400   200   800  ns    5.0 x ns_per_op_single, 10.0 x ns_per_op_lists_of_64
random    mxnet 1 worker    ns_per_op                4000  2000  8000  ns
fan       streamvm workers  ns_per_op_single          300   150   600  ns
fan       mxnet 2 workers   ns_per_op                1500   750  3000  ns    5.0 x workers ns_per_op_single
starpu: not run: there is no apt-get
"
        );
    }

    #[test]
    fn the_json_has_what_the_table_has() {
        let json = json(&outcome());
        let expected = json!({
            "workload": "chain", "engine": "tokio 1 thread", "metric": "ns_per_op",
            "value": 400.0, "unit": "ns", "min": 200.0, "max": 800.0,
            "ratios": [
                {"engine": "streamvm", "metric": "ns_per_op_single", "times": 5.0},
                {"engine": "streamvm", "metric": "ns_per_op_lists_of_64", "times": 10.0},
            ],
        });
        assert_eq!(json["measured"][2], expected);
        assert_eq!(json["measured"][3]["ratios"], json!([]), "none without its counterpart");
        assert_eq!(json["not_run"], json!([{"name": "starpu", "why": "there is no apt-get"}]));
    }
}
