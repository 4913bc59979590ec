//! `streamvm plan-memory`: places the buffers of a CSV file in one arena.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use streamvm_program::memory::{Budget, Ended, Plan, Table, check, plan_reporting};

use crate::base::printable::{json_without_controls, printable};
use crate::command::exit::{Exit, written};
use crate::command::report::table;

/// Longest file that is read, in bytes; some 10 million buffers.
const LONGEST_FILE: u64 = 256 << 20;
/// The default budget; the public problems need less.
const BUDGET: Duration = Duration::from_secs(10);

/// Options of `streamvm plan-memory`.
#[derive(Copy, Clone, Debug, Default)]
pub struct PlanOptions {
    /// `--capacity`: the most memory that the plan may take.
    pub capacity: Option<u64>,
    /// `--budget`: how long to look for a better plan.
    pub time: Option<Duration>,
    /// `--steps`: how many steps to look for a better plan.
    pub steps: Option<u64>,
    /// `--json`.
    pub json: bool,
}

/// `streamvm plan-memory FILE`; `-` is stdin.
///
/// # Errors
/// Only if `err` cannot be written.
pub fn plan_memory(path: &Path, options: PlanOptions, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<Exit> {
    let name = printable(&path.display().to_string());
    let problem = match read(path) {
        Ok(text) => Table::read(&text)
            .map_err(|error| format!("{}:{}: error: {}", error.line, error.column, printable(&error.message))),
        Err(message) => Err(format!(" error: {message}")),
    };
    let problem = match problem {
        Ok(problem) => problem,
        Err(message) => {
            writeln!(err, "{name}:{message}")?;
            return Ok(Exit::Rejected);
        }
    };
    let begin = Instant::now();
    let planned = plan_reporting(&problem.buffers, options.capacity, &budget(&options), &mut |peak| {
        log::info!("peak {peak} after {:.3} s", begin.elapsed().as_secs_f64());
    });
    let plan = match planned {
        Ok(plan) => plan,
        Err(error) => {
            writeln!(err, "{name}: error: {error}")?;
            return Ok(Exit::Rejected);
        }
    };
    let took = begin.elapsed();
    // The check shares no code with the planner: no plan is printed that is wrong.
    if check(&problem.buffers, &plan.offsets) != Ok(plan.peak) {
        writeln!(
            err,
            "{name}: error: the plan is wrong, which is a mistake of the planner: please report it with this file"
        )?;
        return Ok(Exit::Failed);
    }
    let text = if options.json {
        as_json(&problem, &plan, options.capacity, took)
    } else {
        as_text(&problem, &plan, options.capacity, took)
    };
    let exit = if fits(&plan, options.capacity) == Some(false) { Exit::Failed } else { Exit::Fine };
    Ok(written(write!(out, "{text}").and_then(|()| out.flush()), err)?.unwrap_or(exit))
}

/// The text of a file, or why there is none.
fn read(path: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    let result = if path.as_os_str() == "-" {
        io::stdin().lock().take(LONGEST_FILE + 1).read_to_end(&mut bytes)
    } else {
        File::open(path).and_then(|file| file.take(LONGEST_FILE + 1).read_to_end(&mut bytes))
    };
    result.map_err(|error| format!("cannot read the buffers: {error}"))?;
    if bytes.len() as u64 > LONGEST_FILE {
        return Err(format!("the file is longer than {} MiB, which is the most that is read", LONGEST_FILE >> 20));
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + good.iter().filter(|&&byte| byte == b'\n').count();
        format!("line {line} is no UTF-8 text: expected comma-separated values, such as `id,lower,upper,size`")
    })
}

/// With a number of steps, steps alone count, unless a time is given too.
fn budget(options: &PlanOptions) -> Budget {
    let time = options.time.or(options.steps.is_none().then_some(BUDGET));
    Budget { steps: options.steps.unwrap_or(u64::MAX), time }
}

/// Whether the plan fits into the capacity, if there is one.
fn fits(plan: &Plan, capacity: Option<u64>) -> Option<bool> {
    capacity.map(|capacity| plan.peak <= capacity)
}

/// How many times the lower bound the peak is.
fn ratio(plan: &Plan) -> f64 {
    if plan.lower_bound == 0 { 1.0 } else { plan.peak as f64 / plan.lower_bound as f64 }
}

/// A line for each buffer, then one for each figure.
fn as_text(problem: &Table, plan: &Plan, capacity: Option<u64>, took: Duration) -> String {
    let rows = problem.ids.iter().zip(&problem.buffers).zip(&plan.offsets);
    let rows: Vec<Vec<String>> = rows
        .map(|((id, buffer), offset)| {
            let numbers = [buffer.lower, buffer.upper, buffer.size, *offset].map(|number| number.to_string());
            std::iter::once(printable(id)).chain(numbers).collect()
        })
        .collect();
    let mut text = table(&["id", "lower", "upper", "size", "offset"], &rows, 1);
    let ended = match plan.ended {
        Ended::ProvenBest => "no plan has a lower peak",
        Ended::Fits => "the capacity is enough, so no lower peak was looked for",
        Ended::NothingFits => "no plan can fit into the capacity, so no lower peak was looked for",
        Ended::BudgetUsed => "a larger budget may find a lower peak",
    };
    text += &format!("\nbuffers      {}\n", problem.buffers.len());
    text += &format!("peak         {} bytes\n", plan.peak);
    text += &format!("lower bound  {} bytes\n", plan.lower_bound);
    text += &format!("ratio        {:.4}\n", ratio(plan));
    text += &format!("time         {:.3} s, {} steps\n", took.as_secs_f64(), plan.steps);
    text += &format!("ended        {}: {ended}\n", plan.ended);
    if let Some(capacity) = capacity {
        let said = match fits(plan, Some(capacity)) {
            Some(true) => "the plan fits",
            _ if plan.lower_bound > capacity => "no plan fits: more is alive at one time",
            _ if matches!(plan.ended, Ended::ProvenBest | Ended::NothingFits) => {
                "no plan fits: the search has tried all"
            }
            _ => "the plan does not fit: a larger --budget or --steps may find one that does",
        };
        text += &format!("capacity     {capacity} bytes: {said}\n");
    }
    text
}

/// One object with the buffers and the figures.
fn as_json(problem: &Table, plan: &Plan, capacity: Option<u64>, took: Duration) -> String {
    let rows = problem.ids.iter().zip(&problem.buffers).zip(&plan.offsets);
    let buffers = rows.map(|((id, buffer), offset)| {
        json!({
            "id": id,
            "lower": buffer.lower,
            "upper": buffer.upper,
            "size": buffer.size,
            "alignment": buffer.alignment,
            "offset": offset,
        })
    });
    let value = json!({
        "buffers": buffers.collect::<Vec<_>>(),
        "peak": plan.peak,
        "lower_bound": plan.lower_bound,
        "ratio": ratio(plan),
        "optimal": plan.is_optimal(),
        "ended": plan.ended.to_string(),
        "capacity": capacity,
        "fits": fits(plan, capacity),
        "seconds": took.as_secs_f64(),
        "steps": plan.steps,
    });
    json_without_controls(format!("{value:#}\n"))
}
