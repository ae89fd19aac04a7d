"""The dashboard as a person uses it, in a real Chromium, against a running service.

    python dashboard.py URL --latent FILE --module FILE --shots DIR [--token-file FILE] [--model NAME] [--policy NAME] [--route NAME]
        [--steps N] [--canary-jobs N]

Sends a job by the form and sees its tiles fill in; sees its picture and its decision; swaps a policy by a file and sees it in force; rolls
it back by the keyboard alone; pauses and resumes it; sends jobs until the canary of a route is promoted (no --route: leaves that out). What
changes is seen in a page that is not loaded again. Starts nothing; the service needs the model, with a policy whose tiles are small enough
for --steps of them to be seen one after the other, the policy, with another module in force than FILE, and the route's canary. Held
throughout: browser.py's rules, and no page wider than a screen of 390 pixels. Pictures of all pages, light and dark, go to DIR. Exits 1
where something is not as it should be.
"""

import argparse
import hashlib
import sys
import time
import traceback
from pathlib import Path

from browser import Browser
from selenium.webdriver import Keys
from selenium.webdriver.support.ui import Select

WIDTHS = (1280, 390)
SCHEMES = ("light", "dark")
WORK = 120.0  # seconds that a job may take

# Notes whenever a job's tiles change: how many are done, of how many. Does so from inside, since updates may be quicker than questions.
WATCH = """
window.seen = [];
const look = () => {
    const cards = [...document.querySelectorAll('#running article.job')];
    const card = cards.find((card) => card.querySelector('.tag')?.textContent === arguments[0]);
    if (!card) return;
    const count = (kind) => card.querySelectorAll('svg.tiles rect' + kind).length;
    const now = [count('.done'), count('')];
    if (now[1] && String(now) !== String(window.seen.at(-1))) window.seen.push(now);
};
new MutationObserver(look).observe(document.body, { subtree: true, childList: true, attributes: true });
look();
"""
LINK = """
const is = (row) => row.querySelector('.tag')?.textContent === arguments[0];
return [...document.querySelectorAll('#recent tbody tr')].find(is)?.querySelector('a')?.getAttribute('href')
"""
IN_FORCE = """
const holds = (row) => [...row.querySelectorAll('.badge')].some((badge) => badge.textContent.includes('in force'));
return [...document.querySelectorAll(arguments[0] + ' tbody tr')].find(holds)?.querySelector('code.digest')?.title
"""
ROUTE = """
const [, decides, , canary] = document.getElementById(arguments[0]).children;
return { decides: decides.querySelector('a')?.textContent, canary: canary.querySelector('a')?.textContent, told: canary.textContent };
"""
# What reaches past the screen, and is neither scrolled within the page nor for screen readers alone.
OVERFLOW = """
document.querySelectorAll('details').forEach((one) => { one.open = true; });
const scrolls = (e) => e && (['auto', 'scroll'].includes(getComputedStyle(e).overflowX) || scrolls(e.parentElement));
const isPast = (e) => e.getBoundingClientRect().right > arguments[0] + 1 && !e.closest('.unseen, thead') && !scrolls(e);
const past = [...document.body.querySelectorAll('*')].filter(isPast).map((e) => e.outerHTML.slice(0, 120));
return document.scrollingElement.scrollWidth > arguments[0] ? ['the page', ...past] : past;
"""


def element_id(kind, name):
    """As the dashboard writes them: what is not plain is spelt out."""
    spelt = (chr(b) if chr(b).isascii() and (chr(b).isalnum() or b in b"-.") else f"_{b:02x}" for b in name.encode())
    return f"{kind}--{''.join(spelt)}"


