"""A headless Chromium, driven over the WebDriver protocol of chromedriver with the standard library alone."""

import json
import subprocess
import time
import urllib.error
import urllib.request

# The codes of keys in the protocol.
KEYS = {"Enter": "\ue007", "Escape": "\ue00c", "Left": "\ue012", "Up": "\ue013", "Right": "\ue014", "Down": "\ue015"}


class Browser:
    def __init__(self, dark=False):
        # Port 0: any that is free, which the driver tells.
        self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in self.driver.stdout:
            if "started successfully on port" in line:
                self.address = "http://127.0.0.1:" + line.split("port")[1].strip(" .\n")
                break
        else:
            raise RuntimeError("chromedriver does not start")
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1400,1000"]
        arguments += ["--blink-settings=preferredColorScheme=0"] if dark else []
        wanted = {"goog:chromeOptions": {"args": arguments}, "goog:loggingPrefs": {"browser": "ALL"}}
        self.session = ""
        self.session = "/session/" + self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self._call("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait()

    def _call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + self.session + path, method=method, data=data, headers={"Content-Type": "application/json"})
        try:
            return json.load(urllib.request.urlopen(request, timeout=120))["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(error.read().decode()[:1000]) from None

    def open(self, address):
        self._call("POST", "/url", {"url": address})

    def back(self):
        self._call("POST", "/back", {})

    def run(self, script, *arguments):
        """Runs JavaScript, and returns what it returns."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def run_later(self, script, *arguments):
        """As `run`, of what the script gives to its last argument, a function."""
        return self._call("POST", "/execute/async", {"script": script, "args": list(arguments)})

    def until(self, script, seconds=30):
        """Waits until an expression of JavaScript is true, and returns it."""
        end = time.monotonic() + seconds
        while not (value := self.run(f"return {script}")):
            assert time.monotonic() < end, f"after {seconds} s: {script}"
            time.sleep(0.01)
        return value

    def keys(self, *keys):
        for key in keys:
            code = KEYS.get(key, key)
            actions = [{"type": "keyDown", "value": code}, {"type": "keyUp", "value": code}]
            self._call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def click(self, selector, place=0):
        self.run("document.querySelectorAll(arguments[0])[arguments[1]].click()", selector, place)

    def messages(self):
        """What the console has said since the last call."""
        return [entry["message"] for entry in self._call("POST", "/se/log", {"type": "browser"})]

    def picture(self):
        """A picture of the window, as base64 of a PNG."""
        return self._call("GET", "/screenshot")
