//! Jobs of several ranks, each a process: what they compute, and what they see when one of them fails.
//!
//! The ranks run `tests/rank_checks`. Jobs over shared memory are always run; jobs over MPI where STREAMVM_MPI_PREFIXES names installations of MPI, as
//! `make test-ranks` does: folders with `bin/mpirun`, separated by colons.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use streamvm_standin::Standin;

/// A job that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// Ranks that learn of a fault later have waited for a limit, and have not been told. They learn of it within a fraction of a second, but on a machine that is loaded.
const LEARN: Duration = Duration::from_secs(20);

fn program() -> PathBuf {
    let tests = std::env::current_exe().expect("a test has a path");
    tests.parent().and_then(Path::parent).expect("target/debug/deps/jobs").join("examples/rank_checks")
}

/// A name that no other job has, in the environment of all processes of a job.
fn name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

fn started(command: &mut Command) -> Child {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the process starts: `cargo test -p streamvm-ranks` builds its program")
}

/// What a process has printed, once it has ended. Ends it at the limit.
fn ended(child: Child) -> (Output, String) {
    let (id, begin) = (child.id(), Instant::now());
    let (done, over) = std::sync::mpsc::channel();
    let watch = std::thread::spawn(move || {
        if over.recv_timeout(LIMIT.saturating_sub(begin.elapsed())).is_err() {
            let _ended_already = Command::new("kill").args(["-KILL", &id.to_string()]).status();
        }
    });
    let output = child.wait_with_output().expect("the process ends");
    let _watch_is_over = done.send(());
    watch.join().expect("the watch ends");
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    (output, text)
}

/// Runs a job over shared memory as torchrun would. Returns for each rank whether it succeeded, and what it printed.
fn local(ranks: usize, arguments: &[&str]) -> Vec<(bool, String)> {
    local_with(ranks, arguments, &[])
}

/// As [`local`], in an environment with these variables, in which `{rank}` stands for the number of the rank.
fn local_with(ranks: usize, arguments: &[&str], variables: &[(&str, &str)]) -> Vec<(bool, String)> {
    job_of(&program(), ranks, arguments, variables)
}

fn job_of(program: &Path, ranks: usize, arguments: &[&str], variables: &[(&str, &str)]) -> Vec<(bool, String)> {
    let job = name();
    let children: Vec<Child> = (0..ranks)
        .map(|rank| {
            let mut command = Command::new(program);
            command.args(arguments).env_remove("STREAMVM_RANKS").env("STREAMVM_JOB", &job).env("RUST_BACKTRACE", "0");
            command.envs(
                [("RANK", rank), ("WORLD_SIZE", ranks), ("LOCAL_WORLD_SIZE", ranks)].map(|(k, v)| (k, v.to_string())),
            );
            let of_rank = |text: &str| text.replace("{rank}", &rank.to_string());
            started(command.envs(variables.iter().map(|(name, value)| (*name, of_rank(value)))))
        })
        .collect();
    let outputs = children.into_iter().map(|child| {
        let (output, text) = ended(child);
        (output.status.success(), text)
    });
    let outputs = outputs.collect();
    // The last rank removes the folder, unless it was killed.
    let ending = format!("-{}", job.replace('-', "_"));
    for entry in std::fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().ends_with(&ending) {
            let _removed_by_a_rank = std::fs::remove_dir_all(entry.path());
        }
    }
    outputs
}

#[track_caller]
fn fine(ranks: usize, arguments: &[&str]) {
    for (rank, (success, text)) in local(ranks, arguments).into_iter().enumerate() {
        assert!(success && text.contains(&format!("rank {rank} of {ranks}: fine")), "rank {rank} of {ranks}: {text}");
    }
}

/// The texts of the ranks but rank 1, which each say `what` and went on.
#[track_caller]
fn others_say(outputs: &[(bool, String)], what: &str) {
    for (rank, (success, text)) in outputs.iter().enumerate().filter(|(rank, _)| *rank != 1) {
        assert!(*success && text.contains(what), "rank {rank}: {text}");
        let told = text.lines().find_map(|line| line.strip_prefix(&format!("rank {rank} after "))?.split_once(" ms"));
        let after = told.and_then(|(after, _)| after.parse().ok()).map(Duration::from_millis);
        assert!(after.is_some_and(|after| after < LEARN), "rank {rank}: {text}");
    }
}

#[test]
fn every_collective_computes_what_each_rank_expects() {
    for ranks in 1..=3 {
        fine(ranks, &["every"]);
    }
}

