"""The command: which program it runs, and what it answers without one."""

from __future__ import annotations

import ast
import json
import os
import signal
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


def pytorch(site: Path, version: str) -> None:
    """A PyTorch, as far as the command looks at it."""
    (site / "torch" / "lib").mkdir(parents=True)
    (site / "torch" / "lib" / "libtorch.so").write_text("a library")
    lines = f"from typing import Optional\n\n__version__ = '{version}'\ndebug = False\n"
    (site / "torch" / "version.py").write_text(lines)


def private(data: Path, name: str = "0.1.3-torch2.11-cpu", torch: str | None = "2.11.0+cpu") -> Path:
    """The folder of packages of a private environment that is in use."""
    environment = data / "tilewright" / "engines" / name
    site = environment / "lib" / "python3.12" / "site-packages"
    installed(site, name.partition("-")[0], torch=torch)
    (environment.parent / "current").symlink_to(name)
    return site


def error_of(said: subprocess.CompletedProcess[str], status: int = 2) -> str:
    """The one line of an error."""
    assert (said.returncode, said.stdout) == (status, ""), said
    assert said.stderr.startswith("error: ") and said.stderr.count("\n") == 1 and said.stderr.endswith("\n"), said
    return said.stderr


def installed(site: Path, *records: str, torch: str | None = "2.11.0+cpu") -> Path:
    """A program as a wheel puts it into a folder of packages, beside a PyTorch."""
    program = site / "tilewright_engine" / "bin" / "tilewright"
    program.parent.mkdir(parents=True)
    program.write_text(PROGRAM)
    program.chmod(0o755)
    if torch is not None:
        pytorch(site, torch)
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
    private(tmp_path)
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
            assert words in error_of(run(*arguments, site=None, command=COMMAND, **environment))
    broken = installed(tmp_path)
    broken.write_text("no program")
    said = run("decode", site=tmp_path)
    assert (said.returncode, said.stderr) == (2, f"error: {broken}: Exec format error\n")


@pytest.mark.parametrize(("torch", "found"), [("2.15.0+cu132", "2.15.0+cu132 is there"), (None, "there is none")])
def test_another_pytorch_beside_the_program_is_one_line(tmp_path: Path, torch: str | None, found: str) -> None:
    installed(tmp_path / "site", VERSION, torch=torch)
    for arguments in (["--version"], ["decode"]):
        line = error_of(run(*arguments, site=tmp_path / "site"))
        assert f"error: {tmp_path / 'site'}: the program needs PyTorch 2.11" in line and found in line
        assert "tilewright engine install" in line
        # Nobody's PyTorch is to be replaced.
        assert ("install torch==" in line) == (torch is None) and "tilewright[engine]" not in line
    # A private environment serves, whatever is beside the first one.
    private(tmp_path / "data")
    there = str(tmp_path / "data")
    assert run("--version", site=tmp_path / "site", XDG_DATA_HOME=there).stdout == "tilewright 0.1.3\n"


def test_a_pytorch_in_another_folder_does_not_serve(tmp_path: Path) -> None:
    installed(tmp_path / "site", VERSION, torch=None)
    pytorch(tmp_path / "system", "2.11.0+cpu")
    more = f"{ROOT / 'host' / 'python'}{os.pathsep}{tmp_path / 'site'}{os.pathsep}{tmp_path / 'system'}"
    line = error_of(run("decode", PYTHONPATH=more))
    assert f"2.11 beside it, and 2.11.0+cpu is in {tmp_path / 'system'}" in line and "engine install" in line


