"""The command `tilewright engine`, without a network: PyTorch and the engine are tiny wheels that are made here."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import http.server
import io
import json
import os
import platform
import random
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from tilewright import __version__ as VERSION
from tilewright import _environments, _flavours, _installer, _program, _store
from tilewright._environments import main

HERE = Path(_environments.__file__).parent.parent

pytestmark = pytest.mark.skipif(
    platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"), reason="no engine for this machine"
)

# Finds its PyTorch as the real one does: by the place where it is itself.
PROGRAM = f"""#!/bin/sh
test -f "${{0%/*}}/../../torch/lib/libtorch.so" || {{ echo 'libtorch.so: cannot open shared object file'; exit 127; }}
echo "tilewright {VERSION}"
"""


def wheel(folder: Path, name: str, version: str, files: dict[str, str], requires: str = "") -> Path:
    """Writes a wheel for any Python."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    needs = f"Requires-Dist: {requires}\n" if requires else ""
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
    tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    contents = {**files, f"{info}/METADATA": metadata, f"{info}/WHEEL": tags}
    record = ""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in contents.items():
            entry = zipfile.ZipInfo(inside)
            # pip takes the mode only of what is told to be a regular file.
            entry.external_attr = (stat.S_IFREG | (0o755 if "/bin/" in inside else 0o644)) << 16
            archive.writestr(entry, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
            record += f"{inside},sha256={digest},{len(text.encode())}\n"
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return path


def torch(folder: Path, version: str = "2.11.0") -> Path:
    files = {
        "torch/__init__.py": "",
        "torch/lib/libtorch.so": "a library",
        "torch/version.py": f"__version__ = '{version}+cpu'\n",
    }
    return wheel(folder, "torch", version, files)


def engine(folder: Path, version: str = VERSION, script: str = PROGRAM) -> Path:
    files = {"tilewright_engine/__init__.py": "", "tilewright_engine/bin/tilewright": script}
    return wheel(folder, "tilewright_engine", version, files, "torch==2.11.*")


def pretend_free(monkeypatch: pytest.MonkeyPatch, folder: Path, free: int) -> None:
    usage = shutil.disk_usage(folder)._replace(free=free)

    def pretended(_path: object) -> object:
        return usage

    monkeypatch.setattr(shutil, "disk_usage", pretended)


def pretend_pip_files(monkeypatch: pytest.MonkeyPatch, *files: Path) -> None:
    def pretended(_environment: object) -> list[Path]:
        return list(files)

    monkeypatch.setattr(_installer, "_pip_files", pretended)


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    torch(folder)
    engine(folder)
    return folder


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of environments; in its environment nothing of the user's counts."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_", "PYTHON", "TILEWRIGHT_", "XDG_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_RETRIES", "0")
    # Whatever room the machine of the test has.
    pretend_free(monkeypatch, tmp_path, 100 * 10**9)
    return tmp_path / "data" / "tilewright" / "engines"


def name(flavour: str) -> str:
    return f"{VERSION}-torch2.11-{flavour}"


def install(wheels: Path, *more: str) -> int:
    return main(["install", "--torch", "cpu", "--find-links", str(wheels), *more])


def leftovers(store: Path) -> list[Path]:
    return list(store.glob(".tilewright-*"))


def listed(capsys: pytest.CaptureFixture[str]) -> dict[str, bool]:
    """The names that are listed, and which is in use."""
    capsys.readouterr()
    assert main(["list", "--json"]) == 0
    return {row["name"]: row["current"] for row in json.loads(capsys.readouterr().out)}


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    text = capsys.readouterr().err
    assert text.startswith("error: ") and text.count("\n") == 1 and text.endswith("\n"), text
    return text


def child(*arguments: str, data: Path | None = None) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    code = "import sys; from tilewright._environments import main; sys.exit(main(sys.argv[1:]))"
    environment = dict(os.environ)
    if data is not None:
        environment["XDG_DATA_HOME"] = str(data)
    command = [sys.executable, "-c", code, *arguments]

    def heed() -> None:
        # What a shell starts in the background ignores the first, what nohup starts the second, and so would this.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, preexec_fn=heed
    )


# Installing, listing, removing.


