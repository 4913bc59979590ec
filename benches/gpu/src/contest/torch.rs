//! PyTorch in a child process: it sets up, then does the work that a line names, for each line that it is sent.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::contest::error::Error;
use crate::contest::{Contender, Outcome};

/// Where Python and the scripts are.
#[derive(Clone, Debug)]
pub struct Torch {
    /// The interpreter, `None` to leave PyTorch out.
    pub python: Option<PathBuf>,
    /// The folder of the scripts.
    pub scripts: PathBuf,
}

/// A script that has set up its work and waits.
#[derive(Debug)]
pub struct Script {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// PyTorch's version, as the script says.
    pub about: String,
}

impl Torch {
    /// Starts a script, such as `overlap.py`, with its sizes, and waits until it is ready.
    ///
    /// # Errors
    /// There is no Python, no script or no PyTorch; what the script says then.
    pub fn start(&self, script: &str, sizes: &[usize]) -> Result<Script, Error> {
        let Some(python) = &self.python else {
            return Err(Error::Missing("no Python was named".to_owned()));
        };
        let mut child = Command::new(python)
            .arg(self.scripts.join(script))
            .args(sizes.iter().map(usize::to_string))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| Error::Missing(format!("{}: {error}", Path::new(python).display())))?;
        let (Some(orders), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::Missing("the script has no pipes".to_owned()));
        };
        let mut script = Script { child, orders, answers: BufReader::new(answers), about: String::new() };
        let line = script.line()?;
        match line.strip_prefix("ready ") {
            Some(about) => script.about = about.to_owned(),
            None => return Err(Error::Missing(line)),
        }
        Ok(script)
    }

    /// A contender that is the script; where it does not start, `outcome` says why and there is none.
    pub fn contender(
        &self,
        outcome: &mut Outcome,
        name: &'static str,
        script: &str,
        sizes: &[usize],
    ) -> Option<Contender<'static>> {
        match self.start(script, sizes) {
            Ok(mut script) => {
                outcome.notes.push(format!("{name}: {}", script.about));
                Some(Contender { name, run: Box::new(move || script.run("run")) })
            }
            Err(error) => {
                outcome.add_missing(name, error);
                None
            }
        }
    }
}

impl Script {
    /// Has the work of this name done once; the script measures it.
    ///
    /// # Errors
    /// The script has ended, or says what is wrong.
    pub fn run(&mut self, work: &str) -> Result<Duration, Error> {
        let sent = writeln!(self.orders, "{work}").and_then(|()| self.orders.flush());
        sent.map_err(|error| Error::Missing(format!("the script has ended: {error}")))?;
        let line = self.line()?;
        match line.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
            Some(time) => Ok(time),
            None => Err(Error::Missing(line)),
        }
    }

    fn line(&mut self) -> Result<String, Error> {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(0) => Err(Error::Missing("the script ended without a word".to_owned())),
            Ok(_) => Ok(line.trim().to_owned()),
            Err(error) => Err(Error::Missing(format!("the script cannot be read: {error}"))),
        }
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
