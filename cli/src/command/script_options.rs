//! Options of the subcommands over scripts: devices, and the files that a run writes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::base::engine::{CompileOptions, DeviceId};

/// A script and its options.
#[derive(Clone, Debug, Default)]
pub struct ScriptOptions {
    /// The script.
    pub file: PathBuf,
    /// `--device NAME=DEVICE`.
    pub devices: Vec<(String, DeviceId)>,
    /// The file for the instruction lists.
    pub dump_ir: Option<PathBuf>,
    /// The file for the graph of the planned list.
    pub dot: Option<PathBuf>,
    /// Print the counts of each stream at the end?
    pub stats: bool,
    /// Print the profile (how often each op ran and how long it took) at the end?
    pub profile: bool,
    /// The file for the profile as JSON.
    pub profile_json: Option<PathBuf>,
    /// The file for what `streamvm verify` judges.
    pub record: Option<PathBuf>,
    /// The file for the trace with times.
    pub trace: Option<PathBuf>,
    /// The time that is traced: the last one of the run; `None` for the whole run.
    pub trace_last: Option<Duration>,
    /// Tell on stderr how far the run is?
    pub progress: bool,
    /// Print why streams were idle at the end?
    pub report: bool,
    /// Also run the script on simulated devices and report races?
    pub races: bool,
    /// Compile each program, so that its runs are a few instructions each?
    pub compiled: bool,
    /// `--lanes`, for programs that are compiled; `None` for the compiler's default.
    pub lanes: Option<u32>,
    /// `--check-finite`, for programs that are compiled.
    pub check_finite: bool,
    /// `--most-rounds`; `None` for the compiler's default.
    pub most_rounds: Option<u64>,
}

impl ScriptOptions {
    /// How programs are compiled; `None` if they run statement by statement.
    pub(crate) fn compile_options(&self) -> Option<CompileOptions> {
        let default = CompileOptions::default();
        self.compiled.then(|| CompileOptions {
            most_rounds: self.most_rounds.unwrap_or(default.most_rounds),
            lanes: self.lanes.unwrap_or(default.lanes),
            check_finite: self.check_finite,
            time_steps: self.profile,
            ..default
        })
    }

    /// The options that name a file to write, with their files.
    pub(crate) fn outputs(&self) -> Vec<(&'static str, &Path)> {
        let options = [
            ("--dump-ir", &self.dump_ir),
            ("--dot", &self.dot),
            ("--record", &self.record),
            ("--trace", &self.trace),
            ("--profile-json", &self.profile_json),
        ];
        options.into_iter().filter_map(|(option, path)| Some((option, path.as_deref()?))).collect()
    }
}
