//! The ranks that the environment of the process names.

use std::path::PathBuf;
use std::time::Duration;

use crate::transport::RankError;

/// How long ranks wait for each other unless STREAMVM_RANKS_TIMEOUT says otherwise: what PyTorch allows NCCL.
const LIMIT: Duration = Duration::from_secs(600);

/// Where this process stands in a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// It is the only rank.
    Alone,
    /// MPI knows its rank.
    Mpi,
    /// It is a rank of a job on this machine, whose shared memory is in this folder.
    Local { folder: PathBuf, rank: usize, size: usize },
}

/// Reads the environment, by way of `get`.
///
/// # Errors
/// It contradicts itself, or asks for what no backend can do.
pub(crate) fn place(get: impl Fn(&str) -> Option<String>) -> Result<Place, RankError> {
    const HELP: &str = "STREAMVM_RANKS is `mpi`, `local` or `alone`";
    let by_mpi = ["PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"].iter().any(|name| get(name).is_some());
    match get("STREAMVM_RANKS").as_deref() {
        Some("alone") => Ok(Place::Alone),
        Some("mpi") => Ok(Place::Mpi),
        Some("local") => local(&get, true),
        Some(other) => Err(RankError::Environment { what: format!("STREAMVM_RANKS is {other:?}"), help: HELP }),
        None if by_mpi => Ok(Place::Mpi),
        None => local(&get, false),
    }
}

/// The variables of torchrun: RANK and WORLD_SIZE; LOCAL_WORLD_SIZE, which tells whether all ranks are on this machine; MASTER_PORT, which tells jobs apart. A launcher
/// may name the folder of the shared memory by STREAMVM_RANKS_FOLDER instead, or the job by STREAMVM_JOB.
fn local(get: &impl Fn(&str) -> Option<String>, wanted: bool) -> Result<Place, RankError> {
    const HELP: &str = "set RANK and WORLD_SIZE as torchrun does, or start by `streamvm launch` or mpirun";
    let number = |name: &str| match get(name) {
        None => Ok(None),
        Some(text) => match text.parse::<usize>() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(RankError::Environment { what: format!("{name} is {text:?}, not a number"), help: HELP }),
        },
    };
    let (rank, size) = match (number("RANK")?, number("WORLD_SIZE")?) {
        (None, None) if !wanted => return Ok(Place::Alone),
        (Some(rank), Some(size)) => (rank, size),
        (rank, _) => {
            let what = format!("{} is not set", if rank.is_none() { "RANK" } else { "WORLD_SIZE" });
            return Err(RankError::Environment { what, help: HELP });
        }
    };
    if rank >= size {
        return Err(RankError::Environment { what: format!("RANK is {rank} and WORLD_SIZE is {size}"), help: HELP });
    }
    let here = number("LOCAL_WORLD_SIZE")?.unwrap_or(size);
    if here != size {
        let what = format!("{here} of {size} ranks are on this machine");
        return Err(RankError::Environment { what, help: "ranks on several machines need MPI: start them by mpirun" });
    }
    if let Some(folder) = get("STREAMVM_RANKS_FOLDER") {
        return Ok(Place::Local { folder: PathBuf::from(folder), rank, size });
    }
    let job = get("STREAMVM_JOB").or_else(|| get("MASTER_PORT")).unwrap_or_else(|| "0".to_owned());
    let user = rustix::process::getuid().as_raw();
    let shared = PathBuf::from("/dev/shm");
    let base = if shared.is_dir() { shared } else { std::env::temp_dir() };
    let name: String = job.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    Ok(Place::Local { folder: base.join(format!("streamvm-{user}-{name}")), rank, size })
}

/// The number of this process, and that of all ranks.
///
/// # Errors
/// As [`place`].
pub(crate) fn numbers(get: impl Fn(&str) -> Option<String>) -> Result<Option<(usize, usize)>, RankError> {
    let number = |names: &[&str]| names.iter().find_map(|name| get(name)?.parse::<usize>().ok());
    Ok(match place(&get)? {
        Place::Alone => None,
        Place::Local { rank, size, .. } => Some((rank, size)),
        Place::Mpi => {
            let rank = number(&["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID", "RANK"]);
            let size = number(&["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", "WORLD_SIZE"]);
            let what = "the launcher does not say which of how many ranks this is".to_owned();
            let help = "set RANK and WORLD_SIZE for each rank";
            Some(rank.zip(size).ok_or(RankError::Environment { what, help })?)
        }
    })
}

/// The number of this process among the ranks of its machine, as launchers say it: torchrun and `streamvm launch`, Open MPI, MPICH, Slurm.
pub(crate) fn local_rank(get: impl Fn(&str) -> Option<String>) -> Option<usize> {
    let names = ["LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"];
    names.iter().find_map(|name| get(name)?.parse().ok())
}

/// How long ranks wait for each other.
///
/// # Errors
/// The variable is no positive number.
pub(crate) fn limit(get: impl Fn(&str) -> Option<String>) -> Result<Duration, RankError> {
    let Some(text) = get("STREAMVM_RANKS_TIMEOUT") else { return Ok(LIMIT) };
    let seconds = text.parse::<f64>().ok().filter(|&seconds| seconds > 0.0);
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).ok_or_else(|| RankError::Environment {
        what: format!("STREAMVM_RANKS_TIMEOUT is {text:?}"),
        help: "it is a number of seconds above 0",
    })
}

