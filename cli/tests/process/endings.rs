//! How a run ends where a limit is met or something is asked for that there is not.

use std::fs;

use tempfile::TempDir;

use super::hostile::within;
use crate::common::{command, run_text, streamvm};

#[test]
fn more_streams_than_an_engine_has_are_found_before_it_runs() {
    // 16 devices, 64 lanes of each: the last one is the 1,024th stream. What reads values back needs one of cpu:0.
    let mut text = String::new();
    for device in 1..17 {
        for lane in 0..64 {
            text.push_str(&format!("let a = fill f32 2 value 1 on sim:{device} on lane {lane}\n"));
        }
    }
    let fine = run_text(&text, &["check"]);
    assert_eq!(fine.code, 0, "{}", fine.stderr);
    text.push_str("print \"one more\"\nlet b = fill f32 2 value 1 on cpu:0\nlet c = fill f32 2 value 1 on sim:0\n");
    for args in [["check", "--sim-devices", "17"], ["run", "--sim-devices", "17"]] {
        let output = run_text(&text, &args);
        assert_eq!((output.code, output.stdout.as_str()), (2, ""), "{}", output.stderr);
        let says = "script.svm:1026:1: error: this is the first statement on compute@cpu:0:0, and an engine has at most 1024 streams";
        assert!(output.stderr.starts_with(says), "{}", output.stderr);
        assert_eq!(output.stderr.matches("error").count(), 1, "{}", output.stderr);
    }
    // A copy from the host to a GPU takes a stream of each.
    let copies: String = (0..17)
        .flat_map(|device| (0..64).map(move |lane| format!("let b = copy x to cuda:{device} on lane {lane}\n")))
        .collect();
    let output = run_text(format!("let x = empty f32 2 on host\n{copies}"), &["check"]);
    // One stream for the fill, 64 of the CPU that all GPUs share, and 64 of each GPU: the 960th copy needs the 1,025th.
    assert!(output.code == 2 && output.stderr.starts_with("script.svm:961:1: error: "), "{}", output.stderr);
}

/// A thread with a stack of its own runs the script, so the stack that the shell allows may be small.
#[cfg(unix)]
#[test]
fn a_script_that_nests_deep_runs_with_a_small_stack() {
    let folder = TempDir::new().unwrap();
    let calls = format!("print {}x{}\n", "neg (".repeat(60), ")".repeat(60));
    let blocks = format!("{}print x\n{}", "if yes {\n".repeat(60), "}\n".repeat(60));
    let x = "let yes = fill bool value true on cpu:0\nlet x = fill f32 value 1 on cpu:0\n";
    for (name, text) in [("calls.svm", &calls), ("blocks.svm", &blocks)] {
        fs::write(folder.path().join(name), format!("{x}{text}")).unwrap();
        for action in [&["run"][..], &["run", "--compiled"], &["check"], &["check", "--races"]] {
            let output = std::process::Command::new("sh")
                .args(["-c", "ulimit -s 128; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_streamvm")])
                .args(action)
                .arg(name)
                .current_dir(folder.path())
                .env_remove("STREAMVM_ENGINE")
                .output()
                .unwrap();
            let err = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(0), "{name} {action:?}: {err}");
        }
    }
}

#[test]
fn the_variable_names_the_engine_of_a_run_that_does_not() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("a.svm"), "print \"ran\"\n").unwrap();
    let run = |variable: &str, args: &[&str]| {
        let output = command(folder.path()).env("STREAMVM_ENGINE", variable).args(args).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (variable, args, mode) in [
        ("inline", vec!["run", "-v", "a.svm"], "mode Inline"),
        ("shared", vec!["run", "-v", "a.svm"], "mode Threaded"),
        ("per-device", vec!["run", "-v", "a.svm"], "mode Threaded"),
        ("", vec!["run", "-v", "a.svm"], "mode Threaded"),
        ("inline", vec!["run", "-v", "--mode", "threaded", "a.svm"], "mode Threaded"),
        ("inline", vec!["run", "-v", "--mode", "sim:1", "a.svm"], "mode Simulated"),
        // Who says which engine is not asked again.
        ("naive", vec!["run", "-v", "--mode", "inline", "a.svm"], "mode Inline"),
    ] {
        let (code, err) = run(variable, &args);
        assert!(code == Some(0) && err.contains(mode), "{variable} {args:?}: {err}");
    }
    for args in [vec!["run", "a.svm"], vec!["check", "a.svm"], vec!["devices"]] {
        let (code, err) = run("naive", &args);
        assert_eq!(code, Some(2), "{args:?}: {err}");
        assert!(
            err.starts_with("error: STREAMVM_ENGINE is \"naive\"") && err.contains("inline, shared or per-device"),
            "{err}"
        );
    }
}

