//! `streamvm launch`: starts the ranks of a job on this machine, and ends when all of them have.
//!
//! The ranks are processes of one command. They get the variables that torchrun sets, and a folder for the memory that they share. If a rank fails, the others
//! learn of it and can end by themselves; those that do not are ended. A signal that ends this process ends the ranks first.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::base::printable::printable;
use crate::command::exit::Exit;
use crate::command::interrupt::arm;

/// How long the other ranks may go on after one has failed. Collectives on one machine tell of a lost rank within a fraction of a second.
const GRACE: Duration = Duration::from_secs(5);

/// How often the ranks are looked at.
const POLL: Duration = Duration::from_millis(5);

/// `streamvm launch -n RANKS COMMAND …`
///
/// # Errors
/// Only if `err` cannot be written.
pub fn launch(ranks: usize, command: &[OsString], err: &mut dyn Write) -> io::Result<Exit> {
    let Some((program, arguments)) = command.split_first() else { return Ok(Exit::Rejected) };
    let shared = Path::new("/dev/shm");
    let base = if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() };
    let folder = match tempfile::Builder::new().prefix("streamvm-").tempdir_in(&base) {
        Ok(folder) => folder,
        Err(error) => {
            writeln!(err, "error: cannot make a folder in {} for the memory of the ranks: {error}", base.display())?;
            return Ok(Exit::Failed);
        }
    };
    let started: Arc<Mutex<Vec<Child>>> = Arc::default();
    let of_signal = started.clone();
    let shared = folder.path().to_owned();
    let _armed = arm(move |_| {
        end(&mut of_signal.lock().unwrap_or_else(PoisonError::into_inner));
        let _ended_anyway = std::fs::remove_dir_all(shared);
    });
    // Held until all are started, so that a signal ends all of them.
    let mut children = started.lock().unwrap_or_else(PoisonError::into_inner);
    for rank in 0..ranks {
        let mut one = Command::new(program);
        one.args(arguments).env("STREAMVM_RANKS", "local").env("STREAMVM_RANKS_FOLDER", folder.path());
        // A rank ends when this process is killed.
        one.env("STREAMVM_LAUNCHER", std::process::id().to_string());
        for (name, value) in [("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", ranks), ("LOCAL_WORLD_SIZE", ranks)]
        {
            one.env(name, value.to_string());
        }
        match one.spawn() {
            Ok(child) => children.push(child),
            Err(error) => {
                end(&mut children);
                let program = printable(&program.to_string_lossy()).to_string();
                writeln!(err, "error: cannot start {program} as rank {rank}: {error}")?;
                return Ok(Exit::Rejected);
            }
        }
    }
    drop(children);
    wait_for_all(&started, err)
}

fn wait_for_all(started: &Mutex<Vec<Child>>, err: &mut dyn Write) -> io::Result<Exit> {
    let mut failed: Option<Instant> = None;
    let mut known = Vec::new();
    loop {
        let mut children = started.lock().unwrap_or_else(PoisonError::into_inner);
        known.resize(children.len(), false);
        let mut running = false;
        for (rank, (child, known)) in children.iter_mut().zip(&mut known).enumerate() {
            if *known {
                continue;
            }
            match child.try_wait() {
                Ok(None) => running = true,
                Ok(Some(status)) => {
                    *known = true;
                    if !status.success() {
                        writeln!(err, "error: rank {rank} has failed: {}", described(status))?;
                        failed.get_or_insert_with(Instant::now);
                    }
                }
                Err(error) => {
                    *known = true;
                    writeln!(err, "error: cannot wait for rank {rank}: {error}")?;
                    failed.get_or_insert_with(Instant::now);
                }
            }
        }
        if !running {
            return Ok(if failed.is_some() { Exit::Failed } else { Exit::Fine });
        }
        if failed.is_some_and(|since| since.elapsed() > GRACE) {
            let left: Vec<String> =
                (0..known.len()).filter(|&rank| !known[rank]).map(|rank| rank.to_string()).collect();
            writeln!(err, "error: still at work {} s later, and ended: ranks {}", GRACE.as_secs(), left.join(", "))?;
            end(&mut children);
            return Ok(Exit::Failed);
        }
        drop(children);
        sleep(POLL);
    }
}

/// Ends all that still run, and waits until they have.
fn end(children: &mut [Child]) {
    for child in children.iter_mut() {
        let _ended_already = child.kill();
    }
    for child in children {
        let _nothing_to_wait_for = child.wait();
    }
}

fn described(status: ExitStatus) -> String {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return format!("signal {signal} has ended it");
    }
    match status.code() {
        Some(code) => format!("exit code {code}"),
        None => status.to_string(),
    }
}