@pytest.mark.parametrize(
    ("torch", "replaces"), [(None, False), ("2.11.0+cpu", False), ("2.15.0+cu132", True), ("2.1.2", True)]
)
def test_no_advice_replaces_a_pytorch(tmp_path: Path, torch: str | None, replaces: bool) -> None:
    if torch is not None:
        pytorch(tmp_path, torch)
    for arguments in (["--help"], []):
        line = error_of(run(*arguments, site=tmp_path))
        assert "the program is not installed here" in line
        assert "tilewright engine install" in line and "tilewright engine --help" in line
        assert ("pip install" not in line) == replaces
        assert not replaces or (str(torch) in line and str(tmp_path) in line)


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        ("lib/python3.12/site-packages/tilewright_engine", "its program is gone"),
        ("lib/python3.12/site-packages/torch", "its PyTorch is gone"),
        ("lib/python3.12/site-packages/torch/lib/libtorch.so", "its PyTorch is gone"),
        ("lib", "its packages are gone"),
    ],
)
def test_a_damaged_private_environment_is_named(tmp_path: Path, lost: str, words: str) -> None:
    private(tmp_path)
    path = tmp_path / "tilewright" / "engines" / "0.1.3-torch2.11-cpu" / lost
    path.rename(tmp_path / "lost")
    line = error_of(run("decode", XDG_DATA_HOME=str(tmp_path)))
    assert words in line and "0.1.3-torch2.11-cpu is damaged" in line
    assert "tilewright engine remove 0.1.3-torch2.11-cpu and tilewright engine install" in line


def test_another_pytorch_in_a_private_environment_is_damage(tmp_path: Path) -> None:
    private(tmp_path, torch="2.12.0+cpu")
    line = error_of(run("decode", XDG_DATA_HOME=str(tmp_path)))
    assert "is damaged: its PyTorch is 2.12.0+cpu, and the program needs 2.11" in line


@pytest.fixture
def command(tmp_path: Path) -> Path:
    """The script that pip makes of the command."""
    script = tmp_path / "bin" / "tilewright"
    script.parent.mkdir()
    script.write_text(f"#!{sys.executable}\n{COMMAND}\n")
    script.chmod(0o755)
    return script


@pytest.mark.parametrize("way", ["exec {command}", "{command}"], ids=["exec", "child"])
@pytest.mark.parametrize("is_direct", [True, False], ids=["direct", "wrapped"])
def test_a_program_that_leads_back_is_refused(tmp_path: Path, command: Path, way: str, is_direct: bool) -> None:
    wrapper = tmp_path / "wrapper"
    wrapper.write_text(f'#!/bin/sh\n{way.format(command=command)} "$@"\n')
    wrapper.chmod(0o755)
    named = command if is_direct else wrapper
    line = error_of(run("decode", TILEWRIGHT_PROGRAM=str(named)))
    assert line.startswith(f"error: TILEWRIGHT_PROGRAM: {named}: is this command itself")


def test_a_wrapper_that_ends_in_the_program_works(tmp_path: Path, command: Path) -> None:
    program = installed(tmp_path / "site", VERSION)
    wrapper = tmp_path / "wrapper"
    ways = (f"exec {program}", f"unset TILEWRIGHT_PROGRAM\nexec {command}", f"TILEWRIGHT_PROGRAM={program} {command}")
    for way in ways:
        wrapper.write_text(f'#!/bin/sh\n{way} "$@"\n')
        wrapper.chmod(0o755)
        said = run("decode", site=tmp_path / "site", TILEWRIGHT_PROGRAM=str(wrapper))
        assert (said.stdout, said.stderr) == ("started: decode\n", "")
    # The program may run the command in its turn.
    outer = tmp_path / "outer"
    outer.write_text(f"#!/bin/sh\nTILEWRIGHT_PROGRAM={wrapper} {command} inner\n")
    outer.chmod(0o755)
    assert run("decode", site=tmp_path / "site", TILEWRIGHT_PROGRAM=str(outer)).stdout == "started: inner\n"