class Visit:
    def __init__(self, options):
        self.options, self.browser = options, Browser(options.url)
        self.pages, self.jobs = {"overview": "/", "jobs": "/jobs", "policy": f"/policies/{options.policy}"}, 0
        self.policy = "#" + element_id("policy", options.policy)

    def sign_in(self):
        b = self.browser
        b.open("/")
        if not self.options.token_file:
            return
        assert b.driver.current_url.startswith(b.base + "/login"), f"a stranger is let in to {b.driver.current_url}"
        self.pictures({"login": None})
        b.find("#token").send_keys(self.options.token_file.read_text().strip())
        b.leave(lambda: b.find("#token").submit())
        assert b.driver.get_cookies() and all(c["httpOnly"] and c["sameSite"] == "Strict" for c in b.driver.get_cookies())

    def submit(self):
        """Sends a job by the form; the page in front is the overview then."""
        b = self.browser
        self.jobs += 1
        tag = f"visit-{self.jobs}"
        b.open("/")
        if self.options.model:
            Select(b.find("#submit-model")).select_by_value(self.options.model)
        Select(b.find("#submit-format")).select_by_value("png")
        b.find("#submit-latent").send_keys(str(self.options.latent.resolve()))
        b.find("#submit-tag").send_keys(tag)
        b.leave(lambda: b.click("#submit button[type=submit]"))
        if b.driver.current_url.split("#")[0].rstrip("/") != b.base:
            b.open("/")
        return tag

    def tiles_fill_in(self):
        b, tag = self.browser, self.submit()
        b.run(WATCH, tag)
        b.wait_for("#connection.live")
        self.pictures({"running": None})
        link = b.wait(f"{tag} among the recent jobs", lambda: b.run(LINK, tag), WORK)
        seen = b.run("return window.seen")
        assert seen is not None, "the page was loaded again"
        done = [count for count, _ in seen]
        assert done == sorted(done) and len({total for _, total in seen}) == 1, f"tiles done, of all: {seen}"
        assert len(set(done)) >= self.options.steps, f"{self.options.steps} steps were to be seen: {seen}"
        self.pages["job"] = link
        return link

    def job_tells_its_story(self, link):
        b = self.browser
        b.leave(lambda: b.click(f"#recent a[href='{link}']"))
        picture = "const p = document.querySelector('#job a.picture img'); return p && p.complete && p.naturalWidth"
        assert b.wait("the picture", lambda: b.run(picture)) > 8
        steps = b.wait("the decision", lambda: b.run("return [...document.querySelectorAll('#job .story h3')].map((h) => h.textContent)"))
        assert {"Asked", "Answered"} <= set(steps), steps

    def in_force(self):
        return self.browser.run(IN_FORCE, self.policy)

    def is_paused(self):
        return self.browser.run("return document.querySelector(arguments[0]).textContent.includes('paused')", f"{self.policy} h3")

    def elsewhere(self, what, act, question):
        """Acts in one window, and sees in another, which is not loaded again, what comes of it."""
        b, acting = self.browser, self.browser.driver.current_window_handle
        b.front(self.watching)
        assert not question(), f"{what}: is so already"
        b.run("window.isSame = true")
        b.front(acting)
        b.leave(act)
        b.front(self.watching)
        b.wait(what, question)
        assert b.run("return window.isSame"), f"{what}: the page was loaded again"
        b.front(acting)

    def policy_changes_hands(self):
        b, name = self.browser, self.options.policy
        acting = b.driver.current_window_handle
        self.watching = b.window("/")
        b.wait_for("#connection.live")
        before = b.wait("a revision in force", self.in_force)
        digest = "sha256:" + hashlib.sha256(self.options.module.read_bytes()).hexdigest()
        b.front(acting)
        b.open(f"/policies/{name}")
        b.click(f"#{element_id('swap', name)} summary")
        b.find(f"#{element_id('swap-module', name)}").send_keys(str(self.options.module.resolve()))
        swap = lambda: b.click(f"#{element_id('swap', name)} button[type=submit]")  # noqa: E731
        self.elsewhere("the module in force", swap, lambda: self.in_force() == digest)
        b.open(f"/policies/{name}")
        self.elsewhere("the one before in force again", self.roll_back_by_keyboard, lambda: self.in_force() == before)
        for what, is_paused in (("pause", True), ("resume", False)):
            b.open(f"/policies/{name}")
            act = lambda what=what: b.click(f"button[aria-label^='{what} the policy {name}']")  # noqa: E731
            self.elsewhere(what, act, lambda is_paused=is_paused: self.is_paused() == is_paused)

    def roll_back_by_keyboard(self):
        b, place = self.browser, "#" + element_id("rollback", self.options.policy)
        is_open = lambda: b.run("return document.querySelector(arguments[0]).open", place)  # noqa: E731
        assert not b.find(f"{place} button").is_displayed(), "the second step is there before the first"
        b.tab_to(f"{place} summary")
        b.key(Keys.ENTER)
        b.wait("the question", is_open)
        b.key(Keys.ESCAPE)
        b.wait("the question taken back", lambda: not is_open())
        b.tab_to(f"{place} summary")
        b.key(Keys.ENTER)
        b.wait("the question", is_open)
        b.tab_to(f"{place} button")
        b.key(Keys.ENTER)

    def canary_is_promoted(self):
        b, row = self.browser, element_id("route", self.options.route)
        b.open("/")
        name = b.run(ROUTE, row)["canary"]
        assert name, f"the route {self.options.route} has no canary"

        def is_promoted():
            now = b.run(ROUTE, row)
            return now["decides"] == name or "promoted" in now["told"]

        for _ in range(self.options.canary_jobs):
            if is_promoted():
                return
            tag = self.submit()
            b.wait(f"{tag} ended", lambda tag=tag: b.run(LINK, tag) or is_promoted(), WORK)
        b.wait(f"the canary {name} promoted", is_promoted)

    def pictures(self, pages):
        """Of pages by their paths, or of the one in front."""
        b, backgrounds = self.browser, set()
        for width in WIDTHS:
            for scheme in SCHEMES:
                b.show(width, scheme)
                for name, path in pages.items():
                    if path:
                        b.open(path)
                    b.picture(self.options.shots / f"{name}-{width}-{scheme}.png")
                    backgrounds.add((scheme, b.run("return getComputedStyle(document.body).backgroundColor")))
        assert len(backgrounds) == len(SCHEMES), f"light is to differ from dark, and nothing else: {backgrounds}"
        b.as_before()

    def narrow(self):
        for path in self.pages.values():
            self.browser.show(min(WIDTHS), "light")
            self.browser.open(path)
            assert not (wide := self.browser.run(OVERFLOW, min(WIDTHS))), f"{path} is wider than {min(WIDTHS)} pixels: {wide[:5]}"
        self.browser.as_before()