/// Has the system end this process when `streamvm launch`, whose child it is, is killed: then nobody else can.
pub(crate) fn end_with_launcher(get: impl Fn(&str) -> Option<String>) {
    #[cfg(target_os = "linux")]
    if let Some(launcher) = get("STREAMVM_LAUNCHER") {
        use rustix::process::{Signal, getpid, getppid, kill_process, set_parent_process_death_signal};
        let is_parent = || getppid().is_some_and(|parent| parent.as_raw_nonzero().to_string() == launcher);
        if !is_parent() {
            return;
        }
        if let Err(error) = set_parent_process_death_signal(Some(Signal::TERM)) {
            log::debug!("this rank would go on without its launcher: {error}");
        } else if !is_parent() {
            // It was killed before the system knew.
            let _cannot_fail = kill_process(getpid(), Signal::TERM);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _no_such_signal = get;
}

/// Whether each collective checks that all ranks call the same one.
///
/// # Errors
/// The variable is neither 0 nor 1.
pub(crate) fn checks_order(get: impl Fn(&str) -> Option<String>) -> Result<bool, RankError> {
    match get("STREAMVM_CHECK_ORDER").as_deref() {
        None | Some("" | "0") => Ok(false),
        Some("1") => Ok(true),
        Some(other) => {
            Err(RankError::Environment { what: format!("STREAMVM_CHECK_ORDER is {other:?}"), help: "it is 0 or 1" })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Place, RankError> {
        place(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn the_launcher_decides() {
        assert_eq!(of(&[]), Ok(Place::Alone));
        assert_eq!(of(&[("PMI_RANK", "0")]), Ok(Place::Mpi));
        assert_eq!(of(&[("OMPI_COMM_WORLD_RANK", "1"), ("RANK", "1"), ("WORLD_SIZE", "2")]), Ok(Place::Mpi));
        let torchrun = [("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2"), ("MASTER_PORT", "29500")];
        let Ok(Place::Local { folder, rank: 1, size: 2 }) = of(&torchrun) else { panic!("{:?}", of(&torchrun)) };
        assert!(folder.to_string_lossy().ends_with("-29500"), "{folder:?}");
        let told_by_mpi = [("PMI_RANK", "1"), ("PMI_SIZE", "4")];
        let get =
            |name: &str| told_by_mpi.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        assert_eq!((numbers(get), numbers(|_| None)), (Ok(Some((1, 4))), Ok(None)));
        let by_pmix = |name: &str| (name == "PMIX_RANK").then(|| "2".to_owned());
        let by_slurm = |name: &str| by_pmix(name).or_else(|| (name == "SLURM_NTASKS").then(|| "8".to_owned()));
        assert_eq!(numbers(by_slurm), Ok(Some((2, 8))));
        // It is one of several ranks, and a script must not take it for the only one.
        assert!(numbers(by_pmix).is_err_and(|error| error.to_string().contains("set RANK and WORLD_SIZE")));
        let by_slurm = |name: &str| (name == "SLURM_LOCALID").then(|| "3".to_owned());
        assert_eq!((local_rank(by_slurm), local_rank(|_| None)), (Some(3), None));
        let told = |name: &'static str, value| of(&[&torchrun[..], &[(name, value)]].concat());
        assert_eq!(told("STREAMVM_RANKS", "alone"), Ok(Place::Alone));
        assert_eq!(told("STREAMVM_RANKS", "mpi"), Ok(Place::Mpi));
    }

    #[test]
    fn what_contradicts_itself_is_refused_with_its_reason() {
        for (variables, reason) in [
            (&[("RANK", "1")][..], "WORLD_SIZE is not set"),
            (&[("WORLD_SIZE", "1")], "RANK is not set"),
            (&[("STREAMVM_RANKS", "local")], "RANK is not set"),
            (&[("RANK", "two"), ("WORLD_SIZE", "4")], "RANK is \"two\", not a number"),
            (&[("RANK", "4"), ("WORLD_SIZE", "4")], "RANK is 4 and WORLD_SIZE is 4"),
            (&[("RANK", "1"), ("WORLD_SIZE", "4"), ("LOCAL_WORLD_SIZE", "2")], "2 of 4 ranks are on this machine"),
            (&[("STREAMVM_RANKS", "gloo")], "STREAMVM_RANKS is \"gloo\""),
        ] {
            let text = of(variables).expect_err("it is refused").to_string();
            assert!(text.contains(reason), "{text}");
        }
    }

    #[test]
    fn the_limit_is_a_number_of_seconds() {
        assert_eq!(limit(|_| None), Ok(LIMIT));
        assert_eq!(limit(|_| Some("1.5".to_owned())), Ok(Duration::from_millis(1500)));
        for text in ["0", "-1", "soon", "inf", "nan"] {
            assert!(limit(|_| Some(text.to_owned())).is_err(), "{text}");
        }
    }
}
