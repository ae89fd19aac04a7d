"""The command: which program it runs, and what it answers without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT
from tilewright import __version__ as VERSION

COMMAND = "import sys; from tilewright._command import main; sys.exit(main())"

#: Says so if it is started.
PROGRAM = '#!/bin/sh\necho "started: $*"\n'


def run(
    *arguments: str, site: Path | None = None, command: str = COMMAND, **environment: str
) -> subprocess.CompletedProcess[str]:
    """The command beside a folder of packages, in an environment of its own."""
    paths = [ROOT / "host" / "python", *([site] if site else [])]
    variables = {"PYTHONPATH": os.pathsep.join(map(str, paths)), "PATH": "", "XDG_DATA_HOME": "/nowhere", **environment}
    whole = [sys.executable, "-c", command, *arguments]
    return subprocess.run(whole, capture_output=True, text=True, env=variables, check=False)


def installed(site: Path, *records: str, torch: str | None = "2.11.0+cpu") -> Path:
    """A program as a wheel puts it into a folder of packages, beside a PyTorch."""
    program = site / "tilewright_engine" / "bin" / "tilewright"
    program.parent.mkdir(parents=True)
    program.write_text(PROGRAM)
    program.chmod(0o755)
    if torch is not None:
        (site / "torch").mkdir()
        (site / "torch" / "version.py").write_text(f"from typing import Optional\n\n__version__ = '{torch}'\ndebug = False\n")
    for record in records:
        (site / f"tilewright_engine-{record}.dist-info").mkdir()
    return program


@pytest.mark.parametrize("argument", ["--version", "-V"])
def test_the_version_is_said_without_the_program(tmp_path: Path, argument: str) -> None:
    installed(tmp_path, "0.1.7")
    said = run(argument, site=tmp_path)
    assert (said.returncode, said.stdout, said.stderr) == (0, "tilewright 0.1.7\n", "")


def test_it_is_the_text_of_the_program(tmp_path: Path) -> None:
    installed(tmp_path, VERSION)
    said = subprocess.run([os.environ["TILEWRIGHT_PROGRAM"], "--version"], capture_output=True, text=True, check=True)
    assert run("--version", site=tmp_path).stdout == said.stdout


def test_a_private_environment_has_its_own_version(tmp_path: Path) -> None:
    environment = tmp_path / "tilewright" / "engines" / "0.1.3-torch2.11-cpu"
    installed(environment / "lib" / "python3.12" / "site-packages", "0.1.3")
    (tmp_path / "tilewright" / "engines" / "current").symlink_to(environment.name)
    assert run("--version", XDG_DATA_HOME=str(tmp_path)).stdout == "tilewright 0.1.3\n"


@pytest.mark.parametrize("records", [(), ("0.1.0", "0.2.0"), ("0.2.0rc1",)], ids=["none", "two", "candidate"])
def test_what_the_files_do_not_say_the_program_does(tmp_path: Path, records: tuple[str, ...]) -> None:
    installed(tmp_path, *records)
    assert run("--version", site=tmp_path).stdout == "started: --version\n"


def test_all_else_is_for_the_program(tmp_path: Path) -> None:
    program = installed(tmp_path / "site", VERSION)
    other = tmp_path / "other"
    other.write_text(PROGRAM)
    other.chmod(0o755)
    for arguments in (["--version", "-q"], ["decode", "--version"], []):
        assert run(*arguments, site=tmp_path / "site").stdout == f"started: {' '.join(arguments)}\n"
    # The one that is named counts before all others, whatever is installed.
    assert run("--version", site=tmp_path / "site", TILEWRIGHT_PROGRAM=str(other)).stdout == "started: --version\n"
    assert run("--version", TILEWRIGHT_PROGRAM=str(program)).stdout == f"tilewright {VERSION}\n"
    assert run("--version", TILEWRIGHT_PROGRAM="other", PATH=str(tmp_path)).stdout == "started: --version\n"


def test_a_missing_program_is_one_line(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, str], str]] = [
        ({}, "the program is not installed here"),
        ({"TILEWRIGHT_PROGRAM": "missing"}, "TILEWRIGHT_PROGRAM: missing: no such program"),
        ({"XDG_DATA_HOME": "", "HOME": "here"}, "the program is not installed here"),
    ]
    for environment, words in cases:
        for arguments in (["--version"], ["decode"]):
            said = run(*arguments, site=None, command=COMMAND, **environment)
            assert (said.returncode, said.stdout) == (2, "") and said.stderr.count("\n") == 1
            assert said.stderr.startswith("error: ") and words in said.stderr
    broken = installed(tmp_path)
    broken.write_text("no program")
    said = run("decode", site=tmp_path)
    assert (said.returncode, said.stderr) == (2, f"error: {broken}: Exec format error\n")


@pytest.mark.parametrize(("torch", "found"), [("2.15.0+cu132", "2.15.0+cu132 is beside it"), (None, "there is none")])
def test_another_pytorch_beside_the_program_is_one_line(tmp_path: Path, torch: str | None, found: str) -> None:
    installed(tmp_path / "site", VERSION, torch=torch)
    for arguments in (["--version"], ["decode"]):
        said = run(*arguments, site=tmp_path / "site")
        assert (said.returncode, said.stdout) == (2, "") and said.stderr.count("\n") == 1
        assert "needs PyTorch 2.11" in said.stderr and found in said.stderr and "engine install" in said.stderr
    # A private environment serves, whatever is beside the first one.
    environment = tmp_path / "data" / "tilewright" / "engines" / "0.1.3-torch2.11-cpu"
    installed(environment / "lib" / "python3.12" / "site-packages", "0.1.3")
    (environment.parent / "current").symlink_to(environment.name)
    there = str(tmp_path / "data")
    assert run("--version", site=tmp_path / "site", XDG_DATA_HOME=there).stdout == "tilewright 0.1.3\n"


def test_only_what_python_has_loaded_is_imported(tmp_path: Path) -> None:
    installed(tmp_path, VERSION)
    code = (
        "import sys, json; before = set(sys.modules); from tilewright._command import main; main();"
        "sys.stdout.write(json.dumps(sorted(set(sys.modules) - before - {'__future__'})))"
    )
    said = run("--version", site=tmp_path, command=f"import json; {code}")
    modules = json.loads(said.stdout.splitlines()[1])
    assert modules == ["tilewright", "tilewright._command", "tilewright._program", "tilewright.errors"]