def visit(options):
    """Goes through everything; what fails ends it, with a picture of the page."""
    options.shots.mkdir(parents=True, exist_ok=True)
    (options.shots / "failed.png").unlink(missing_ok=True)
    v = Visit(options)
    told = lambda what: print(f"{time.strftime('%H:%M:%S')} {what}", flush=True)  # noqa: E731
    try:
        v.sign_in()
        told("tiles fill in")
        link = v.tiles_fill_in()
        told("the job's page")
        v.job_tells_its_story(link)
        told("swap, roll back, pause, resume")
        v.policy_changes_hands()
        if options.route:
            told("the canary")
            v.canary_is_promoted()
        told("pictures")
        v.narrow()
        v.pictures(v.pages)
    except Exception:
        v.browser.picture(options.shots / "failed.png")
        v.browser.listen()
        print("\n".join(v.browser.problems), file=sys.stderr)
        v.browser.driver.quit()
        raise
    v.browser.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    for name in ("--latent", "--module", "--shots"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--token-file", type=Path)
    parser.add_argument("--model", help="left out: the first")
    parser.add_argument("--policy", default="fast", help="the one that is swapped (default fast)")
    parser.add_argument("--route", help="the one whose canary is to be promoted")
    parser.add_argument("--steps", type=int, default=3, help="tiles that have to be seen filling in (default 3)")
    parser.add_argument("--canary-jobs", type=int, default=20, help="the most jobs that a promotion may need (default 20)")
    try:
        visit(parser.parse_args())
    except Exception:
        traceback.print_exc()
        return 1
    print("the dashboard does what it should")
    return 0


if __name__ == "__main__":
    sys.exit(main())
