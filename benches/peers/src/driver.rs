//! Drivers: programs in other languages that run a peer.
//!
//! `native/build.sh FOLDER` and `native/taskbench.sh FOLDER` leave `FOLDER/NAME/driver`, or else `FOLDER/NAME/why`, a line that says what
//! stood in the way.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use streamvm_benches::harness::case::Sizes;
use streamvm_benches::harness::error::Error;

use crate::workload::Workload;

/// How a driver is called.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Driver {
    /// Its folder, which is the peer's name.
    pub folder: &'static str,
    /// Its last argument, if it takes one.
    pub setting: Option<&'static str>,
    /// Variables of the environment that set the peer up.
    pub environment: &'static [(&'static str, &'static str)],
}

impl Driver {
    /// Why it cannot be called; `None` if it can. `drivers` is the folder where drivers are built, by the command `built_by`.
    pub fn missing(&self, drivers: &Path, built_by: &str) -> Option<String> {
        let folder = drivers.join(self.folder);
        if folder.join("driver").is_file() {
            return None;
        }
        let why = fs::read_to_string(folder.join("why")).unwrap_or_default();
        match why.trim() {
            "" => Some(format!("there is no driver in {}; `{built_by}` builds it", folder.display())),
            why => Some(why.to_owned()),
        }
    }

    /// Turns this process into the driver, which measures a workload once and answers as a child does. That leaves no
    /// process in between: who stops the child when it takes too long stops the driver. Returns if it failed, and why.
    pub fn exec(&self, drivers: &Path, workload: Workload, sizes: &Sizes) -> Error {
        let mut command = match self.command(drivers) {
            Ok(command) => command,
            Err(source) => return Error::System { what: "finding the folder of a peer's driver", source },
        };
        let [warm_up, count] = [sizes.warm_up(), *sizes].map(|sizes| workload.count(&sizes).to_string());
        command.args([workload.name(), &warm_up, &count]).args(self.setting);
        Error::System { what: "starting a peer's driver", source: command.exec() }
    }

    /// The command that starts it, without arguments.
    ///
    /// # Errors
    /// Its folder does not exist.
    pub fn command(&self, drivers: &Path) -> io::Result<Command> {
        let folder = drivers.join(self.folder).canonicalize()?;
        let mut command = Command::new(folder.join("driver"));
        // Some keep what they have learnt about the machine in the home folder.
        command.envs(self.environment.iter().copied()).env("HOME", &folder);
        Ok(command)
    }
}
