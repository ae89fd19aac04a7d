"""The program under test, and what comes along with it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"

# Nothing that the user has is read or written.
os.environ["TILEWRIGHT_HISTORY"] = "off"
os.environ.setdefault("TILEWRIGHT_PROGRAM", str(ROOT / "target" / "debug" / "tilewright"))
# `python -m pytest` puts the sources first, which have no native module: they are tested where `cargo xtask test` has not
# laid the package out.
SOURCES = str(ROOT / "host" / "python")
sys.path[:] = [*(folder for folder in sys.path if folder != SOURCES), SOURCES]

import tilewright  # noqa: E402
from tilewright.engine import Model  # noqa: E402

SHAPES = EXAMPLES / "models" / "flux-shapes"
VAE = EXAMPLES / "models" / "flux-tiny" / "ae.safetensors"
MODELS: dict[str, Model] = {
    "shapes": SHAPES,
    "picture": {"vae": VAE},
    "clip": {"vae": EXAMPLES / "models" / "wan-tiny" / "Wan2.1_VAE.safetensors"},
}


def program(*arguments: object) -> str:
    """What the program prints."""
    command = [os.environ["TILEWRIGHT_PROGRAM"], *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.fixture(scope="session")
def engine() -> Iterator[tilewright.Engine]:
    with tilewright.Engine(MODELS, device="cpu") as engine:
        yield engine


@pytest.fixture
def fresh() -> Iterator[tilewright.Engine]:
    engine = tilewright.Engine(MODELS, device="cpu")
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def device() -> tilewright.Device:
    return tilewright.Device.measure(device="cpu")


@pytest.fixture(scope="session")
def adaptive() -> tilewright.Policy:
    return tilewright.Policy("adaptive")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Ends with a line as cargo's tests do: `.ci/run` adds them up."""
    count = {outcome: len(terminalreporter.getreports(outcome)) for outcome in ("passed", "failed", "error", "skipped")}
    failed = count["failed"] + count["error"]
    verdict = "FAILED" if failed else "ok"
    terminalreporter.write_line(
        f"test result: {verdict}. {count['passed']} passed; {failed} failed; {count['skipped']} ignored"
    )
