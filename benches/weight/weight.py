"""What a build from nothing costs: seconds of wall-clock and of processor time, crate by crate.

Builds into a folder of its own, which it empties first; each build begins with nothing. With --check, builds the command alone, and fails when
the command, or the library in it, exceeds its bound of processor time. The library's share is that of the durations of the crates that it
consists of. The same build takes half as long again from hour to hour on shared machines; so processor time is divided by the *pace*: how long
some crates of others take in this build, beside what they take on a calm machine with 2 cores. Nothing else should run on the machine meanwhile.
"""

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Crates of others with the seconds that they take in a build of the command: AMD EPYC, 2 cores, calm. They change with Cargo.lock.
REFERENCE = {
    "clap_builder": 9.9, "rustix": 6.3, "serde_derive": 2.6, "serde_core": 2.6, "serde_json": 2.5, "safetensors": 2.1,
    "clap_derive": 1.7, "miniz_oxide": 1.4, "libc": 1.3, "plotters": 1.2, "memchr": 1.1,
}

# Seconds of processor time that a cold build may take, at a pace of 1.
BOUNDS = {"library": 280, "command": 370}


def build(name, arguments, target, manifest=None):
    """Runs `cargo build`; the seconds of both clocks, and what Cargo says of each crate."""
    cargo = [os.environ.get("CARGO", "cargo"), "build", "--quiet", "--timings", "--target-dir", target, *arguments]
    if manifest:
        cargo += ["--manifest-path", manifest]
    print(f"building: {name}", file=sys.stderr, flush=True)
    used, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(cargo, cwd=ROOT, check=True)
    wall, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    report = (Path(target) / "cargo-timings" / "cargo-timing.html").read_text()
    units = json.loads(re.search(r"const UNIT_DATA = (\[.*?\]);", report, re.DOTALL)[1])
    crates = {}
    for unit in units:
        crates[unit["name"]] = crates.get(unit["name"], 0) + unit["duration"]
    return wall, processor, crates


def share_of_library(wall, processor, crates):
    """What the library takes of a build of the command."""
    tree = ["tree", "-p", "streamvm", "--edges", "normal,build", "--prefix", "none", "--format", "{p}"]
    listed = subprocess.run([os.environ.get("CARGO", "cargo"), *tree], cwd=ROOT, check=True, capture_output=True, text=True)
    names = {line.split()[0] for line in listed.stdout.splitlines() if line}
    share = sum(seconds for name, seconds in crates.items() if name in names) / sum(crates.values())
    return wall * share, processor * share, None


def lines(paths):
    """Lines of Rust: of source, and of tests, by the names that this project gives to files of tests."""
    source = tests = 0
    for path in paths:
        count = path.read_text().count("\n")
        parts = path.relative_to(ROOT).parts
        if parts[0] in ("tests", "benches", "fuzz") or "tests" in parts or re.search(r"tests?\.rs$", path.name):
            tests += count
        else:
            source += count
    return source, tests


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--check", action="store_true", help="the command, and the library in it, beside their bounds")
    arguments.add_argument("--target", default=str(ROOT / "target" / "weight"), help="the folder to build in, which is emptied")
    options = arguments.parse_args()
    options.target = str(Path(options.target).resolve())
    shutil.rmtree(options.target, ignore_errors=True)

    rows = {}
    if not options.check:
        rows["library"] = build("the library", ["--release", "-p", "streamvm"], options.target)
        shutil.rmtree(options.target)
    command = build("the command", ["--release", "-p", "streamvm-cli"], options.target)
    if options.check:
        rows["library"] = share_of_library(*command)
    rows["command"] = command
    if not options.check:
        user = Path(options.target) / "user"
        (user / "src").mkdir(parents=True)
        (user / "src" / "main.rs").write_text("fn main() {}\n")
        (user / "Cargo.toml").write_text(
            '[package]\nname = "user"\nedition = "2024"\n\n[workspace]\n\n'
            f'[dependencies]\nstreamvm = {{ path = "{ROOT / "vm"}" }}\n'
        )
        shutil.copy(ROOT / "Cargo.lock", user / "Cargo.lock")
        rows["a user's crate, dev"] = build("a user's crate", [], options.target, user / "Cargo.toml")
        rows["a user's crate, release"] = build("a user's crate, release", ["--release"], options.target, user / "Cargo.toml")

    pace = sum(command[2][name] for name in REFERENCE) / sum(REFERENCE.values())
    print(f"{'build from nothing':32} {'seconds':>8} {'processor':>10} {'at pace 1':>10} {'bound':>6}")
    for name, (wall, processor, _) in rows.items():
        print(f"{name:32} {wall:8.0f} {processor:10.0f} {processor / pace:10.0f} {BOUNDS.get(name, ''):>6}")
    print(f"{'pace of this machine':32} {pace:8.2f}")
    if not options.check:
        crates = command[2]
        ours = sum(seconds for name, seconds in crates.items() if name.startswith("streamvm"))
        print(f"\n{'crates of the command':32} {'seconds':>8}   (they share the cores, so these add up to more)")
        for name, seconds in sorted(crates.items(), key=lambda it: -it[1])[:20]:
            print(f"{name:32} {seconds:8.1f}")
        print(f"{'of this project':32} {ours:8.1f}")
        print(f"{'of others':32} {sum(crates.values()) - ours:8.1f}")
        tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
        files = [ROOT / name for name in tracked.stdout.split("\0") if name]
        source, tests = lines([path for path in files if path.suffix == ".rs"])
        ptx = sum(path.stat().st_size for path in files if path.suffix == ".ptx")
        pages = [path for path in files if path.suffix == ".md" and path.relative_to(ROOT).parts[0] == "docs"]
        decisions = [path for path in pages if "adr" in path.parts]
        size = lambda paths: sum(path.stat().st_size for path in paths) / 1000
        print(f"\n{'lines of source':32} {source:8}")
        print(f"{'lines of tests and benches':32} {tests:8}")
        print(f"{'PTX, MB':32} {ptx / 1e6:8.1f}")
        print(f"{'ARCHITECTURE.md, kB':32} {(ROOT / 'ARCHITECTURE.md').stat().st_size / 1000:8.0f}")
        print(f"{'docs without decisions, kB':32} {size(pages) - size(decisions):8.0f}")
        print(f"{'decisions':32} {len(decisions):8}")
    heavy = [name for name, (_, processor, _) in rows.items() if processor / pace > BOUNDS.get(name, processor / pace)]
    if heavy:
        sys.exit(f"{' and '.join(heavy)}: more processor time than the bound; `make weight` tells which crates take it")


if __name__ == "__main__":
    main()
