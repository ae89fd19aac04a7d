"""Headless Chromium, and what every page in it is held to: nothing on the console, nothing asked of another host, nothing that the content
security policy had to stop. Debian's chromium and chromium-driver, of one version; driven by what requirements.txt pins."""

import base64
import json
import os
import shutil
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

PATIENCE = 30.0  # seconds
TABS = 300  # the most elements that the focus goes through before it is given up
LONGEST = 6000  # pixels of a page that a picture shows

FLAGS = [
    "--headless=new", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--force-prefers-reduced-motion", "--window-size=1280,900",
    # Whatever a page asks of others fails at once; that it asked is told.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
]  # fmt: skip

ON_EACH_PAGE = "addEventListener('securitypolicyviolation', e => console.error('policy: ' + e.violatedDirective + ' ' + e.blockedURI))"


class Browser:
    """Pages of one service, each in a window of its own."""

    def __init__(self, base):
        self.base = base.rstrip("/")
        options = webdriver.ChromeOptions()
        options.binary_location = program("chromium")
        for flag in FLAGS + (["--no-sandbox"] if os.geteuid() == 0 else []):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(program("chromedriver")))
        self.problems, self.requests = [], 0
        self.prepare()

    def prepare(self):
        """For the window that is in front: a page is told that it is looked at, whichever it is."""
        self.driver.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})
        self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": ON_EACH_PAGE})

    def window(self, path):
        """Opens a page in a new window, which is in front then."""
        self.driver.switch_to.new_window("window")
        self.prepare()
        self.open(path)
        return self.driver.current_window_handle

    def front(self, window):
        self.driver.switch_to.window(window)

    def open(self, path):
        self.driver.get(self.base + path)
        self.listen()

    def run(self, script, *values):
        return self.driver.execute_script(script, *values)

    def find(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def wait(self, what, question, seconds=PATIENCE):
        """Asks until the answer is something."""
        end = time.monotonic() + seconds
        while not (answer := question()):
            if time.monotonic() > end:
                self.listen()
                raise AssertionError(f"not within {seconds:.0f} s: {what} (at {self.driver.current_url}) {self.problems}")
            time.sleep(0.05)
        return answer

    def wait_for(self, selector, seconds=PATIENCE):
        self.wait(selector, lambda: self.run("return !!document.querySelector(arguments[0])", selector), seconds)

    def click(self, selector):
        """Clicks where a person would. A part that is renewed at that moment is clicked again."""

        def attempt():
            try:
                self.find(selector).click()
                return True
            except StaleElementReferenceException:
                return False

        self.wait_for(selector)
        self.wait(f"a click on {selector}", attempt)

    def leave(self, act):
        """Does what leads to another page, and waits for that."""
        self.run("window.isLeft = true")
        act()
        self.wait("another page", lambda: self.run("return !window.isLeft && document.readyState === 'complete'"))
        self.listen()

    def key(self, key):
        ActionChains(self.driver).send_keys(key).perform()

    def tab_to(self, selector):
        """Moves the focus by the keyboard to an element, where it has to be seen."""
        for _ in range(TABS):
            if self.run("return document.activeElement.matches(arguments[0])", selector):
                style = "const s = getComputedStyle(document.activeElement); return s.outlineStyle !== 'none' || s.boxShadow !== 'none'"
                assert self.run(style), f"the focus on {selector} can't be seen"
                return
            self.key(Keys.TAB)
        raise AssertionError(f"{TABS} times the tab key don't lead to {selector}")

    def show(self, width, scheme):
        """Makes the page as wide, and prefers light or dark."""
        metrics = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": "reduce"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def as_before(self):
        self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})

    def picture(self, path: Path):
        """The page from top to bottom."""
        width, height = self.run("const e = document.documentElement; return [e.clientWidth, e.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": width, "height": min(height, LONGEST), "scale": 1}
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        path.write_bytes(base64.b64decode(shot["data"]))

    def listen(self):
        """Takes in what the browser logged."""
        for entry in self.driver.get_log("browser"):
            if entry["level"] == "SEVERE" or "policy" in entry["message"].lower():
                self.problems.append(f"console: {entry['message']}")
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self.requests += 1
                url = urlsplit(message["params"]["request"]["url"])
                is_own = url.scheme in ("data", "blob", "about", "chrome") or url.netloc == urlsplit(self.base).netloc
                if not is_own:
                    self.problems.append(f"asked of another host: {url.geturl()}")

    def close(self):
        self.listen()
        self.driver.quit()
        assert self.requests, "no request was seen: the browser's log can't be trusted"
        assert not self.problems, "\n".join(["the pages are not clean:", *self.problems])


def program(name):
    path = shutil.which(name)
    if path is None:
        sys.exit(f"error: {name} is needed (on Debian: apt-get install chromium chromium-driver)")
    return path