#[test]
fn random_programs_of_several_groups_equal_the_serial_program() {
    for ranks in 2..=5 {
        fine(ranks, &["random", "1", "40"]);
    }
    fine(8, &["random", "2", "10"]);
}

/// A GPU for each rank of a job: the stand-ins for the driver and for NCCL, which is the same library.
struct StandIns {
    /// A folder for their files.
    files: PathBuf,
    variables: Vec<(&'static str, String)>,
}

impl StandIns {
    fn new() -> StandIns {
        let driver = Standin::folder();
        let files = std::env::temp_dir().join(format!("streamvm-{}", name()));
        std::fs::create_dir_all(&files).expect("a folder");
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        let variables = vec![
            ("STREAMVM_NCCL", text(driver.join("libcuda.so"))),
            ("LD_LIBRARY_PATH", text(driver)),
            ("TMPDIR", text(files.clone())),
            ("STREAMVM_STANDIN", "devices=1".to_owned()),
            ("STREAMVM_STANDIN_FINDINGS", text(files.join("findings"))),
            ("RANK_CHECKS_GPU", "1".to_owned()),
        ];
        StandIns { files, variables }
    }

    /// Checks that they have found nothing.
    fn end(self, outputs: &impl std::fmt::Debug) {
        let found = std::fs::read_to_string(self.files.join("findings")).unwrap_or_default();
        std::fs::remove_dir_all(&self.files).expect("it is removed");
        assert_eq!(found, "", "the stand-ins found something; the ranks: {outputs:?}");
    }
}

/// Runs a job whose ranks have a GPU each.
fn on_gpus(ranks: usize, arguments: &[&str], variables: &[(&str, &str)]) -> Vec<(bool, String)> {
    let standins = StandIns::new();
    let theirs = standins.variables.iter().map(|(name, value)| (*name, value.as_str()));
    let outputs = local_with(ranks, arguments, &theirs.chain(variables.iter().copied()).collect::<Vec<_>>());
    standins.end(&outputs);
    outputs
}

#[test]
fn on_gpus_every_collective_computes_what_each_rank_expects() {
    for (ranks, asks) in [(1, "0"), (3, "1"), (2, "0")] {
        for (rank, (success, text)) in
            on_gpus(ranks, &["gpu"], &[("STREAMVM_CHECK_ORDER", asks)]).into_iter().enumerate()
        {
            assert!(success && text.contains(&format!("rank {rank} of {ranks}: fine")), "rank {rank}: {text}");
        }
    }
}

#[test]
fn on_gpus_the_loss_of_a_rank_fails_the_collectives_of_the_others_and_the_rest_goes_on() {
    for (fault, what) in [
        ("kill", "rank 1 died"),
        ("kill-during", "rank 1 died"),
        ("leave", "rank 1 left the group"),
        ("skip", "rank 1 has given the group up"),
    ] {
        others_say(&on_gpus(3, &["fault", fault], &[]), what);
    }
    // Where the caller itself waits for the device.
    others_say(&on_gpus(3, &["fault", "kill"], &[("STREAMVM_ENGINE", "inline")]), "rank 1 died");
}

/// The kernels of a communicator that does not end may use the memory of the device for ever.
#[test]
fn on_gpus_a_communicator_that_does_not_end_takes_the_device_along() {
    let hangs = [("STREAMVM_STANDIN", "devices=1;hang=ncclCommAbort")];
    let begin = Instant::now();
    let outputs = on_gpus(3, &["fault", "kill"], &hangs);
    assert!(begin.elapsed() < LEARN + Duration::from_secs(10), "a rank did not end by itself");
    for (rank, (_, text)) in outputs.iter().enumerate().filter(|(rank, _)| *rank != 1) {
        assert!(text.contains("cuda:0 is lost (rank 1 died"), "rank {rank}: {text}");
    }
}

#[test]
fn on_gpus_a_rank_that_has_left_does_not_fail_the_messages_of_others() {
    for (rank, (success, text)) in on_gpus(3, &["fault", "messages"], &[]).into_iter().enumerate() {
        assert!(success && text.contains(&format!("rank {rank} of 3: fine")), "rank {rank}: {text}");
    }
}

/// The limit is for ranks that do not take part, and not for a caller that asks late.
#[test]
fn on_gpus_a_collective_that_is_over_stays_so() {
    for (rank, (success, text)) in
        on_gpus(2, &["fault", "late"], &[("STREAMVM_RANKS_TIMEOUT", "2")]).into_iter().enumerate()
    {
        assert!(success && text.contains(&format!("rank {rank} of 2: fine")), "rank {rank}: {text}");
    }
}

#[test]
fn without_nccl_the_error_says_what_was_tried() {
    for (_, text) in on_gpus(2, &["gpu"], &[("STREAMVM_NCCL", "/nowhere/libnccl.so.2")]) {
        assert!(text.contains("/nowhere/libnccl.so.2") && text.contains("pip install nvidia-nccl"), "{text}");
    }
}

#[test]
fn ranks_with_another_nccl_are_refused() {
    let outputs = on_gpus(2, &["gpu"], &[("STREAMVM_STANDIN", "devices=1;nccl=2270{rank}")]);
    for (rank, (success, text)) in outputs.iter().enumerate() {
        let says = format!("rank {} runs NCCL 2.27.{}, rank {rank} runs NCCL 2.27.{rank}", 1 - rank, 1 - rank);
        assert!(!success && text.contains(&says), "{text}");
    }
    for (_, text) in on_gpus(2, &["gpu"], &[("STREAMVM_STANDIN", "devices=1;nccl=21700")]) {
        assert!(text.contains("NCCL 2.17.0 is older than 2.18"), "{text}");
    }
}

#[test]
fn collectives_are_steps_of_programs() {
    fine(1, &["programs"]);
    fine(3, &["programs"]);
}

#[test]
fn the_loss_of_a_rank_fails_the_collectives_of_the_others_and_the_rest_goes_on() {
    for (fault, what) in [
        ("kill", "rank 1 died"),
        ("kill-during", "rank 1 died"),
        ("leave", "rank 1 left the group"),
        ("panic", "rank 1 left the group"),
        ("skip", "rank 1 has given the group up"),
    ] {
        others_say(&local(4, &["fault", fault]), what);
    }
}

#[test]
fn a_rank_that_stops_is_named_after_the_limit() {
    others_say(&stopping(|limit| local_with(3, &["fault", "stop"], limit)), "rank 1 did not take part within 2 s");
}

#[test]
fn on_gpus_a_rank_that_stops_ends_the_wait_after_the_limit() {
    let outputs = stopping(|limit| on_gpus(3, &["fault", "stop"], limit));
    assert!(outputs.iter().any(|(_, text)| text.contains("did not take part within 2 s")), "{outputs:?}");
    let says = |text: &str| text.contains("did not take part within 2 s") || text.contains("has given the group up");
    assert!([0, 2].iter().all(|&rank| outputs[rank].0 && says(&outputs[rank].1)), "{outputs:?}");
}

/// Runs a job of which rank 1 stops, with these variables, and ends that rank after 10 s: it never ends by itself.
fn stopping<T: Send>(run: impl FnOnce(&[(&str, &str)]) -> T + Send) -> T {
    let mark = name();
    let variable = format!("STREAMVM_TEST_STOPS={mark}");
    std::thread::scope(|scope| {
        let job = scope.spawn(|| run(&[("STREAMVM_RANKS_TIMEOUT", "2"), ("STREAMVM_TEST_STOPS", mark.as_str())]));
        let begin = Instant::now();
        while !job.is_finished() && begin.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(50));
            for process in processes_with(&variable) {
                let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
                let stopped = stat.rsplit_once(')').is_some_and(|(_, state)| state.trim_start().starts_with('T'));
                if stopped && begin.elapsed() > Duration::from_secs(10) {
                    let _ended_already = Command::new("kill").args(["-KILL", &process.to_string()]).status();
                }
            }
        }
        job.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[test]
fn ranks_that_call_different_collectives_get_both_lines() {
    for (fault, theirs) in [("order", "all_gather f32[1000]"), ("shape", "all_reduce sum f32[999]")] {
        let outputs = local(3, &["fault", fault]);
        others_say(&outputs, theirs);
        assert!(outputs[1].0 && outputs[1].1.contains("all_reduce sum f32[1000]"), "{}", outputs[1].1);
    }
    assert!(local(3, &["fault", "step"]).iter().all(|(success, _)| *success));
    fine(3, &["fault", "length"]);
}

#[test]
fn a_rank_that_does_not_join_is_named() {
    let mut command = Command::new(program());
    command.arg("every").envs([("RANK", "0"), ("WORLD_SIZE", "3"), ("STREAMVM_RANKS_TIMEOUT", "0.3")]);
    let (output, text) = ended(started(command.env("STREAMVM_JOB", name())));
    assert!(!output.status.success() && text.contains("ranks 1, 2 did not join"), "{text}");
}

#[test]
fn ranks_of_another_number_are_refused() {
    let (job, program) = (name(), program());
    let start = |rank: &str, size: &str| {
        let variables = [("RANK", rank), ("WORLD_SIZE", size), ("STREAMVM_RANKS_TIMEOUT", "2"), ("STREAMVM_JOB", &job)];
        started(Command::new(&program).arg("every").envs(variables))
    };
    let texts = [start("0", "2"), start("1", "3")].map(|child| ended(child).1);
    assert!(
        texts.iter().any(|text| text.contains("and others are not; start all ranks with one version")),
        "{texts:?}"
    );
}

#[test]
fn two_processes_cannot_be_one_rank() {
    let job = name();
    let start = || {
        let mut command = Command::new(program());
        let variables = [("RANK", "0"), ("WORLD_SIZE", "2"), ("STREAMVM_RANKS_TIMEOUT", "2"), ("STREAMVM_JOB", &job)];
        started(command.arg("every").envs(variables))
    };
    let texts = [start(), start()].map(|child| ended(child).1);
    assert!(texts.iter().any(|text| text.contains("rank 0 is there already")), "{texts:?}");
}

fn example(name: &str) -> PathBuf {
    program().with_file_name(name)
}

#[test]
fn the_examples_do_what_they_say() {
    let runs = [
        ("data_parallel", &["--check"][..], 4, "4 ranks and one give the same losses and weights"),
        ("data_parallel", &["--check"], 1, "1 ranks and one give the same losses and weights"),
        ("rank_pipeline", &[], 3, "through 3 ranks: the same bits as on one rank"),
    ];
    for (name, arguments, ranks, says) in runs {
        let outputs = job_of(&example(name), ranks, arguments, &[]);
        assert!(outputs.iter().all(|(success, _)| *success), "{name}: {outputs:?}");
        assert!(outputs.iter().any(|(_, text)| text.contains(says)), "{name}: {outputs:?}");
    }
    let outputs = job_of(&example("data_parallel"), 3, &[], &[]);
    assert!(outputs.iter().all(|(success, text)| !success && text.contains("3 ranks do not divide")), "{outputs:?}");
}

#[test]
fn the_folder_of_a_job_is_for_its_user_alone() {
    use std::os::unix::fs::MetadataExt;
    let base = std::env::temp_dir().join(format!("streamvm-{}", name()));
    let (folder, file) = (base.join("job"), base.join("file"));
    std::fs::create_dir_all(&base).expect("a folder");
    std::fs::write(&file, "").expect("a file");
    let join = |path: &Path| streamvm_ranks::Ranks::local(path, 0, 1, Duration::from_secs(5));
    let ranks = join(&folder).expect("a job of one rank");
    assert_eq!(std::fs::metadata(&folder).expect("its folder").mode() & 0o777, 0o700);
    drop(ranks);
    assert!(!folder.exists());
    std::os::unix::fs::symlink(&base, &folder).expect("a link");
    for wrong in [&file, &folder] {
        let refused = join(wrong).map(drop).expect_err("it is no folder").to_string();
        assert!(refused.contains("cannot enter the folder"), "{refused}");
    }
    std::fs::remove_dir_all(&base).expect("it is removed");
}

/// The processes whose environment has this variable.
fn processes_with(variable: &str) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").expect("processes are listed").flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.filter(|id| {
        let environment = std::fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|pair| pair == variable.as_bytes())
    })
    .collect()
}

