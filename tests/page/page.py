"""Tests of the page of `streamvm inspect` in a real browser: python3 page.py COMMAND [--pictures FOLDER].

Needs chromium and chromedriver, and nothing beyond Python's standard library.
"""

import argparse
import base64
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

from browser import Browser

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Lane 1 waits for lane 0. Names of scopes are anything.
SCRIPT = """let a = fill f32 64 64 value 0.5 on cpu:0
let b = matmul a a
let c = tanh b on lane 1
let d = exp c on lane 1
scope "<img src=x onerror=alert(1)></script>" {
  let e = neg d on lane 1
}
print e
"""

# Of the card that is shown: what stands at an entry.
ENTRY = """const terms = [...document.querySelectorAll('#card dt')], term = terms.find((it) => it.textContent === arguments[0]);
return term.nextElementSibling.textContent;"""


def run(command, *arguments, code=0):
    done = subprocess.run([command, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == code, f"{arguments}: {done.returncode}: {done.stderr}"
    return done.stdout


def page(command, folder, script, name):
    """The address of the page of a traced run, and its report."""
    trace = folder / f"{name}.pftrace"
    run(command, "run", "--trace", trace, script)
    assert run(command, "inspect", trace) == f"{trace}.html: open it in a browser\n"
    return f"file://{trace}.html", json.loads(run(command, "report", "--json", trace))


def ready(browser, address):
    browser.open("about:blank")
    browser.open(address)
    browser.until("document.documentElement.dataset.ready === 'yes'")


def title(browser):
    return browser.run("return document.querySelector('#card h3')?.textContent ?? ''")


def shows_the_report(browser, address, report):
    ready(browser, address)
    streams = browser.run("return [...document.querySelectorAll('.bar')].map((bar) => bar.title)")
    assert len(streams) == len(report["streams"]), streams
    for told, stream in zip(streams, report["streams"]):
        busy = 100 * stream["busy_ns"] / report["total_ns"]
        assert f"busy {busy:.0f} %" in told or busy < 0.1 or f"busy {busy:.1f} %" in told, (told, stream)
    text = browser.run("return document.getElementById('report').innerText")
    assert "would save" in text and "How each stream spent the time" in text
    for group in report["critical_path"]["groups"]:
        assert f"{group['of']['name']} at {group['of']['line']} on {group['of']['stream']}" in text, group
    assert len(browser.run("return [...document.querySelectorAll('#idle + table tbody tr')].map((it) => it.innerText)")) == len(report["idle"])
    curves = browser.run("return [...document.querySelectorAll('.curve')].map((it) => [it.getAttribute('aria-label'), it.getBoundingClientRect().width])")
    assert len(curves) == len(report["memory"]) > 0, curves
    for pool, (told, width) in zip(report["memory"], curves):
        assert told.startswith(f"{pool['pool']} over time, up to ") and width > 100, (told, width)
        for owner in pool["owners"]:
            assert f"{owner['of']['name']} at {owner['of']['line']}" in text, owner
    # Each instruction: who waits for another one is among those that waited for that one, and began after its end.
    wrong = browser.run("""const wrong = []; let waits = 0;
        for (let i = 0; i < columns.name.length; i++) for (const source of sourcesOf(i)) {
          waits += 1;
          if (!waitersOf(source).includes(i) || columns.end[source] > columns.begin[i] || source >= i) wrong.push([i, source]);
        }
        return [waits, wrong];""")
    assert wrong[0] > 10 and wrong[1] == [], wrong
    assert browser.run("return columns.name.length") == report["instructions"]


def leads_from_card_to_card(browser, address):
    ready(browser, address)
    # By a line of the report, a result, and links between cards.
    browser.run("document.getElementById('search').value = 'tanh'; document.getElementById('search').dispatchEvent(new Event('input'))")
    assert browser.until("document.getElementById('count').textContent") == "1 found"
    browser.click("#card tbody a")
    browser.until("document.querySelector('#card h3')?.textContent === 'tanh'")
    assert browser.run(ENTRY, "waited for") == "matmul on compute@cpu:0:0 2"
    assert browser.run(ENTRY, "after") == "exp on compute@cpu:0:1 2"
    assert browser.run(ENTRY, "line").endswith("/s.svm:3:1"), browser.run(ENTRY, "line")
    browser.run("[...document.querySelectorAll('#card a')].find((it) => it.textContent === 'matmul').click()")
    browser.until("document.querySelector('#card h3')?.textContent === 'matmul'")
    assert browser.run(ENTRY, "waited for it").startswith("tanh on compute@cpu:0:1 1")
    browser.back()
    browser.until("document.querySelector('#card h3')?.textContent === 'tanh'")
    # By keys alone.
    browser.keys("Escape")
    browser.until("document.querySelector('#card h3') === null")
    browser.keys("/", *"exp", "Enter")
    browser.until("document.querySelector('#card h3')?.textContent === 'exp'")
    for key, name in [("Left", "tanh"), ("Up", "matmul"), ("Down", "tanh"), ("Right", "exp")]:
        browser.keys(key)
        browser.until(f"document.querySelector('#card h3')?.textContent === '{name}'")
    # An address that leads nowhere.
    for wrong in ["#i=99999999", "#i=-1", "#q=%E0%A4%A", "#x"]:
        browser.open(f"{address}#i=0")
        browser.until("document.querySelector('#card h3') !== null")
        browser.open(address + wrong)
        browser.until("document.querySelector('#card h3') === null")
    # A link finds exactly what it names: not s.svm:1 where it says s.svm:11.
    found = browser.run("search('\"compute@cpu:0:1\"'); return results.map((i) => streams[columns.stream[i]])")
    assert len(found) == 3 and set(found) == {"compute@cpu:0:1"}, found


def runs_nothing_of_a_trace(browser, address):
    ready(browser, f"{address}#q=onerror")
    assert browser.until("document.getElementById('count').textContent") == "1 found"
    assert "<img src=x onerror=alert(1)></script>" in browser.run("return document.getElementById('card').innerText")
    assert browser.run("return document.querySelectorAll('img').length") == 0


def is_dark_and_light(browser, is_dark, address, pictures):
    ready(browser, address)
    # One that has waited, and that others waited for.
    browser.run("location.hash = `i=${columns.name.findIndex((_, i) => i > 20 && sourcesOf(i).length > 0 && waitersOf(i).length > 0)}`; go()")
    background = lambda: sum(int(it) for it in browser.run("return getComputedStyle(document.body).backgroundColor").strip("rgb()").split(","))
    for place in range(2):
        assert (background() < 200) == (is_dark != bool(place)), background()
        if pictures and not place:
            name = pictures / f"observe-inspect{'-dark' if is_dark else ''}.png"
            name.write_bytes(base64.b64decode(browser.picture()))
        browser.click("#theme")
    # Nothing sticks out of the window.
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")


def is_quick_with_a_million(command, folder, browser):
    script = folder / "million.svm"
    script.write_text("let x = fill f32 64 value 1 on cpu:0\nlet y = fill f32 64 value 0 on cpu:0\nrepeat 500000 {\n  add y x into y\n  let z = mul y 2 on lane 1\n}\n")
    address, report = page(command, folder, script, "million")
    assert report["instructions"] == 1_000_002
    ready(browser, address)
    opened = browser.run("return performance.now()")
    for what, call in [("a click", "location.hash = 'i=500000'; go()"), ("a search", "search('mul')")]:
        took = browser.run(f"const begun = performance.now(); {call}; document.body.offsetHeight; return performance.now() - begun")
        print(f"page of 1,000,002 instructions: {what} takes {took:.0f} ms")
    print(f"page of 1,000,002 instructions: opened in {opened / 1000:.2f} s")
    assert browser.run("return document.getElementById('count').textContent") == "500,000 found"


def shows_what_had_not_passed(command, folder, browser):
    """Of a flight recorder that a signal has ended."""
    script = folder / "endless.svm"
    script.write_text('let a = fill f32 64 64 value 0.5 on cpu:0\nprint "started"\nrepeat 1000000000 {\n  let a = tanh (matmul a a)\n  print sum a\n}\n')
    trace = folder / "endless.pftrace"
    run = subprocess.Popen([command, "run", "--trace", trace, "--trace-last", "10", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    run.stdout.readline()
    run.terminate()
    run.communicate()
    subprocess.run([command, "inspect", trace], check=True, stdout=subprocess.DEVNULL)
    pending = json.loads(subprocess.run([command, "report", "--json", trace], check=True, capture_output=True).stdout)["pending"]
    ready(browser, f"file://{trace}.html")
    text = browser.run("return document.getElementById('report').innerText")
    assert ("Not passed when the trace was written" in text) == bool(pending), (pending, text)
    assert all(it["of"]["name"] in text and it["state"] in text for it in pending), (pending, text)


def serves(command, folder, browser, port):
    trace = folder / "s.pftrace"
    server = subprocess.Popen([command, "inspect", trace, f"--serve={port}"], stdout=subprocess.PIPE, text=True)
    try:
        address = server.stdout.readline().split()[0]
        ready(browser, address)
        get = lambda path, **headers: urllib.request.urlopen(urllib.request.Request(address + path, headers=headers))
        assert get("trace").read() == trace.read_bytes()
        assert get("trace").headers["Access-Control-Allow-Origin"] == "https://ui.perfetto.dev"
        # Perfetto fetches from one port alone.
        browser.run("location.hash = 'i=1'; go()")
        links = browser.run("return [...document.querySelectorAll('#card a')].map((it) => it.href).filter((it) => it.startsWith('https://ui.perfetto.dev/'))")
        assert len(links) == (port == 9001) and all("127.0.0.1%3A9001%2Ftrace&visStart=" in link for link in links), links
        for path, headers, status in [("other", {}, 404), ("../../etc/passwd", {}, 404), ("trace", {"Host": "evil.example"}, 403)]:
            try:
                get(path, **headers)
                raise AssertionError(f"{path} is served")
            except urllib.error.HTTPError as error:
                assert error.code == status, (path, error)
        # Connections that say nothing do not hold up the others.
        port = int(address.rsplit(":", 1)[1].strip("/"))
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        assert get("trace").read() == trace.read_bytes()
        for connection in silent:
            connection.close()
    finally:
        server.terminate()
        assert server.wait() == -15


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("command")
    arguments.add_argument("--pictures", type=pathlib.Path, help="a folder for pictures of the page")
    arguments = arguments.parse_args()
    command = str(pathlib.Path(arguments.command).resolve())
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "s.svm").write_text(SCRIPT)
        overlap, report = page(command, folder, "examples/overlap.svm", "overlap")
        small, _ = page(command, folder, folder / "s.svm", "s")
        for is_dark in [False, True]:
            with Browser(is_dark) as browser:
                is_dark_and_light(browser, is_dark, overlap, arguments.pictures)
                if not is_dark:
                    shows_the_report(browser, overlap, report)
                    leads_from_card_to_card(browser, small)
                    runs_nothing_of_a_trace(browser, small)
                    shows_what_had_not_passed(command, folder, browser)
                    serves(command, folder, browser, 0)
                    serves(command, folder, browser, 9001)
                    is_quick_with_a_million(command, folder, browser)
                assert browser.messages() == [], "the console says something"
    print("the page: ok")


if __name__ == "__main__":
    sys.exit(main())
