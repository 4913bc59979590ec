//! `sim`: random programs and planted hazards on simulated devices, any number of them, from any seed; each tenth program also on an engine
//! with threads. A tenth as many random programs are compiled.
//!
//! This file holds arguments, progress and the exit code; the library does the work.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program: its results and its progress are for a terminal"
)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use streamvm_tests::compiled::{self, Judged};
use streamvm_tests::each_seed;
use streamvm_tests::hazards::{Kind, hazard, valid};
use streamvm_tests::program::{Counts, Script, Verdict, explain, judge, judge_on_threads};

/// Interval between progress lines.
const PROGRESS: Duration = Duration::from_secs(2);

/// Failures that are printed in full: each is shrunk first, and one defect usually fails many seeds.
const SHOWN: usize = 5;

/// Runs random programs on the simulated engine against the inline one, and has planted hazards found.
///
/// Exit codes: 0 all well, 1 something failed, 2 the arguments were rejected.
#[derive(Parser)]
#[command(name = "sim", version, max_term_width = 100)]
struct Args {
    /// How many random programs
    #[arg(value_name = "N", default_value_t = 100_000)]
    programs: u64,
    /// The seed of the first program; the others follow
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Seeds of each kind of hazard
    #[arg(long, value_name = "N", default_value_t = 1000)]
    hazards: u64,
    /// Print the program of --seed, and run nothing
    #[arg(long)]
    show: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.show {
        println!("{}", Script::draw(args.seed));
        return ExitCode::SUCCESS;
    }
    // A panic is a result here, and is reported as a failure of its seed.
    std::panic::set_hook(Box::new(|_| {}));
    let well = hazards(&args) & programs(&args) & programs_on_threads(&args) & compiled_programs(&args);
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints progress now and then.
struct Progress {
    what: &'static str,
    of: u64,
    done: u64,
    failed: u64,
    start: Instant,
    shown: Instant,
}

impl Progress {
    fn new(what: &'static str, of: u64) -> Progress {
        Progress { what, of, done: 0, failed: 0, start: Instant::now(), shown: Instant::now() }
    }

    /// Counts a finished seed. Prints its failure, until [`SHOWN`] failures were printed.
    fn add(&mut self, failure: Option<impl FnOnce() -> String>) {
        self.done += 1;
        if let Some(failure) = failure {
            self.failed += 1;
            if self.failed as usize <= SHOWN {
                eprintln!("{}", failure());
            }
        }
        if self.shown.elapsed() >= PROGRESS || self.done == self.of {
            self.shown = Instant::now();
            let (what, of, done, failed) = (self.what, self.of, self.done, self.failed);
            eprintln!("{what}: {done} of {of}, {failed} failed, {:.0} s", self.start.elapsed().as_secs_f64());
        }
    }

    /// Did all seeds run without a failure? `hang` is the seed that hangs.
    fn end(&self, result: Result<(), u64>) -> bool {
        if let Err(hang) = result {
            eprintln!("{}: number {hang} hangs", self.what);
        }
        result.is_ok() && self.failed == 0
    }
}

/// Turns a panic of `f` into an error.
fn or_panic(f: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().cloned();
        Err(format!("a panic: {}", text.unwrap_or_default()))
    })
}

/// Runs hazards of every kind, and as many valid programs for devices.
fn hazards(args: &Args) -> bool {
    if args.hazards == 0 {
        return true;
    }
    let (kinds, seeds, first) = (Kind::all(), args.hazards, args.seed);
    let (count, of_kinds) = (kinds.len() as u64 * seeds, kinds.len());
    let mut progress = Progress::new("hazards", count);
    let check = move |number: u64| or_panic(|| hazard(&kinds[(number / seeds) as usize], first + number % seeds));
    let result = each_seed(0..count, check, |_, result| {
        progress.add(result.err().map(|text| || text));
        true
    });
    let all_found = progress.end(result);
    let found = progress.done - progress.failed;

    let mut progress = Progress::new("valid device programs", count);
    let check = |seed| or_panic(|| valid(seed));
    let result = each_seed(first..first + count, check, |_, result| {
        progress.add(result.err().map(|text| || text));
        true
    });
    let none_found = progress.end(result);
    let (silent, percent) = (progress.done - progress.failed, 100.0 * found as f64 / count as f64);
    println!("hazards found: {found} of {count} ({of_kinds} kinds x {seeds} seeds), {percent:.1} %");
    println!("valid device programs without a false finding: {silent} of {count}");
    all_found && none_found
}

