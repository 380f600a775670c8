"""Asking a network that may be absent, or that accepts and never answers, for a bounded time.

Neither `datasets` nor `tiktoken` gives up on such a network: the one waits for minutes, the other
for ever.
"""

import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

PATIENCE = 3.0  # seconds for a first answer


def answers(url: str) -> bool:
    """Whether anything answers an HTTP HEAD there, through a proxy if the environment names one."""
    request = urllib.request.Request(url, method="HEAD")

    def ask() -> bool:
        try:
            # An opener of its own: the shared one keeps the proxies of its first use.
            urllib.request.build_opener().open(request, timeout=PATIENCE).close()
        except urllib.error.HTTPError:
            return True  # an answer, though no welcome
        except (OSError, ValueError):
            return False
        return True

    try:
        # The timeout of a socket bounds neither the look-up of the name nor a slow drip of bytes.
        return within(PATIENCE + 1, ask)
    except TimeoutError:
        return False


def within(seconds: float, call: Callable[[], Any]) -> Any:
    """What `call` returns or raises; TimeoutError if it takes longer, and it is left behind."""
    outcome: list[Any] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:  # noqa: BLE001  (tiktoken's panics are no Exception)
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failure:
        raise failure[0]
    if not outcome:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return outcome[0]
