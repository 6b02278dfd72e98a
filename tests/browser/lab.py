"""JupyterLab on this machine's loopback, and Debian's or another chromium driven by Playwright."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from dartree import reports

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync",
         "--no-first-run"]  # fmt: skip
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SCREENSHOTS = reports.PROJECT / "build" / "browser"


def browser_path() -> str | None:
    """A chromium: $DARTREE_BROWSER, or the first one on the PATH."""
    return os.environ.get("DARTREE_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


def why_not() -> str | None:
    """What is missing for a browser test, in one line."""
    if importlib.util.find_spec("playwright") is None:
        return "browser tests left out: playwright is not installed (make test-browser installs it)"
    if browser_path() is None:
        return "browser tests left out: no chromium found (apt-get install chromium)"
    return None


@contextlib.contextmanager
def running_lab(folder: Path, scratch: Path) -> Iterator[str]:
    """Base address of a JupyterLab that serves ``folder``; it is stopped afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = reports.kernel_environment(scratch)
    env |= {"JUPYTERLAB_SETTINGS_DIR": str(scratch / "settings"),
            "JUPYTERLAB_WORKSPACES_DIR": str(scratch / "workspaces")}  # fmt: skip
    # Cells outside the window stay in the page, where the test can find them.
    _set(scratch, "notebook-extension/tracker", {"windowingMode": "none"})
    _set(scratch, "apputils-extension/notification", {"fetchNews": "false"})
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root",
        "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", "--ServerApp.port_retries=0",
        "--IdentityProvider.token=", f"--ServerApp.root_dir={folder}", 
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]  # fmt: skip
    log = (scratch / "lab.log").open("wb")
    server = subprocess.Popen(command, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_until_ready(address, server, scratch / "lab.log")
        yield address
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        log.close()


def _set(scratch: Path, plugin: str, values: dict[str, str]) -> None:
    file = scratch / "settings" / "@jupyterlab" / f"{plugin}.jupyterlab-settings"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(values), encoding="utf-8")


def _wait_until_ready(address: str, server: subprocess.Popen, log: Path, limit: float = 90) -> None:
    end = time.monotonic() + limit
    while time.monotonic() < end and server.poll() is None:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{address}/api", timeout=5).close()
            return
        time.sleep(0.3)
    raise RuntimeError("JupyterLab did not start:\n" + log.read_text(errors="replace")[-2000:])
