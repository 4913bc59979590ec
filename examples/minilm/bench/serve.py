#!/usr/bin/env python3
"""`minilm serve` beside a PyTorch server of the same model, under wrk: a table, and a JSON file.

    serve.py MINILM TOOLS MODEL_FOLDER OUT.json [--runs N] [--seconds S] [--connections N,N,...] [--batch N] [--wait MS] [--characters N]

TOOLS is the folder of build.sh. First the embeddings of both servers are compared with references. Then, for each number of connections, both
are measured in turn, each in N runs of S seconds; the table has the medians over the runs. Requests have one text each, of those of
data/sentences.json that have at most N characters (200): with more, of mixed lengths. A load generator and a server share the machine, as in any test on one. Last comes an overload of `minilm serve`: 64
connections and a queue of 16.
"""

import argparse
import array
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import urllib.request

HERE = pathlib.Path(__file__).parent
DATA = HERE.parent / "data"

class Server:
    """A server that runs until the end of the block."""

    def __init__(self, name, command):
        self.name = name
        self.running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line = self.running.stdout.readline()
        if not line.startswith("listening at "):
            sys.exit(f"{name} did not start: {line or 'it has ended'}")
        self.url = line.split()[2].rstrip(",") + "/embed"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.running.terminate()
        self.running.wait(60)

    def embed(self, texts):
        body = json.dumps({"texts": texts}).encode()
        with urllib.request.urlopen(urllib.request.Request(self.url, body)) as answer:
            return json.load(answer)["embeddings"]


def load(wrk, url, connections, seconds, bodies):
    command = [wrk, "--threads", "1", "--connections", str(connections), "--duration", f"{seconds}s", "--timeout", "30s"]
    command += ["--script", HERE / "embed.lua", url, "--", bodies]
    # Where build.sh has unpacked what wrk needs.
    libraries = ":".join(map(str, pathlib.Path(wrk).parent.parent.glob("lib/*-linux-*")))
    environment = os.environ | {"LD_LIBRARY_PATH": libraries}
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout
    return json.loads(said.splitlines()[-1])


def references():
    """data/embeddings.npy, without NumPy."""
    bytes = (DATA / "embeddings.npy").read_bytes()
    begin = 10 + int.from_bytes(bytes[8:10], "little")
    numbers = array.array("f", bytes[begin:])
    return [numbers[at : at + 384] for at in range(0, len(numbers), 384)]


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("minilm")
    arguments.add_argument("tools", type=pathlib.Path)
    arguments.add_argument("model")
    arguments.add_argument("out", type=pathlib.Path)
    arguments.add_argument("--runs", type=int, default=5)
    arguments.add_argument("--seconds", type=int, default=10)
    arguments.add_argument("--connections", default="1,8,32")
    arguments.add_argument("--batch", default="32")
    arguments.add_argument("--wait", default="2")
    arguments.add_argument("--characters", type=int, default=200)
    options = arguments.parse_args()

    wrk = shutil.which("wrk") or options.tools / "root/usr/bin/wrk"
    texts = json.loads((DATA / "sentences.json").read_text())
    # A batch of the server of PyTorch is as long as its longest text.
    short = [text for text in texts if len(text) <= options.characters]
    bodies = options.tools / "bodies"
    bodies.write_text("".join(json.dumps({"texts": [text]}) + "\n" for text in short))
    ours = [options.minilm, "serve", "--listen", "127.0.0.1:0", "--model", options.model]
    ours += ["--batch", options.batch, "--wait", options.wait]
    torch = [options.tools / "venv/bin/python", HERE / "torch_server.py", options.model, options.batch, options.wait]

    rows = []
    with Server("streamvm", ours) as one, Server("PyTorch", torch) as other:
        servers = [one, other]
        for server in servers:
            pairs = zip(server.embed(texts), references(), strict=True)
            worst = max(abs(x - y) for row, expected in pairs for x, y in zip(row, expected, strict=True))
            print(f"{server.name}: embeddings at most {worst:.1e} off the references")
            if not worst <= 1e-5:
                sys.exit(f"{server.name} computes something else")
        print(f"{'server':10} {'connections':>11} {'requests/s':>11} {'p50 ms':>9} {'p99 ms':>9} {'refused':>8} {'broken':>7}")
        for connections in map(int, options.connections.split(",")):
            runs = {server: [] for server in servers}
            for server in servers:
                load(wrk, server.url, connections, 1, bodies)
            for _ in range(options.runs):
                for server in servers:
                    runs[server].append(load(wrk, server.url, connections, options.seconds, bodies))
            for server in servers:
                found = runs[server]
                row = {"server": server.name, "connections": connections}
                row["requests_per_second"] = statistics.median(run["requests"] / run["seconds"] for run in found)
                row |= {name: statistics.median(run[name] for run in found) for name in ["p50_ms", "p99_ms"]}
                row |= {name: sum(run[name] for run in found) for name in ["refused", "broken"]}
                rows.append(row | {"runs": found})
                print(
                    f"{server.name:10} {connections:11} {row['requests_per_second']:11.1f} {row['p50_ms']:9.1f} "
                    f"{row['p99_ms']:9.1f} {row['refused']:8} {row['broken']:7}"
                )
    with Server("streamvm", [*ours, "--queue", "16"]) as server:
        found = load(wrk, server.url, 64, options.seconds, bodies)
        answered = found["requests"] - found["refused"]
        print(f"overload: {answered} requests answered, {found['refused']} refused, {found['broken']} broken")
        if found["refused"] == 0 or found["broken"] != 0:
            sys.exit("an overload is refused, and breaks nothing")
        rows.append({"server": server.name, "overload": found})
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(rows, indent=1) + "\n")


main()
