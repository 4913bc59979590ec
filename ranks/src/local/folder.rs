//! The folder of a job on one machine: the shared memory of its groups, and a lock for each rank.
//!
//! A rank holds its lock from the time it joins until it leaves or its process ends, however it ends. So the others can tell at any time who is there. A
//! folder whose locks are all free is left over from an earlier job, and the first rank that comes empties it.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::transport::RankError;

pub(super) struct Folder {
    path: PathBuf,
    /// The locks of all ranks, opened here; this rank holds its own.
    locks: Vec<File>,
    /// The lock that is held, by a handle of its own.
    held: File,
}

impl Folder {
    /// Joins the folder as a rank.
    ///
    /// # Errors
    /// The system refuses, or another process is this rank.
    pub(super) fn join(path: &Path, rank: usize, size: usize) -> Result<Folder, RankError> {
        let refused = |doing: &'static str| {
            let path = path.display().to_string();
            move |error: io::Error| RankError::Memory { doing, path, reason: error.to_string() }
        };
        let _gate = enter(path).map_err(refused("enter the folder"))?;
        let names = (0..size).map(|rank| path.join(format!("rank-{rank}")));
        let locks: Vec<File> =
            names.map(|name| open(&name)).collect::<io::Result<_>>().map_err(refused("open the locks in"))?;
        if !locks.iter().any(is_held) {
            for entry in fs::read_dir(path).map_err(refused("read the folder"))?.flatten() {
                if entry.file_name().to_string_lossy().starts_with("group-") {
                    fs::remove_file(entry.path()).map_err(refused("empty the folder"))?;
                }
            }
        }
        let held = open(&path.join(format!("rank-{rank}"))).map_err(refused("open the locks in"))?;
        // Another process may hold the lock for a moment, to ask who is there.
        let taken = (0..100).find_map(|attempt| match held.try_lock() {
            Err(TryLockError::WouldBlock) if attempt < 99 => {
                std::thread::sleep(Duration::from_millis(1));
                None
            }
            other => Some(other),
        });
        match taken.unwrap_or(Err(TryLockError::WouldBlock)) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let help = "give each process of the job a RANK of its own, and each job a MASTER_PORT of its own";
                return Err(RankError::Environment { what: format!("rank {rank} is there already"), help });
            }
            Err(TryLockError::Error(error)) => return Err(refused("lock a rank in")(error)),
        }
        Ok(Folder { path: path.to_owned(), locks, held })
    }

    /// The file of a group.
    pub(super) fn group(&self, name: &str) -> PathBuf {
        self.path.join(format!("group-{name}"))
    }

    /// Whether a rank that had joined is there no longer.
    pub(super) fn is_gone(&self, rank: usize) -> bool {
        self.locks.get(rank).is_none_or(|lock| !is_held(lock))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Under the gate, so that of two ranks that leave at a time the second one knows that it is the last. A rank that is stopped may hold the gate.
        let gate = open(&self.path.join("gate"));
        let entered = gate.is_ok_and(|gate| {
            let until = Instant::now() + Duration::from_millis(200);
            while gate.try_lock().is_err() {
                if Instant::now() > until {
                    return false;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            let _released_when_it_is_closed = self.held.unlock();
            if !self.locks.iter().any(is_held) {
                let _kept_by_the_system = fs::remove_dir_all(&self.path);
            }
            true
        });
        if !entered {
            log::debug!("{} may be left over; the next job of that name empties it", self.path.display());
        }
    }
}

/// Makes the folder, which its owner alone can use, and locks its gate.
fn enter(path: &Path) -> io::Result<File> {
    loop {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let found = fs::symlink_metadata(path)?;
        if !found.is_dir() || found.uid() != rustix::process::getuid().as_raw() {
            return Err(io::Error::other("it is no folder of this user"));
        }
        let name = path.join("gate");
        let gate = match open(&name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            gate => gate?,
        };
        gate.lock()?;
        // The last rank of an earlier job may have removed the folder while this one waited.
        if fs::metadata(&name).is_ok_and(|there| gate.metadata().is_ok_and(|here| here.ino() == there.ino())) {
            return Ok(gate);
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

/// Whether somebody holds the lock. Takes it for a moment if nobody does, shared, so that several ranks may ask at once.
fn is_held(lock: &File) -> bool {
    match lock.try_lock_shared() {
        Ok(()) => {
            let _released_at_the_latest_when_it_is_closed = lock.unlock();
            false
        }
        Err(_) => true,
    }
}
