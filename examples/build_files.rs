//! A small build system: files are read, hashed, compressed and written, each step as soon as what it needs is there.
//!
//! A variable stands for each thing that a step makes. What cannot be read fails what is made of it and nothing else; the clean-up
//! runs whatever happened; and when the missing file is there, running its steps again heals what they write.
//!
//! Run with `cargo run --example build_files -p streamvm` over files of its own, or with a folder after `--` over the files in it.
//! What it writes goes to a temporary folder.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example shows what it does")]

use std::error::Error;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use sha2::{Digest, Sha256};
use streamvm::{Pool, Use, Var, Vm};

type Anything = Box<dyn Error + Send + Sync>;

fn main() -> ExitCode {
    env_logger::init();
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let result = match arguments.as_slice() {
        [] => over_files_of_its_own(),
        [folder] => over(folder),
        _ => Err("it takes one folder, or nothing".into()),
    };
    if let Err(error) = result {
        eprintln!("build_files: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// One file on its way: what is made of it, and a variable for each.
struct Target {
    name: String,
    source: PathBuf,
    output: PathBuf,
    text: (Var, Arc<Mutex<Vec<u8>>>),
    digest: (Var, Arc<Mutex<String>>),
    packed: (Var, Arc<Mutex<Vec<u8>>>),
    written: Var,
}

impl Target {
    fn new(vm: &Vm, source: &Path, outputs: &Path) -> Target {
        let name = source.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let output = outputs.join(format!("{name}.gz"));
        let (text, digest, packed) = (Arc::default(), Arc::default(), Arc::default());
        let source = source.to_owned();
        Target {
            name,
            source,
            output,
            text: (vm.var(), text),
            digest: (vm.var(), digest),
            packed: (vm.var(), packed),
            written: vm.var(),
        }
    }

    /// Pushes its four steps. Nothing is waited for here: each runs when what it reads is ready.
    fn push(&self, vm: &Vm) -> Result<(), streamvm::Error> {
        let Target { name, text, digest, packed, .. } = self;
        // Slow disks keep other workers busy than those that compute.
        let (reader, writer) = (vm.pusher().pool(Pool::CopyIn), vm.pusher().pool(Pool::CopyOut));

        let (source, into) = (self.source.clone(), text.1.clone());
        reader.push(format!("read {name}"), [text.0.write()], move || {
            *locked(&into) = fs::read(&source)?;
            Ok(())
        })?;
        let (from, into) = (text.1.clone(), digest.1.clone());
        vm.push(format!("hash {name}"), [text.0.read(), digest.0.write()], move || {
            // Of its own: two readers of a text run side by side, and a lock would keep them apart.
            let text = locked(&from).clone();
            let hash = Sha256::digest(&text);
            *locked(&into) = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            Ok(())
        })?;
        let (from, into) = (text.1.clone(), packed.1.clone());
        vm.push(format!("compress {name}"), [text.0.read(), packed.0.write()], move || {
            let text = locked(&from).clone();
            let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(&text)?;
            *locked(&into) = encoder.finish()?;
            Ok(())
        })?;
        let (from, output) = (packed.1.clone(), self.output.clone());
        writer.push(format!("write {name}.gz"), [packed.0.read(), self.written.write()], move || {
            Ok(fs::write(&output, &*locked(&from))?)
        })?;
        Ok(())
    }

    /// Whether what was written is what was read, and the hash that of it.
    fn check(&self) -> Result<(), Anything> {
        let (mut unpacked, text) = (Vec::new(), fs::read(&self.source)?);
        GzDecoder::new(fs::File::open(&self.output)?).read_to_end(&mut unpacked)?;
        let hash: String = Sha256::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(unpacked, text, "{}", self.name);
        assert_eq!(*locked(&self.digest.1), hash, "{}", self.name);
        Ok(())
    }
}

/// A lock that a panic has left is one like any other: the engine has told of the panic.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All targets, a list of what was made, and a file that says that somebody is at work.
struct Build {
    targets: Vec<Target>,
    outputs: PathBuf,
    manifest: Var,
    at_work: Var,
}

impl Build {
    fn new(vm: &Vm, sources: &[PathBuf], outputs: &Path) -> Build {
        let targets = sources.iter().map(|source| Target::new(vm, source, outputs)).collect();
        Build { targets, outputs: outputs.to_owned(), manifest: vm.var(), at_work: vm.var() }
    }

    fn lock_file(&self) -> PathBuf {
        self.outputs.join("at-work")
    }

    /// Pushes the steps of some targets, and those that need all of them.
    fn push<'a>(&self, vm: &Vm, targets: impl IntoIterator<Item = &'a Target>) -> Result<(), streamvm::Error> {
        let lock = self.lock_file();
        vm.push("lock", [self.at_work.write()], move || Ok(fs::write(&lock, "")?))?;
        targets.into_iter().try_for_each(|target| target.push(vm))?;

        // The list is wrong if anything is missing, so it reads all: one failure fails it.
        let digests: Vec<_> =
            self.targets.iter().map(|target| (target.name.clone(), target.digest.1.clone())).collect();
        let needs = self.targets.iter().flat_map(|target| [target.digest.0.read(), target.written.read()]);
        let path = self.outputs.join("manifest");
        vm.push("manifest", needs.chain([self.manifest.write()]), move || {
            let lines: String = digests.iter().map(|(name, hash)| format!("{}  {name}\n", locked(hash))).collect();
            Ok(fs::write(&path, lines)?)
        })?;

        // Comes after all that was written, failed or not, and runs all the same.
        let lock = self.lock_file();
        let uses: Vec<Use> = self.targets.iter().map(|target| target.written.read()).collect();
        let uses = uses.into_iter().chain([self.manifest.read(), self.at_work.update()]);
        vm.pusher().clean_up(true).push("unlock", uses, move || Ok(fs::remove_file(&lock)?))?;
        Ok(())
    }

    /// Waits for everything and prints a table. Returns those that have failed, with why.
    fn table(&self) -> Vec<(&Target, streamvm::Error)> {
        let mut failed = Vec::new();
        println!("{:<16} {:>9} {:>9}  {:<12}  state", "file", "bytes", "packed", "sha256");
        for target in &self.targets {
            let passed = target.written.wait().and_then(|()| target.digest.0.wait());
            let (bytes, packed) = (locked(&target.text.1).len(), locked(&target.packed.1).len());
            match passed {
                Ok(()) => {
                    let hash: String = locked(&target.digest.1).chars().take(12).collect();
                    println!("{:<16} {bytes:>9} {packed:>9}  {hash:<12}  written", target.name);
                }
                Err(error) => {
                    println!("{:<16} {:>9} {:>9}  {:<12}  {}", target.name, "-", "-", "-", reason(&error));
                    failed.push((target, error));
                }
            }
        }
        // The clean-up passes on what has failed: it has run, whatever that says.
        let _ = self.at_work.wait();
        failed
    }
}

/// The step that failed, and why, without the line in this program.
fn reason(error: &streamvm::Error) -> String {
    match error {
        streamvm::Error::Failed(failure) => format!("{}: {}", failure.what, failure.cause),
        other => other.to_string(),
    }
}

/// Over the files of a folder: what cannot be read is told, the rest is written.
fn over(folder: &Path) -> Result<(), Anything> {
    let entries =
        fs::read_dir(folder).map_err(|error| format!("cannot read the folder {}: {error}", folder.display()))?;
    let mut sources = Vec::new();
    for entry in entries {
        let path = entry?.path();
        // A link that leads nowhere is none of the folders, and is told as what cannot be read.
        if !path.is_dir() {
            sources.push(path);
        }
    }
    if sources.is_empty() {
        return Err(format!("there are no files in {}; give a folder with some", folder.display()).into());
    }
    sources.sort();
    let outputs = tempfile::tempdir()?;
    let vm = Vm::builder().build()?;
    let build = Build::new(&vm, &sources, outputs.path());
    build.push(&vm, &build.targets)?;
    let failed = build.table();
    assert!(!build.lock_file().exists(), "the clean-up has run");
    for target in build.targets.iter().filter(|target| failed.iter().all(|(other, _)| other.name != target.name)) {
        target.check()?;
    }
    match failed.len() {
        0 => Ok(vm.wait_all()?),
        count => Err(format!("{count} of {} files failed", build.targets.len()).into()),
    }
}

/// Over files of its own, two of which cannot be read at first.
fn over_files_of_its_own() -> Result<(), Anything> {
    let (sources, outputs) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let paths = ["one.txt", "two.txt", "three.txt", "gone.txt", "folder.txt", "empty.txt"]
        .map(|name| sources.path().join(name));
    for (number, path) in paths[..3].iter().enumerate() {
        fs::write(path, format!("line of file {number}\n").repeat(1_000 * (number + 1)))?;
    }
    // `gone.txt` is not there, and `folder.txt` is no file.
    fs::create_dir(&paths[4])?;
    fs::write(&paths[5], "")?;

    let vm = Vm::builder().build()?;
    let build = Build::new(&vm, &paths, outputs.path());
    build.push(&vm, &build.targets)?;
    let failed = build.table();

    // What cannot be read has failed, and with it what is made of it; nothing else has.
    let names: Vec<&str> = failed.iter().map(|(target, _)| target.name.as_str()).collect();
    assert_eq!(names, ["gone.txt", "folder.txt"]);
    for (target, error) in &failed {
        assert!(reason(error).starts_with(&format!("read {}:", target.name)), "the root cause: {error}");
        assert!(!target.output.exists(), "nothing was written");
    }
    build.targets.iter().filter(|target| !names.contains(&target.name.as_str())).try_for_each(Target::check)?;
    let of_manifest = build.manifest.wait().expect_err("it needs all of them");
    println!("manifest: {}", reason(&of_manifest));
    assert!(!build.lock_file().exists(), "the clean-up has run all the same");

    // With the two files there, their steps run again, and what they overwrite is whole.
    println!("\nonce both are there:");
    fs::remove_dir(&paths[4])?;
    fs::write(&paths[3], "found again\n")?;
    fs::write(&paths[4], "a file now\n")?;
    build.push(&vm, failed.into_iter().map(|(target, _)| target))?;
    assert!(build.table().is_empty());
    build.targets.iter().try_for_each(Target::check)?;
    build.manifest.wait()?;
    let manifest = fs::read_to_string(outputs.path().join("manifest"))?;
    print!("\nmanifest:\n{manifest}");
    let listed: Vec<&str> = manifest.lines().filter_map(|line| line.split("  ").nth(1)).collect();
    assert_eq!(listed, ["one.txt", "two.txt", "three.txt", "gone.txt", "folder.txt", "empty.txt"]);
    assert!(!build.lock_file().exists());
    Ok(vm.wait_all()?)
}