def test_an_output_that_cannot_be_written(tmp_path: Path) -> None:
    installed(tmp_path, VERSION)
    environment = {"PYTHONPATH": f"{ROOT / 'host' / 'python'}{os.pathsep}{tmp_path}", "XDG_DATA_HOME": "/nowhere"}
    reading, writing = os.pipe()
    os.close(reading)
    with open("/dev/full", "wb") as full, os.fdopen(writing, "wb") as pipe:
        for output, status, line in ((pipe, 0, ""), (full, 1, "error: standard output: No space left on device\n")):
            for arguments in (["--version"], ["engine", "--version"], ["engine", "list"], ["engine", "--help"]):
                said = subprocess.run(
                    [sys.executable, "-c", COMMAND, *arguments], stdout=output, stderr=subprocess.PIPE, text=True,
                    env=environment, check=False,
                )  # fmt: skip
                assert (said.returncode, said.stderr) == (status, line), arguments
    closed = ["/bin/sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-c", COMMAND]
    for arguments in (["--version"], ["engine", "--version"], ["engine", "list"]):
        said = subprocess.run([*closed, *arguments], stderr=subprocess.PIPE, text=True, env=environment, check=False)
        assert (said.returncode, said.stderr) == (0, ""), arguments


def test_the_package_is_a_command_too(tmp_path: Path) -> None:
    installed(tmp_path, VERSION)
    environment = {"PYTHONPATH": f"{ROOT / 'host' / 'python'}{os.pathsep}{tmp_path}"}
    for arguments, output in (
        (["--version"], f"tilewright {VERSION}\n"),
        (["decode"], "started: decode\n"),
        (["engine", "--version"], f"tilewright (Python package) {VERSION}\n"),
    ):
        whole = [sys.executable, "-m", "tilewright", *arguments]
        said = subprocess.run(whole, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
        assert (said.returncode, said.stdout, said.stderr) == (0, output, "")


def test_an_interrupt_while_modules_load_is_no_traceback() -> None:
    code = f"""
import builtins, os, signal
# What a shell starts in the background ignores it.
signal.signal(signal.SIGINT, signal.default_int_handler)
load = builtins.__import__
def interrupted(name, *more):
    if name == "argparse":
        os.kill(os.getpid(), {int(signal.SIGINT)})
    return load(name, *more)
builtins.__import__ = interrupted
{COMMAND}
"""
    said = run("engine", "list", command=code)
    assert (said.returncode, said.stdout, said.stderr) == (130, "", "error: interrupted\n")


def test_an_older_python_is_told(tmp_path: Path) -> None:
    first = ROOT / "host" / "python" / "tilewright" / "__init__.py"
    ast.parse(first.read_text(), feature_version=(3, 7))
    older = "import sys; sys.version_info = (3, 9, 18, 'final', 0)"
    words = "tilewright needs Python 3.10 or later, and this is 3.9: "
    said = run(command=f"{older}\ntry: import tilewright\nexcept ImportError as error: print(error)")
    assert said.stdout.startswith(words) and said.stdout.count("\n") == 1 and said.stderr == ""
    script = tmp_path / "tilewright"
    script.write_text(f"{older}\n{COMMAND}\n")
    environment = {"PYTHONPATH": str(ROOT / "host" / "python")}
    whole = [sys.executable, str(script), "decode"]
    said = subprocess.run(whole, capture_output=True, text=True, env=environment, check=False)
    assert words in error_of(said)


def test_only_what_python_has_loaded_is_imported(tmp_path: Path) -> None:
    installed(tmp_path, VERSION)
    # Python is built with errno in it: that is no file to read.
    code = (
        "import sys, json; before = set(sys.modules); from tilewright._command import main; main();"
        "sys.stdout.write(json.dumps(sorted(set(sys.modules) - before - {'__future__', 'errno'})))"
    )
    said = run("--version", site=tmp_path, command=f"import json; {code}")
    modules = json.loads(said.stdout.splitlines()[1])
    assert modules == ["tilewright", "tilewright._command", "tilewright._program", "tilewright.errors"]