def test_an_install_says_what_is_fetched_and_is_found(
    store: Path, wheels: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert install(wheels) == 0
    said = capsys.readouterr()
    assert said.err == ""
    for part in (
        f"tilewright-engine {VERSION}",
        str(wheels),
        "PyTorch 2.11 cpu",
        "whl/cpu",
        "200 MB",
        "100000 MB free",
    ):
        assert part in said.out, part
    assert said.out.index("to fetch") < said.out.index("unpacking")
    assert said.out.endswith(f"{name('cpu')} is installed and in use now\n")
    assert leftovers(store) == []
    monkeypatch.setenv("PATH", "")
    program = _program.find_program()
    assert Path(program).is_relative_to(store / "current")
    assert _program.installed_version(program) == VERSION
    # Run where it is now: it was made under another name.
    assert subprocess.run([program, "--version"], capture_output=True, text=True).stdout == f"tilewright {VERSION}\n"


def test_the_second_is_used_and_the_first_stays(store: Path, wheels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert install(wheels) == 0
    assert main(["install", "--torch", "cu130", "--find-links", str(wheels)]) == 0
    assert listed(capsys) == {name("cpu"): False, name("cu130"): True}
    # Once more is no work, and puts it to use.
    assert install(wheels) == 0
    assert f"{name('cpu')} was installed before and in use now\n" in capsys.readouterr().out
    assert listed(capsys) == {name("cpu"): True, name("cu130"): False}

    assert main(["list"]) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAME", "TORCH", "SIZE", "IN", "USE"]
    assert first.split()[:3] == [name("cpu"), "2.11", "cpu"] and first.endswith(" MB  yes")
    assert second.split()[:3] == [name("cu130"), "2.11", "cu130"] and second.endswith(" MB  no")

    assert main(["remove", name("cpu")]) == 0
    assert listed(capsys) == {name("cu130"): True}
    assert main(["remove", name("cu130")]) == 0
    assert listed(capsys) == {} and not os.path.lexists(store / "current")
    assert sorted(path.name for path in store.iterdir()) == [".lock"]


def test_names_that_are_not_listed_are_not_removed(
    store: Path, wheels: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["remove", "current"]) == 2
    assert "there are none" in one_line(capsys) and not store.exists()
    assert install(wheels) == 0
    (store / "of-a-user").mkdir()
    capsys.readouterr()
    for wrong in ("current", "..", ".lock", "of-a-user", str(store), ""):
        assert main(["remove", name("cpu"), wrong]) == 2
        assert f"there are {name('cpu')}\n" in one_line(capsys)
    assert main(["remove"]) == 2 and main(["remove", "--all", name("cpu")]) == 2
    assert listed(capsys) == {name("cpu"): True}
    assert main(["remove", "--all"]) == 0
    assert listed(capsys) == {} and (store / "of-a-user").is_dir()
    assert main(["remove", "--all"]) == 0


def test_nothing_is_made_by_a_dry_run(store: Path, wheels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = "https://me:secret@example.invalid/simple"
    assert install(wheels, "--dry-run", "--index-url", secret) == 0
    said = capsys.readouterr().out
    assert "https://example.invalid/simple" in said and "secret" not in said and str(store / name("cpu")) in said
    assert not store.exists()


def test_wheels_and_an_index_of_ones_own(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = tmp_path / "simple" / "torch"
    torch(index, "2.11.0+cpu")
    torch(index, "2.12.0+cpu")
    links = "".join(f'<a href="{path.name.replace("+", "%2B")}">{path.name}</a>\n' for path in index.glob("*.whl"))
    (index / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
    file = engine(tmp_path / "built")
    os.environ.pop("PIP_NO_INDEX")
    address = index.parent.as_uri()
    assert main(["install", "--torch", "cpu", "--wheel", str(file), "--index-url", address]) == 0, capsys.readouterr()
    sites = next((store / name("cpu")).glob("lib/python3*/site-packages"))
    assert [path.name for path in sites.glob("torch-*")] == ["torch-2.11.0+cpu.dist-info"]


def test_a_wheel_of_torch_and_a_relative_path(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine(tmp_path)
    torch(tmp_path)
    monkeypatch.chdir(tmp_path)
    files = [f"tilewright_engine-{VERSION}-py3-none-any.whl", "torch-2.11.0-py3-none-any.whl"]
    assert main(["install", "--torch", "cpu", "--wheel", files[0], "--wheel", files[1]]) == 0, capsys.readouterr()
    assert listed(capsys) == {name("cpu"): True}


def test_what_the_user_set_for_other_work_does_not_count(
    store: Path, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "constraints.txt").write_text("torch==2.15.0\n")
    (tmp_path / "site" / "torch-2.11.0.dist-info").mkdir(parents=True)
    (tmp_path / "site" / "torch-2.11.0.dist-info" / "METADATA").write_text("Name: torch\nVersion: 2.11.0\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(tmp_path / "constraints.txt"))
    monkeypatch.setenv("PIP_USER", "1")
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "target"))
    monkeypatch.setenv("PYTHONPATH", f"{HERE}{os.pathsep}{tmp_path / 'site'}")
    assert install(wheels) == 0, capsys.readouterr()
    assert listed(capsys) == {name("cpu"): True}


def test_a_python_without_pip(
    store: Path, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ensurepip")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    assert install(wheels) == 0, capsys.readouterr()
    assert listed(capsys) == {name("cpu"): True}


def test_uv_is_used_where_it_is(
    store: Path, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    uv = os.environ.get("TEST_UV") or shutil.which("uv")
    if uv is None:
        pytest.skip("no uv here")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "uv").write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/uv.log\nexec {uv} "$@"\n')
    (tmp_path / "bin" / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    pretend_pip_files(monkeypatch)
    # Its settings are pip's, so it is pip that counts.
    assert install(wheels, "--torch", "cu130") == 0
    assert not (tmp_path / "uv.log").exists()
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_OFFLINE", "1")
    file = engine(tmp_path / "built")
    index = tmp_path / "none"
    index.mkdir()
    arguments = ["--wheel", str(file), "--wheel", str(wheels / "torch-2.11.0-py3-none-any.whl")]
    assert main(["install", "--torch", "cpu", *arguments, "--index-url", index.as_uri()]) == 0, capsys.readouterr()
    assert (tmp_path / "uv.log").read_text().count("pip install") == 2
    assert listed(capsys) == {name("cpu"): True, name("cu130"): False}


# What can go wrong.


def test_wrong_arguments_are_one_line(
    store: Path, wheels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = engine(tmp_path / "old", "0.0.1")
    wrong_torch = torch(tmp_path / "old", "2.12.0")
    other = wheel(tmp_path / "old", "sympy", "1.14", {"sympy/__init__.py": ""})
    renamed = tmp_path / f"tilewright_engine-{VERSION}-py3-none-any.whl"
    renamed.write_bytes(other.read_bytes())
    text, cut = tmp_path / "text-1-py3-none-any.whl", tmp_path / "cut.whl"
    text.write_text("no wheel")
    whole = next(wheels.glob("torch-*")).read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    cases = {
        ("install", "--torch", "cu999"): "there are cpu, cu126",
        ("install", "--wheel", str(old)): f"this is tilewright {VERSION}",
        ("install", "--wheel", str(wrong_torch)): "2.11 is needed",
        ("install", "--wheel", "none.whl"): "no such wheel",
        ("install", "--wheel", str(cut)): f"{cut}: is no wheel, or damaged",
        ("install", "--wheel", str(text)): f"{text}: is no wheel, or damaged",
        ("install", "--wheel", str(other)): "of the package sympy",
        ("install", "--wheel", str(renamed)): "of the package sympy",
        ("install", "--index-url", "notaurl"): "notaurl: no address",
        ("install", "--index-url", "http://"): "http://: no address",
        ("install", "--index-url", "http://[x"): "http://[x: no address",
        ("install", "--index-url", "/srv/simple"): "/srv/simple: no address",
        ("install", "--index-url", ""): "'': no address",
        ("install", "--find-links", str(tmp_path / "none")): "no such folder",
        ("install", "--quick"): "unrecognized arguments",
        ("instal",): "invalid choice",
        (): "required",
    }
    for arguments, part in cases.items():
        assert main(list(arguments)) == 2, arguments
        assert part in one_line(capsys), arguments
    assert not store.exists()
    assert main(["--help"]) == 0 and main(["install", "--help"]) == 0


def test_an_engine_that_is_nowhere_says_how_to_get_it(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch(tmp_path / "only-torch")
    assert install(tmp_path / "only-torch") == 1
    line = one_line(capsys)
    assert "cargo xtask wheel" in line and "--wheel FILE" in line and "tilewright-engine" in line
    assert leftovers(store) == [] and listed(capsys) == {}


class _Broken(http.server.BaseHTTPRequestHandler):
    """An index whose PyTorch breaks off in the middle."""

    def do_GET(self) -> None:
        body, length = b'<a href="/torch-2.11.0-py3-none-any.whl">torch-2.11.0-py3-none-any.whl</a>', None
        if self.path.endswith(".whl"):
            body, length = b"PK" * 10_000, 5_000_000
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(length or len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def broken_index() -> Generator[str, None, None]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Broken) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/simple"
        server.shutdown()


def test_a_failing_download_leaves_nothing(
    store: Path, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert install(wheels, "--torch", "cu126") == 0
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_RESUME_RETRIES", "0")
    # pip tells of a server that it can't reach only before it tries again.
    monkeypatch.setenv("PIP_RETRIES", "1")
    file = str(engine(tmp_path / "built"))
    with broken_index() as index:
        for address, part in ((index, "PyTorch 2.11 cpu from"), ("http://127.0.0.1:9/simple", "can't be reached")):
            capsys.readouterr()
            assert main(["install", "--torch", "cpu", "--wheel", file, "--index-url", address]) == 1
            line = one_line(capsys)
            assert part in line and address in line and "check the network" in line
            assert leftovers(store) == []
    assert listed(capsys) == {name("cu126"): True}


def test_a_damaged_wheel_in_a_folder_is_named(
    store: Path, wheels: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = next(wheels.glob("torch-*"))
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert install(wheels) == 1
    assert one_line(capsys) == f"error: {file}: is no wheel, or damaged: fetch or build it again\n"
    assert leftovers(store) == [] and listed(capsys) == {}


def test_a_torch_of_another_build_is_refused(store: Path, wheels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch(wheels, "2.11.0+cu130")
    assert install(wheels) == 1
    assert "torch 2.11.0+cu130 was found where cpu was asked for" in one_line(capsys)
    assert leftovers(store) == [] and listed(capsys) == {}


@pytest.mark.parametrize(
    ("script", "part"),
    [
        ("#!/bin/sh\necho 'libtorch.so: cannot open shared object file' >&2\nexit 127\n", "cannot open shared object"),
        ("#!/bin/sh\nkill -11 $$\n", "signal 11"),
        ("#!/bin/sh\necho tilewright 0.0.1\n", f"{VERSION} is needed"),
    ],
)
def test_a_program_that_does_not_run_is_not_installed(
    store: Path, wheels: Path, capsys: pytest.CaptureFixture[str], script: str, part: str
) -> None:
    engine(wheels, script=script)
    assert install(wheels) == 1
    assert part in one_line(capsys)
    assert leftovers(store) == [] and listed(capsys) == {}


@pytest.mark.parametrize("lost", ["torch", "torch/lib/libtorch.so", "torch/version.py", "tilewright_engine"])
def test_one_that_was_damaged_later_is_made_anew(
    store: Path, wheels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], lost: str
) -> None:
    assert install(wheels) == 0 and install(wheels, "--torch", "cu130") == 0
    path = next((store / name("cpu")).glob(f"lib/python3*/site-packages/{lost}"))
    path.rename(tmp_path / "lost")
    capsys.readouterr()
    assert main(["list"]) == 0
    _, first, second = capsys.readouterr().out.splitlines()
    assert first.endswith(" MB  no, damaged") and second.endswith(" MB  yes")
    assert main(["list", "--json"]) == 0
    assert [bool(row["damaged"]) for row in json.loads(capsys.readouterr().out)] == [True, False]
    # One that can't be made leaves it as it is.
    none = tmp_path / "none"
    none.mkdir()
    assert install(none) == 1 and "damaged" in capsys.readouterr().out
    assert listed(capsys) == {name("cpu"): False, name("cu130"): True} and not path.exists()
    assert install(wheels) == 0
    said = capsys.readouterr().out
    assert f"{name('cpu')} is there but damaged" in said and "making it anew" in said
    assert said.endswith(f"{name('cpu')} is installed and in use now\n")
    assert leftovers(store) == [] and path.exists()
    assert main(["list"]) == 0 and "damaged" not in capsys.readouterr().out


def test_a_folder_that_cannot_be_written(
    store: Path, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    assert install(wheels) == 2
    assert str(tmp_path / "file") in (line := one_line(capsys)) and "XDG_DATA_HOME" in line
    if os.geteuid() != 0:
        (tmp_path / "closed").mkdir(mode=0o500)
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "closed"))
        assert install(wheels) == 2
        assert "Permission denied" in one_line(capsys)
    # A file system that nobody writes, not even root.
    monkeypatch.setenv("XDG_DATA_HOME", "/proc/self")
    assert install(wheels) == 2
    assert "/proc/self" in one_line(capsys)
    # What no environment can be made in, says venv from Python 3.11 on.
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "a:b"))
    capsys.readouterr()
    if install(wheels) != 0:
        assert "a:b" in one_line(capsys)
    assert leftovers(tmp_path / "a:b" / "tilewright" / "engines") == []


def test_a_full_disk_is_not_the_network(
    store: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_arguments: object, **_more: object) -> None:
        raise OSError(28, "No space left on device", str(store))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "mkdir", full)
        assert install(wheels) == 1
        assert one_line(capsys) .startswith(f"error: {store}: No space left on device: make room")

    def said(self: _installer.Workplace, *_arguments: object) -> list[str]:
        lines = ["ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"]
        raise _installer.failure(lines)

    monkeypatch.setattr(_installer.Installer, "install", said)
    assert install(wheels) == 1
    line = one_line(capsys)
    assert line.startswith("error: no room is left on the disk: ") and "XDG_DATA_HOME" in line and "network" not in line
    assert leftovers(store) == [] and listed(capsys) == {}


def test_too_little_room(
    store: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend_free(monkeypatch, store, 10**9)
    assert install(wheels) == 1
    assert "1000 MB free, about 1100 MB needed" in one_line(capsys)
    assert leftovers(store) == [] and listed(capsys) == {}


def test_installs_that_were_killed_are_never_used(
    store: Path, wheels: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["install", "--torch", "cpu", "--find-links", str(wheels)]
    began = time.monotonic()
    assert main(arguments) == 0
    whole = time.monotonic() - began
    assert main(["remove", "--all"]) == 0
    moments = random.Random(7)
    ended, seen = 0, 0
    for _ in range(8):
        process = child(*arguments)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(moments.uniform(0, whole))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        ended += process.returncode == -signal.SIGKILL
        seen += bool(leftovers(store))
        # Complete or not there at all.
        for there in listed(capsys):
            assert subprocess.run([_store.program(store / there)]).returncode == 0
        if os.path.lexists(store / "current"):
            assert (store / "current").resolve().name in listed(capsys)
        if listed(capsys):
            assert main(["remove", "--all"]) == 0
    assert ended > 0 and seen > 0, "no kill hit an install: its moments are wrong"
    assert main(arguments) == 0
    assert leftovers(store) == [] and listed(capsys) == {name("cpu"): True}


def test_what_outlives_a_killed_install_keeps_the_lock(
    store: Path, wheels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A program that takes long to say its version, in place of a pip that takes long.
    slow = engine(tmp_path / "slow", script=PROGRAM.replace("test -f", f"touch {tmp_path}/began; sleep 3; test -f"))
    process = child("install", "--torch", "cpu", "--find-links", str(wheels), "--wheel", str(slow))
    while not (tmp_path / "began").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.kill()
    process.communicate()
    assert len(leftovers(store)) == 1
    assert install(wheels) == 0
    assert "waiting for its end" in capsys.readouterr().out
    assert leftovers(store) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_stop_leaves_nothing(
    store: Path, wheels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    began = tmp_path / "began"
    slow = engine(tmp_path / "slow", script=f"#!/bin/sh\necho $$ >{began}\nsleep 60\n")
    process = child("install", "--torch", "cpu", "--find-links", str(wheels), "--wheel", str(slow))
    while not (began.exists() and began.read_text()):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert errors.startswith("error: interrupted") and errors.count("\n") == 1
    assert leftovers(store) == [] and listed(capsys) == {}
    with pytest.raises(ProcessLookupError):
        os.kill(int(began.read_text()), 0)


def test_two_installs_at_once(store: Path, wheels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store.mkdir(parents=True)
    with open(store / ".lock", "a+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        processes = [child("install", "--torch", "cpu", "--find-links", str(wheels)) for _ in range(2)]
        time.sleep(1.5)
        assert [process.poll() for process in processes] == [None, None]
    said = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert [errors for _, errors in said] == ["", ""]
    assert all(out.count("another install or removal is at work") == 1 for out, _ in said)
    assert sorted("was installed before" in out for out, _ in said) == [False, True]
    assert leftovers(store) == [] and listed(capsys) == {name("cpu"): True}


def test_leftovers_of_any_kind_are_removed(store: Path, wheels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (store / ".tilewright-folder" / "environment").mkdir(parents=True)
    (store / ".tilewright-file").write_text("")
    (store / ".tilewright-link").symlink_to("nowhere")
    (store / "current").symlink_to("nowhere")
    assert listed(capsys) == {}
    assert install(wheels) == 0
    assert leftovers(store) == [] and listed(capsys) == {name("cpu"): True}


def test_a_reader_that_has_gone_is_no_traceback(store: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    code = "import sys; from tilewright._environments import main; sys.exit(main(['list']))"
    answer = subprocess.run([sys.executable, "-c", code], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert answer.returncode == 0 and answer.stderr == ""


# What the machine is.

OLD = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Tue Jan  1 00:00:00 UTC 2026\nGCC version: 12.3\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (x@y)\nGCC version: 12.3\n"


@pytest.fixture
def tree(tmp_path: Path) -> Callable[..., Path]:
    def make(driver: str = "", gfx: tuple[int, ...] = ()) -> Path:
        root = tmp_path / f"root{len(list(tmp_path.iterdir()))}"
        root.mkdir()
        if driver:
            (root / "proc/driver/nvidia").mkdir(parents=True)
            (root / "proc/driver/nvidia/version").write_text(driver)
        if gfx:
            (root / "dev").mkdir()
            (root / "dev/kfd").write_text("")
            for number, version in enumerate(gfx):
                node = root / "sys/class/kfd/kfd/topology/nodes" / str(number)
                node.mkdir(parents=True)
                (node / "properties").write_text(f"cpu_cores_count 0\ngfx_target_version {version}\nvendor_id 4098\n")
        return root

    return make


def smi(tmp_path: Path, text: str, status: int = 0) -> str:
    path = tmp_path / "nvidia-smi"
    path.write_text(f"#!/bin/sh\ncat <<'EOF'\n{text}\nEOF\nexit {status}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("text", "flavour"),
    [
        (OLD.format("470.256.02"), "cpu"),
        (OLD.format("525.60.11"), "cpu"),
        (OLD.format("535.183.01"), "cu126"),
        (OLD.format("570.25"), "cu126"),
        (OLD.format("570.86.15"), "cu128"),
        (OPEN.format("580.65.06"), "cu130"),
        (OPEN.format("610.12"), "cu130"),
        ("nonsense", "cpu"),
    ],
)
def test_the_driver_decides(tree: Callable[..., Path], text: str, flavour: str) -> None:
    found, why = _flavours.detect(tree(text), None, "x86_64")
    assert found.name == flavour
    assert "NVIDIA driver" in why or text == "nonsense"


@pytest.mark.parametrize(
    ("gpus", "flavour"),
    [
        ("580.65.06, 6.1", "cu126"),
        ("580.65.06, 7.0", "cu126"),
        ("580.65.06, 8.9", "cu130"),
        ("580.65.06, 12.1", "cu130"),
        ("570.86.15, 12.0", "cu128"),
        ("580.65.06, 6.1\n580.65.06, 8.6", "cu126"),
        ("580.65.06, 6.1\n580.65.06, 12.0", "cu130"),
        ("535.54.03, 3.7", "cpu"),
        ("580.65.06, [N/A]", "cu130"),
    ],
)
def test_the_gpu_decides_too(tree: Callable[..., Path], tmp_path: Path, gpus: str, flavour: str) -> None:
    # Without the file, too: WSL has none.
    assert _flavours.detect(tree(), smi(tmp_path, gpus), "x86_64")[0].name == flavour


def test_an_nvidia_smi_that_fails_says_nothing(tree: Callable[..., Path], tmp_path: Path) -> None:
    failing = smi(tmp_path, "NVIDIA-SMI has failed", 9)
    assert _flavours.detect(tree(), failing, "x86_64")[0].name == "cpu"
    assert _flavours.detect(tree(OPEN.format("580.65.06")), failing, "x86_64")[0].name == "cu130"
    assert _flavours.detect(tree(), str(tmp_path / "none"), "x86_64")[0].name == "cpu"


def test_amd_gpus(tree: Callable[..., Path]) -> None:
    assert _flavours.detect(tree(gfx=(0, 110501)), None, "x86_64")[0].name == "rocm7.2"
    assert _flavours.detect(tree(gfx=(0, 110501)), None, "aarch64")[0].name == "cpu"
    assert _flavours.detect(tree(gfx=(0,)), None, "x86_64")[0].name == "cpu"
    assert _flavours.detect(tree(OPEN.format("580.65.06"), (0, 110501)), None, "x86_64")[0].name == "cu130"
    found, why = _flavours.detect(tree(OLD.format("470.1"), (0, 110501)), None, "x86_64")
    assert found.name == "rocm7.2" and "NVIDIA driver 470.1" in why


def test_machines_without_an_engine() -> None:
    good = ("Linux", "x86_64", (3, 10), 64, False, (2, 34), False)
    assert _flavours.refusal(*good) is None
    # There are no wheels for it, unless the user has one.
    line = _flavours.refusal("Linux", "aarch64", (3, 14), 64, False, (), False)
    assert line is not None and "Linux on x86-64:" in line
    assert _flavours.refusal("Linux", "aarch64", (3, 14), 64, False, (), True) is None
    line = _flavours.refusal("Darwin", "arm64", (3, 14), 64, False, (), True)
    assert line is not None and "Linux on x86-64 and aarch64:" in line
    for place, value, part in (
        (0, "Darwin", "Darwin"), (1, "riscv64", "riscv64"), (2, (3, 9), "3.10 to 3.14"), (2, (3, 15), "3.10 to 3.14"),
        (3, 32, "32 bits"), (4, True, "musl"), (5, (2, 33), "glibc 2.33: the engine needs 2.34"),
    ):  # fmt: skip
        line = _flavours.refusal(*good[:place], value, *good[place + 1 :])  # type: ignore[call-arg, arg-type]
        assert line is not None and part in line and "\n" not in line


def test_a_refused_machine_is_one_line(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert main(["install"]) == 2
    assert "riscv64" in one_line(capsys) and not store.exists()


# What installers say.


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ERROR: Could not find a version\nERROR: No matching distribution", "Could not find a version"),
        (
            "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('<X at 0x7>: Failed to "
            "establish a new connection: [Errno 111] Connection refused')': /simple/torch/\nERROR: No matching",
            "the index can't be reached ([Errno 111] Connection refused)",
        ),
        (
            "ERROR: Exception:\nTraceback (most recent call last):\n  File\nOSError: [Errno 28] x",
            "OSError: [Errno 28] x",
        ),
        ("error: Request failed\n  cause: Failed to fetch\n  cause: Refused", "Request failed: Refused"),
        ("error: Failed to fetch\n  Caused by: Refused", "Failed to fetch: Refused"),
        ("  × No solution found:\n  ╰─▶ Because a was not\n      found\n      hint: b", "Because a was not found"),
        ("", "it said nothing"),
    ],
)
def test_the_best_line_of_an_installer(text: str, reason: str) -> None:
    assert _installer.reason(text.splitlines()) == reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ERROR: Could not install: [Errno 28] No space left on device", "no room is left on the disk: Could not"),
        ("error: Failed\n  Caused by: x: No space left on device (os error 28)", "no room is left on the disk: x: No"),
        ("OSError: [Errno 122] Disk quota exceeded: '/x'", "no room is left on the disk: OSError"),
        ("error: Failed to write `/x`: Read-only file system (os error 30)", "the disk can't be written: Failed"),
        ("ERROR: [Errno 13] Permission denied: '/x'", "the disk can't be written: [Errno 13]"),
        (f"ERROR: Wheel 'torch' located at {__file__} is invalid.", f"{__file__}: is no wheel, or damaged"),
        ("cause: Because torch==2.11.0 has an invalid package format and you", "torch==2.11.0: its wheel is damaged"),
        ("error: Failed\n  cause: failed to copy: No space left (os error 28)", "no room is left on the disk: failed"),
        ("ERROR: Wheel 'torch' located at /gone/torch-2.whl is invalid.", None),
        ("WARNING: connection broken by 'X: [Errno 13] Permission denied': /simple/\nERROR: No matching", None),
        ("error: Request failed\n  Caused by: tcp connect error: Permission denied (os error 13)", None),
        ("ERROR: No matching distribution", None),
    ],
)
def test_what_is_wrong_on_this_machine_is_no_matter_of_the_index(text: str, reason: str | None) -> None:
    failed = _installer.failure(text.splitlines())
    assert isinstance(failed, _installer.LocalFault) == (reason is not None)
    assert str(failed).startswith(reason or "")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_meter() -> None:
    out = io.StringIO()
    progress = _installer.Progress(out)
    progress.begin()
    for million in range(0, 211):
        progress.meter(million * 10**6, 200 * 10**6, "fetched")
    assert out.getvalue().splitlines() == [f"  {step * 20} of about 200 MB fetched" for step in range(1, 11)]
    terminal = _Terminal()
    progress = _installer.Progress(terminal)
    progress.meter(10**6, 10**8, "fetched")
    progress.meter(10**7, 10**8, "fetched")
    progress.line("done")
    first, second = "  1 of about 100 MB fetched", "  10 of about 100 MB fetched"
    assert terminal.getvalue() == f"{first}\r{second}\r{'done'.ljust(len(second))}\n"


def test_arrivals_are_measured(tmp_path: Path) -> None:
    (tmp_path / ".tmpold").mkdir()
    (tmp_path / ".tmpold" / "file").write_bytes(bytes(1000))
    arrivals = _installer.Arrivals((tmp_path, tmp_path / "none"), ".tmp*", 10**6, "fetched")
    assert arrivals.bytes() == 0
    (tmp_path / ".tmpnew" / "torch").mkdir(parents=True)
    (tmp_path / ".tmpnew" / "torch" / "file").write_bytes(bytes(200))
    (tmp_path / ".tmpfile").write_bytes(bytes(30))
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_bytes(bytes(4))
    assert arrivals.bytes() == 230
    # An installer moves what is complete to its cache.
    (tmp_path / ".tmpnew").rename(tmp_path / "archive")
    assert arrivals.bytes() == 230


def test_what_comes_is_told_while_the_installer_is_silent(tmp_path: Path) -> None:
    seen = tmp_path / "seen"

    class Told(_installer.Progress):
        def meter(self, done: int, expected: int, how: str) -> None:
            super().meter(done, expected, how)
            seen.write_text("")

    script = (
        "import pathlib, sys, time\n"
        "pathlib.Path('pip-unpack-1').mkdir()\n"
        "pathlib.Path('pip-unpack-1/torch.whl').write_bytes(bytes(5_000_000))\n"
        f"while not pathlib.Path({str(seen)!r}).exists(): time.sleep(0.01)\n"
        "sys.stdout.write('the last line')\n"
    )
    out = io.StringIO()
    with open(tmp_path / "lock", "a+b") as lock:
        workplace = _installer.Workplace(tmp_path, lock)
        arrivals = _installer.Arrivals((tmp_path,), "pip-unpack-*", 10_000_000, "fetched")
        lines = workplace.run([sys.executable, "-c", script], Told(out), arrivals)
    assert lines == ["the last line"] and out.getvalue() == "  5 of about 10 MB fetched\n"


def test_pip_settings_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_pip_files(monkeypatch, tmp_path / "pip.conf")
    assert not _installer.pip_is_configured({})
    assert _installer.pip_is_configured({"PIP_INDEX_URL": "https://example.invalid"})
    (tmp_path / "pip.conf").write_text("[global]\n")
    assert _installer.pip_is_configured({})
