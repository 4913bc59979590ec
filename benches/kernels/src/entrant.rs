//! Entrants: a library with a number of threads, and the process that runs its cases.
//!
//! A process is called with its number of threads and the folder of the model, and reads lines `CASE MILLISECONDS`. It answers each with the
//! median time of a call in nanoseconds, or with `-` if it does not have the case. With 0 milliseconds it answers with one element of the
//! result: the one at [`compared`] in row-major order, or of a [model](crate::model) the first of the last embedding.

use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The index of the element that is compared of a result of `count` elements, as in drivers/python.py and drivers/candle.
///
/// At a tenth no result is 0, and the first, the middle and the mirrored element are others. At a half a sort in the other direction gives nearly
/// the same element, and at a third `relu` gives 0 and an attention its first element, because its operands repeat after 8192 numbers.
pub(crate) fn compared(count: usize) -> usize {
    count / 10
}

/// The variables that tell NumPy with OpenBLAS, and PyTorch with oneDNN and MKL, to leave AVX-512 out.
const MASKED: [(&str, &str); 5] = [
    ("NPY_DISABLE_CPU_FEATURES", "X86_V4 AVX512_ICL AVX512_SPR"),
    ("OPENBLAS_CORETYPE", "Haswell"),
    ("ATEN_CPU_CAPABILITY", "avx2"),
    ("ONEDNN_MAX_CPU_ISA", "AVX2"),
    ("MKL_ENABLE_INSTRUCTIONS", "AVX2"),
];

/// A library.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Library {
    Streamvm,
    Torch,
    Numpy,
    OnnxRuntime,
    Candle,
}

/// A library with a number of threads.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entrant {
    pub(crate) library: Library,
    pub(crate) threads: usize,
}

/// Why an entrant gave no figures.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("there is no {0}; `make bench-kernels` builds it")]
    NoDriver(String),
    #[error("the process of {name}: {source}")]
    Process { name: String, source: io::Error },
    #[error("the process of {name} answered `{answer}` to `{case}`; what it says of an error is above")]
    Answer { name: String, case: String, answer: String },
    #[error("{name} computes {found} as an element of `{case}`, and streamvm {expected}")]
    Differs { name: String, case: String, found: f64, expected: f64 },
}

impl Entrant {
    /// All of them: each library with one and with two threads.
    pub(crate) fn all(alone: bool) -> Vec<Entrant> {
        let libraries = [Library::Streamvm, Library::Torch, Library::Numpy, Library::OnnxRuntime, Library::Candle];
        let chosen = libraries.into_iter().filter(|&library| !alone || library == Library::Streamvm);
        chosen.flat_map(|library| [1, 2].map(|threads| Entrant { library, threads })).collect()
    }

    /// Whether a failure of it is a failure of the measurement.
    pub(crate) fn is_streamvm(&self) -> bool {
        self.library == Library::Streamvm
    }

    /// Whether it can be told to leave vectors out.
    pub(crate) fn can_be_masked(&self) -> bool {
        self.library != Library::OnnxRuntime
    }

    pub(crate) fn library(&self) -> &'static str {
        match self.library {
            Library::Streamvm => "streamvm",
            Library::Torch => "torch",
            Library::Numpy => "numpy",
            Library::OnnxRuntime => "onnxruntime",
            Library::Candle => "candle",
        }
    }

    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.library(), self.threads)
    }

    fn command(&self, drivers: &Path, model: &Path, masked: bool) -> Result<Command, Error> {
        let threads = self.threads.to_string();
        let driver = |name: &str| {
            let path = drivers.join(name);
            if path.is_file() {
                Ok(Command::new(path))
            } else {
                Err(Error::NoDriver(drivers.join(name).display().to_string()))
            }
        };
        let mut command = match self.library {
            Library::Streamvm => {
                let this = std::env::current_exe().map_err(|source| Error::Process { name: self.name(), source })?;
                let mut command = Command::new(this);
                command.args(["--child", &threads]).arg("--model").arg(model);
                if masked {
                    command.args(["--mask", "avx512"]);
                }
                return Ok(command);
            }
            Library::Candle => driver("candle")?,
            Library::Torch | Library::Numpy | Library::OnnxRuntime => {
                let mut command = driver("venv/bin/python")?;
                command.arg(drivers.join("python.py")).arg(self.library());
                command
            }
        };
        for variable in ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"] {
            command.env(variable, &threads);
        }
        if masked {
            command.envs(MASKED);
        }
        command.arg(&threads).arg(model);
        Ok(command)
    }
}

/// A running process of an entrant, which ends with this value.
pub(crate) struct Process {
    name: String,
    child: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Process {
    pub(crate) fn start(entrant: &Entrant, drivers: &Path, model: &Path, masked: bool) -> Result<Process, Error> {
        let name = entrant.name();
        let failed = |source| Error::Process { name: name.clone(), source };
        let mut command = entrant.command(drivers, model, masked)?;
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let (Some(questions), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed(io::ErrorKind::BrokenPipe.into()));
        };
        Ok(Process { name, child, questions, answers: BufReader::new(answers) })
    }

    /// The median time of a call in nanoseconds, or an element of the result for a budget of 0; `None` if the library does not have the case.
    pub(crate) fn ask(&mut self, case: &str, budget_ms: u32) -> Result<Option<f64>, Error> {
        let mut answer = String::new();
        let asked = writeln!(self.questions, "{case} {budget_ms}").and_then(|()| self.questions.flush());
        asked
            .and_then(|()| self.answers.read_line(&mut answer))
            .map_err(|source| Error::Process { name: self.name.clone(), source })?;
        match answer.trim() {
            "-" => Ok(None),
            text => match text.parse() {
                Ok(nanoseconds) => Ok(Some(nanoseconds)),
                Err(_) => {
                    Err(Error::Answer { name: self.name.clone(), case: case.to_owned(), answer: text.to_owned() })
                }
            },
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
