//! A table of planned problems: `planner [--seconds S] [--steps N] FILE...` plans each CSV file, and then generated problems: packings of up to 374
//! buffers that leave no gap, and up to 28,000 buffers. A number in the name of a file, such as `A.1048576.csv`, is taken as its capacity.
//!
//! With `--steps` alone, steps alone count; else each problem gets 10 seconds or `--seconds`.

#[path = "../tests/generated/mod.rs"]
mod generated;

use std::error::Error;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use streamvm_program::memory::{Budget, Buffer, Table, check, plan};

fn main() -> Result<(), Box<dyn Error>> {
    let (mut seconds, mut steps) = (None, None);
    let mut problems: Vec<(String, Option<u64>, Vec<Buffer>)> = Vec::new();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or("an option lacks its value");
        match arg.as_str() {
            "--seconds" => seconds = Some(Duration::from_secs_f64(value()?.parse()?)),
            "--steps" => steps = Some(value()?.parse()?),
            file => {
                let name = Path::new(file).file_stem().unwrap_or_default().to_string_lossy().into_owned();
                let capacity = name.split('.').nth(1).and_then(|number| number.parse().ok());
                problems.push((name, capacity, Table::read(&fs::read_to_string(file)?)?.buffers));
            }
        }
    }
    let default = steps.is_none().then_some(Duration::from_secs(10));
    let budget = Budget { steps: steps.unwrap_or(u64::MAX), time: seconds.or(default) };
    for seed in 0..5 {
        problems.push((format!("packing {seed}"), Some(1 << 20), generated::packing(374, 1 << 20, 1_000, seed)));
    }
    problems.push(("18,692 buffers".into(), None, generated::long_lives(18_692, 0)));
    problems.push(("28,000 buffers".into(), None, generated::many_buffers(28_000)));
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "{:<16} {:>7} {:>14} {:>14} {:>7} {:>9} {:>10}  ended",
        "problem", "buffers", "peak", "lower bound", "ratio", "seconds", "steps"
    )?;
    for (name, capacity, buffers) in problems {
        let begin = Instant::now();
        let plan = plan(&buffers, capacity, &budget)?;
        let seconds = begin.elapsed().as_secs_f64();
        assert_eq!(check(&buffers, &plan.offsets), Ok(plan.peak), "{name}");
        let ratio = plan.peak as f64 / plan.lower_bound.max(1) as f64;
        let fits = if capacity.is_some_and(|capacity| plan.peak > capacity) { ", does not fit" } else { "" };
        writeln!(
            out,
            "{name:<16} {:>7} {:>14} {:>14} {ratio:>7.4} {seconds:>9.3} {:>10}  {}{fits}",
            buffers.len(),
            plan.peak,
            plan.lower_bound,
            plan.steps,
            plan.ended
        )?;
        out.flush()?;
    }
    Ok(())
}
