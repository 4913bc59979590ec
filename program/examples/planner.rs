//! A table of planned problems: `planner [--seconds S] [--steps N] FILE...` plans each CSV file, and then a generated problem
//! of 28,000 buffers. A number in the name of a file, such as `A.1048576.csv`, is taken as its capacity.

use std::error::Error;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use streamvm_program::memory::{Budget, Buffer, Table, check, plan};

fn main() -> Result<(), Box<dyn Error>> {
    let mut budget = Budget::time(Duration::from_secs(10));
    let mut problems: Vec<(String, Option<u64>, Vec<Buffer>)> = Vec::new();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or("an option lacks its value");
        match arg.as_str() {
            "--seconds" => budget.time = Some(Duration::from_secs_f64(value()?.parse()?)),
            "--steps" => budget = Budget::steps(value()?.parse()?),
            file => {
                let name = Path::new(file).file_stem().unwrap_or_default().to_string_lossy().into_owned();
                let capacity = name.split('.').nth(1).and_then(|number| number.parse().ok());
                problems.push((name, capacity, Table::read(&fs::read_to_string(file)?)?.buffers));
            }
        }
    }
    problems.push(("28,000 buffers".into(), None, many_buffers(28_000)));
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "{:<16} {:>7} {:>14} {:>14} {:>7} {:>9} {:>10}",
        "problem", "buffers", "peak", "lower bound", "ratio", "seconds", "steps"
    )?;
    for (name, capacity, buffers) in problems {
        let begin = Instant::now();
        let plan = plan(&buffers, capacity, &budget)?;
        let seconds = begin.elapsed().as_secs_f64();
        assert_eq!(check(&buffers, &plan.offsets), Ok(plan.peak), "{name}");
        let ratio = plan.peak as f64 / plan.lower_bound.max(1) as f64;
        let fits = if capacity.is_some_and(|capacity| plan.peak > capacity) { "  does not fit" } else { "" };
        writeln!(
            out,
            "{name:<16} {:>7} {:>14} {:>14} {ratio:>7.4} {seconds:>9.3} {:>10}{fits}",
            buffers.len(),
            plan.peak,
            plan.lower_bound,
            plan.steps
        )?;
        out.flush()?;
    }
    Ok(())
}

/// Buffers as a large network has them: most live shortly, some for long, sizes over several powers of two. The same at each call.
fn many_buffers(count: u64) -> Vec<Buffer> {
    let mut state = 1_u64;
    let mut draw = |below: u64| {
        // Knuth's linear congruential generator (MMIX); its upper bits are good enough here.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    (0..count)
        .map(|index| {
            let lower = index + draw(8);
            let length = match draw(10) {
                0 => 1 + draw(count),
                1..=3 => 1 + draw(400),
                _ => 1 + draw(20),
            };
            Buffer::new(lower, lower + length, (1 + draw(64)) << draw(16))
        })
        .collect()
}
