"""Pages in a real browser, offline: what they ask for, say and break is written down.

Only a driver is installed with the other packages; the browser is the system's own.
"""

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "google-chrome", "google-chrome-stable")
MISSING = "there is no browser; on Debian: apt-get install chromium"
WATCH = """addEventListener("securitypolicyviolation", event => violated(
    `${event.effectiveDirective} ${event.blockedURI} ${event.sample}`.trim()), true)"""


class Opened:
    """A page that was opened from a file; `page` is Playwright's."""

    def __init__(self, context: Any, url: str) -> None:
        self.url = url
        self._problems: list[str] = []
        note = self._note
        context.expose_function("violated", partial(note, "against the page's policy"))
        context.add_init_script(WATCH)
        context.route("**/*", self._route)
        self.page = context.new_page()
        context.on("page", lambda page: note("another page", page.url))
        self.page.on("console", lambda said: said.type in ("error", "warning") and note(
            f"console {said.type}", said.text))  # fmt: skip
        self.page.on("pageerror", lambda error: note("uncaught", str(error)))
        self.page.on("websocket", lambda socket: note("request", socket.url))
        self.page.on("dialog", lambda asked: note("dialog", asked.message) or asked.dismiss())
        self.page.goto(url)

    @property
    def problems(self) -> list[str]:
        """All that went wrong so far, each in a line."""
        self.page.wait_for_timeout(50)  # what has happened is told a moment later
        return list(self._problems)

    def _note(self, kind: str, text: str) -> None:
        self._problems.append(f"{kind}: {text}")

    def _route(self, route: Any) -> None:
        if route.request.url.partition("#")[0] == self.url:
            route.continue_()
        else:
            self._note("request", route.request.url)
            route.abort()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One for each worker; it takes half a second to start."""
    there = [path for path in map(shutil.which, NAMES) if path]
    found = next((path for path in there if not path.startswith("/snap")), None)  # sees no /tmp
    if found is None:
        pytest.skip(MISSING)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # No name is looked up, not even those that the browser itself would ask.
        unknown = "--host-resolver-rules=MAP * ~NOTFOUND"
        browser = playwright.chromium.launch(executable_path=found, args=[unknown])
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Opened]]:
    """opened(path): the page in that file, as a reader without any network sees it."""
    contexts = []

    def opened(path, width=1200, height=900, dark=False, javascript=True):
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            java_script_enabled=javascript,
            service_workers="block",
            offline=True,
        )
        contexts.append(context)
        return Opened(context, Path(path).absolute().as_uri())

    yield opened
    for context in contexts:
        context.close()