/// Runs random programs on the whole engine, stepped.
fn programs(args: &Args) -> bool {
    let explained = |seed, verdict| explain(&Script::draw(seed), verdict, None);
    let (progress, well, counts) =
        judged("programs", args.seed, args.programs, |seed| judge(&Script::draw(seed), None), explained);
    let (fine, Counts { instructions, waits, excess, on_workers, .. }) = (progress.done - progress.failed, counts);
    let seconds = progress.start.elapsed().as_secs_f64();
    println!(
        "valid programs without a false finding, equal to the oracle: {fine} of {} in {seconds:.0} s ({instructions} \
         instructions, {on_workers} of them on workers, {waits} waits, of which {excess} could go)",
        args.programs
    );
    well
}

/// Runs each tenth program on an engine with threads. Timing decides part of each run, so a failure is not shrunk.
fn programs_on_threads(args: &Args) -> bool {
    let first = args.seed;
    let seed_of = move |number| first + 10 * (number - first);
    let check = move |number| judge_on_threads(&Script::draw(seed_of(number)), None);
    let explained = |number, verdict: Verdict| {
        let script = Script::draw(seed_of(number));
        format!("seed {} on threads: {:?}: {}\n{script}", script.seed, verdict.failing, verdict.text)
    };
    let count = args.programs.div_ceil(10);
    let (progress, well, counts) = judged("programs on threads", first, count, check, explained);
    let (fine, Counts { instructions, helped, .. }) = (progress.done - progress.failed, counts);
    println!(
        "of these on an engine with 1 to 4 threads a device: {fine} of {count} ({instructions} instructions, {helped} of them run by waiting \
         callers)"
    );
    well
}

/// Compiles a tenth as many programs with random options, on stepped, inline and threaded engines.
fn compiled_programs(args: &Args) -> bool {
    let count = args.programs.div_ceil(10);
    let mut progress = Progress::new("compiled programs", count);
    let mut judged = Judged::default();
    let check = |seed| compiled::judge(seed, None);
    let result = each_seed(args.seed..args.seed + count, check, |_, result| {
        progress.add(result.map(|more| judged.add(more)).err().map(told));
        true
    });
    let well = progress.end(result);
    let (fine, Counts { instructions, waits, .. }) = (progress.done - progress.failed, judged.counts);
    let Counts { waits: exact, excess, .. } = judged.exact;
    println!(
        "compiled programs without a false finding, equal to eager calls: {fine} of {count} ({} runs; {instructions} instructions and {waits} waits \
         with those of the eager calls, of {exact} waits of programs without empty tensors {excess} could go; {} fetched views, {} empty operands)",
        judged.runs, judged.views.fetched, judged.views.empty
    );
    well
}

/// The text of a failure.
fn told(Verdict { failing, text }: Verdict) -> impl FnOnce() -> String {
    move || format!("{failing:?}: {text}")
}

/// Judges `count` programs by number. Returns whether all passed, and the sum of their counts.
fn judged(
    what: &'static str,
    first: u64,
    count: u64,
    check: impl Fn(u64) -> Result<Counts, Verdict> + Clone + Send + Sync + 'static,
    explained: impl Fn(u64, Verdict) -> String,
) -> (Progress, bool, Counts) {
    let mut progress = Progress::new(what, count);
    let mut counts = Counts::default();
    let result = each_seed(first..first + count, check, |number, result| {
        let failure = match result {
            Ok(more) => {
                counts.add(more);
                None
            }
            Err(verdict) => Some(|| explained(number, verdict)),
        };
        progress.add(failure);
        true
    });
    let well = progress.end(result);
    (progress, well, counts)
}