/// An installation of MPI.
struct Mpi {
    prefix: PathBuf,
    open: bool,
}

impl Mpi {
    fn all() -> Vec<Mpi> {
        let prefixes = std::env::var_os("STREAMVM_MPI_PREFIXES").unwrap_or_default();
        let prefixes: Vec<PathBuf> =
            std::env::split_paths(&prefixes).filter(|prefix| !prefix.as_os_str().is_empty()).collect();
        let missing = prefixes.iter().find(|prefix| !prefix.join("bin/mpirun").exists());
        assert_eq!(missing, None, "it has no mpirun");
        prefixes.into_iter().map(|prefix| Mpi { open: prefix.join("lib/libmpi.so.40").exists(), prefix }).collect()
    }

    /// Runs a job by mpirun. Returns whether it succeeded, and what it printed, and checks that no process is left.
    fn job(&self, ranks: usize, options: &[&str], arguments: &[&str]) -> (bool, String) {
        self.job_with(ranks, options, arguments, &[])
    }

    /// [`job`](Mpi::job), in an environment with these variables.
    fn job_with(
        &self,
        ranks: usize,
        options: &[&str],
        arguments: &[&str],
        variables: &[(&str, String)],
    ) -> (bool, String) {
        let job = name();
        let mut command = Command::new(self.prefix.join("bin/mpirun"));
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", self.prefix.join("bin").display())).env("STREAMVM_JOB", &job);
        if self.open {
            // Ranks are more than cores, and a container runs as root.
            command.args(["--allow-run-as-root", "--oversubscribe"]);
        }
        command
            .args(options)
            .args(["-n", &ranks.to_string()])
            .arg(program())
            .args(arguments)
            .env("RUST_BACKTRACE", "0");
        let (output, text) = ended(started(&mut command));
        let begin = Instant::now();
        loop {
            let left = processes_with(&format!("STREAMVM_JOB={job}"));
            if left.is_empty() {
                return (output.status.success(), text);
            }
            assert!(begin.elapsed() < Duration::from_secs(10), "processes {left:?} of the job are left: {text}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The options of mpirun that set a variable for all ranks.
    fn variable<'v>(&self, name: &'v str, pair: &'v str) -> Vec<&'v str> {
        let value = pair.split_once('=').map_or("", |(_, value)| value);
        if self.open { vec!["-x", pair] } else { vec!["-env", name, value] }
    }
}

#[test]
fn over_mpi_every_collective_computes_what_each_rank_expects() {
    for mpi in Mpi::all() {
        for (ranks, arguments) in
            [(4, &["every"][..]), (4, &["random", "3", "30"]), (4, &["programs"]), (1, &["every"])]
        {
            let (success, text) = mpi.job(ranks, &[], arguments);
            let fine = (0..ranks).all(|rank| text.contains(&format!("rank {rank} of {ranks}: fine")));
            assert!(success && fine, "{arguments:?} over {}: {text}", mpi.prefix.display());
        }
    }
}

#[test]
fn over_mpi_collectives_run_on_gpus() {
    for mpi in Mpi::all() {
        let standins = StandIns::new();
        let (success, text) = mpi.job_with(3, &[], &["gpu"], &standins.variables);
        let fine = (0..3).all(|rank| text.contains(&format!("rank {rank} of 3: fine")));
        assert!(success && fine, "over {}: {text}", mpi.prefix.display());
        standins.end(&text);
    }
}

#[test]
fn over_mpi_a_rank_that_is_lost_ends_the_job() {
    for mpi in Mpi::all() {
        for fault in ["kill", "kill-during", "panic", "leave"] {
            let begin = Instant::now();
            let (success, text) = mpi.job(4, &[], &["fault", fault]);
            assert!(!success && begin.elapsed() < Duration::from_secs(20), "{fault}: {text}");
            assert!(!text.contains("went on"), "{fault}: {text}");
        }
    }
}

#[test]
fn over_mpi_ranks_that_call_different_collectives_get_both_lines() {
    for mpi in Mpi::all() {
        let asks = mpi.variable("STREAMVM_CHECK_ORDER", "STREAMVM_CHECK_ORDER=1");
        let (_, text) = mpi.job(3, &[], &["fault", "length"]);
        assert!((0..3).all(|rank| text.contains(&format!("rank {rank} of 3: fine"))), "{text}");
        for (fault, options) in [("order", &asks[..]), ("shape", &asks), ("step", &[])] {
            let (_, text) = mpi.job(3, options, &["fault", fault]);
            let fine = (0..3).all(|rank| text.contains(&format!("rank {rank} of 3: fine")));
            assert!(fine && text.contains("the ranks call different collectives"), "{fault}: {text}");
        }
    }
}

#[test]
fn over_mpi_a_rank_that_stops_ends_the_job_after_the_limit() {
    for mpi in Mpi::all() {
        let limit = mpi.variable("STREAMVM_RANKS_TIMEOUT", "STREAMVM_RANKS_TIMEOUT=2");
        let begin = Instant::now();
        // A rank that comes late, but within the limit, is waited for.
        let (success, text) = mpi.job(3, &limit, &["fault", "slow"]);
        assert!(success && (0..3).all(|rank| text.contains(&format!("rank {rank} of 3: fine"))), "{text}");
        let (success, text) = mpi.job(3, &limit, &["fault", "stop"]);
        assert!(!success && begin.elapsed() < LEARN * 2, "{text}");
        assert!(text.contains("all ranks are ended, because collectives of rank"), "{text}");
        assert!(text.contains("rank 1 did not take part within 2 s"), "{text}");
    }
}

#[test]
fn over_mpi_the_message_of_a_job_that_hangs_names_the_rank_that_is_the_cause() {
    for mpi in Mpi::all() {
        let limit = mpi.variable("STREAMVM_RANKS_TIMEOUT", "STREAMVM_RANKS_TIMEOUT=0.5");
        // A rank whose part is over, and which computes, is not to blame.
        let (_, text) = mpi.job(3, &limit, &["fault", "stop-reduce"]);
        assert!(text.contains("hang: rank 1 did not take part within 0.5 s"), "{text}");
        let (_, text) = mpi.job(3, &limit, &["fault", "skip"]);
        assert!(text.contains("hang: the group cannot be used any longer: rank 1 has given the group up"), "{text}");
        // Nor do ranks wait for ever that wait for each other.
        let (success, text) = mpi.job(3, &limit, &["fault", "roots"]);
        assert!(!success && text.contains("rank 1 `broadcast from 0 f32[1000] over world (ranks"), "{text}");
        assert!(text.contains("`broadcast from 1 f32[1000] over world (ranks"), "{text}");
    }
}

#[test]
fn over_fault_tolerant_mpi_a_rank_that_stops_is_named_and_the_others_go_on() {
    for mpi in Mpi::all().into_iter().filter(|mpi| mpi.open) {
        let (_, text) = stopping(|limit| {
            let limit: Vec<_> = limit.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
            mpi.job_with(3, &["--with-ft", "ulfm"], &["fault", "stop"], &limit)
        });
        for rank in [0, 2] {
            let said = text.lines().any(|line| {
                line.starts_with(&format!("rank {rank} after ")) && line.contains("rank 1 did not take part within 2 s")
            });
            assert!(said && text.contains(&format!("rank {rank} of 3: fine")), "rank {rank}: {text}");
        }
    }
}

#[test]
fn over_fault_tolerant_mpi_the_others_learn_why_a_rank_gives_up() {
    for mpi in Mpi::all().into_iter().filter(|mpi| mpi.open) {
        let (_, text) = mpi.job(3, &["--with-ft", "ulfm"], &["fault", "skip"]);
        for rank in [0, 2] {
            let said = text.lines().any(|line| {
                line.starts_with(&format!("rank {rank} after ")) && line.contains("rank 1 has given the group up")
            });
            assert!(said && text.contains(&format!("rank {rank} of 3: fine")), "rank {rank}: {text}");
        }
        let (_, text) = mpi.job(3, &["--with-ft", "ulfm", "-x", "STREAMVM_RANKS_TIMEOUT=0.5"], &["fault", "roots"]);
        for rank in 0..3 {
            let said = text.lines().any(|line| {
                let names = |root: usize| line.contains(&format!("`broadcast from {root} f32[1000] over world (ranks"));
                line.starts_with(&format!("rank {rank} after ")) && names(0) && names(1)
            });
            assert!(said && text.contains(&format!("rank {rank} of 3: fine")), "rank {rank}: {text}");
        }
    }
}

#[test]
fn over_fault_tolerant_mpi_the_others_go_on() {
    for mpi in Mpi::all().into_iter().filter(|mpi| mpi.open) {
        for fault in ["kill", "kill-during", "panic"] {
            let (_, text) = mpi.job(4, &["--with-ft", "ulfm"], &["fault", fault]);
            for rank in [0, 2, 3] {
                let said = text
                    .lines()
                    .any(|line| line.starts_with(&format!("rank {rank} after ")) && line.contains("rank 1 died"));
                assert!(said && text.contains(&format!("rank {rank} of 4: fine")), "{fault}, rank {rank}: {text}");
            }
        }
    }
}

#[test]
fn without_mpi_the_error_says_what_was_tried() {
    let mut command = Command::new(program());
    command.args(["every"]).env("STREAMVM_RANKS", "mpi").env("STREAMVM_MPI", "/nowhere/libmpi.so.40");
    let (output, text) = ended(started(&mut command));
    assert!(
        !output.status.success() && text.contains("/nowhere/libmpi.so.40") && text.contains("pip install"),
        "{text}"
    );
}