#[test]
fn a_wrong_number_of_kernel_threads_is_refused_by_commands_that_build_an_engine() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("a.svm"), "print \"ran\"\n").unwrap();
    let run = |value: &str, args: &[&str]| {
        let output = command(folder.path()).env("STREAMVM_CPU_THREADS", value).args(args).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let commands: [&[&str]; 4] =
        [&["run", "a.svm"], &["run", "--mode", "inline", "a.svm"], &["check", "a.svm"], &["devices"]];
    for args in commands {
        let (code, err) = run("many", args);
        assert_eq!(code, Some(2), "{args:?}: {err}");
        let expected = "error: STREAMVM_CPU_THREADS is \"many\", which is no number of threads; set it to 1 or more";
        assert!(err.starts_with(expected), "{args:?}: {err}");
        for right in ["2", ""] {
            let (code, err) = run(right, args);
            assert_eq!(code, Some(0), "{args:?}: {err}");
        }
    }
    // The compiler of programs starts no engine, so it does not look.
    let (code, err) = run("many", &["compile", "a.svm"]);
    assert!(!err.contains("STREAMVM_CPU_THREADS"), "{code:?}: {err}");
}

#[test]
fn nan_equals_nan_by_a_tolerance_alone() {
    let text = "let a = fill f32 2 value nan on host\nexpect a ~= a tol 0\nprint \"close\"\nexpect a == a\n";
    let output = run_text(text, &["run"]);
    assert_eq!((output.code, output.stdout.as_str()), (1, "close\n"), "{}", output.stderr);
    assert!(output.stderr.starts_with("script.svm:4:1: error: not as expected: element [0] is nan, expected nan"));
}

#[test]
fn a_long_repeat_is_cut_where_races_are_looked_for() {
    let text = "let a = fill f32 8 value 1 on cpu:0\nprint \"x\"\nrepeat 1000000000 {\n  let a = mul a 0.5\n  repeat 3 { }\n}\n\
                expect a == fill f32 8 value 0 on cpu:0\nrepeat 1000000000 {\n  print \"x\"\n}\n";
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("script.svm"), text).unwrap();
    let output = within(folder.path(), 60, 8 << 10, &["check", "--races", "script.svm"]);
    assert_eq!(output.code, 0, "{}", output.stderr);
    let note = "script.svm:3:1: note: 9999 of 1000000000 rounds ran, as the run has more than 10000 instructions\n";
    assert!(output.stderr.ends_with(note), "{}", output.stderr);
    assert!(output.stdout.contains("\nraces: none in 100"), "{}", output.stdout.lines().last().unwrap_or_default());
    // A whole run is judged by its values, as ever.
    let output = run_text("expect fill f32 value 1 on host == fill f32 value 2 on host\n", &["check", "--races"]);
    assert_eq!(output.code, 1, "{}", output.stderr);
}

#[test]
fn bools_are_looked_at_before_a_run() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    let dict = format!("{:<117}\n", "{'descr': '|b1', 'fortran_order': False, 'shape': (100000,), }");
    let mut npy = [b"\x93NUMPY\x01\x00\x76\x00".as_slice(), dict.as_bytes(), &vec![1; 100_000]].concat();
    let header = r#"{"x":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}}"#;
    let safe = [(header.len() as u64).to_le_bytes().as_slice(), header.as_bytes(), &[0, 1, 255]].concat();
    fs::write(at("good.npy"), &npy).unwrap();
    npy[128 + 70_000] = 2;
    fs::write(at("bad.npy"), &npy).unwrap();
    fs::write(at("bad.safetensors"), safe).unwrap();
    fs::write(
        at("a.svm"),
        "print \"never\"\nlet g = load \"good.npy\"\nlet a = load \"bad.npy\"\nlet b = load \"bad.safetensors\"\n",
    )
    .unwrap();
    for action in ["check", "run"] {
        let output = streamvm(folder.path(), [action, "a.svm"]);
        assert_eq!((output.code, output.stdout.as_str()), (2, ""), "{}", output.stderr);
        for says in [
            "a.svm:3:14: error: bad.npy: element 70000 is a bool that is neither 0 nor 1",
            "a.svm:4:14: error: bad.safetensors: element 2 is a bool that is neither 0 nor 1",
        ] {
            assert!(output.stderr.contains(says), "{}", output.stderr);
        }
        assert!(!output.stderr.contains("good.npy"), "{}", output.stderr);
    }
}
