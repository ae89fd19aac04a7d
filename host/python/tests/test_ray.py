"""Batches on a cluster: the program's outputs, each once, whatever is killed."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from conftest import EXAMPLES, SHAPES, VAE, program

# Nothing is sent anywhere, and nothing is written to the user's home.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_AUTH_MODE"] = "disabled"
pytest.importorskip("ray")

import tilewright  # noqa: E402
from tilewright._tensors import to_safetensors  # noqa: E402
from tilewright.errors import TilewrightError  # noqa: E402
from tilewright.ray import decode, encode, generate, sample  # noqa: E402

#: A plan that is always the same: bits depend on it.
FIXED: dict[str, Any] = {"policy": "fixed", "cpus": 1, "device": "cpu"}

LATENT = EXAMPLES / "latents" / "astronaut.latent"

#: The variable by which this cluster's processes are told from any other's, which nothing here may harm.
MARK = "TILEWRIGHT_TEST_CLUSTER"
OWN = uuid.uuid4().hex

#: The share of the items that outlive the kills: all of them, 200 latents and 100 prompts, take a minute more.
SHARE = int(os.environ.get("TILEWRIGHT_RAY_SHARE", "4"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with a core each, on this machine."""
    ray: Any = importlib.import_module("ray")
    cluster_utils: Any = importlib.import_module("ray.cluster_utils")
    os.environ[MARK] = OWN
    # Sockets are in there: their paths may have 107 bytes.
    scratch = tempfile.mkdtemp(prefix="tw-ray-", dir="/tmp")
    node = {"num_cpus": 1, "object_store_memory": 100 << 20}
    head = {"include_dashboard": False, "temp_dir": scratch}
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={**node, **head})
    cluster.add_node(**node)
    ray.init(address=cluster.address)
    yield cluster
    ray.shutdown()
    cluster.shutdown()
    del os.environ[MARK]
    shutil.rmtree(scratch, ignore_errors=True)


def latents(folder: Path, count: int, side: int = 8) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        values = numpy.random.default_rng(number).standard_normal((1, 16, side, side)).astype(numpy.float32)
        (folder / f"{number:03}.safetensors").write_bytes(bytes(to_safetensors("latent", values)))
    return folder


def pixels(png: bytes) -> bytes:
    """The filtered rows of a PNG. Its texts have the time at which it was made."""
    data, at = b"", 8
    while at < len(png):
        length, kind = int.from_bytes(png[at : at + 4], "big"), png[at + 4 : at + 8]
        data += png[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += 12 + length
    return zlib.decompress(data)


def record_of(out: Path, name: str) -> dict[str, Any]:
    return json.loads((out / "records" / f"{name}.json").read_text())


def failures(out: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (out / "failed.jsonl").read_text().splitlines()]


def test_outputs_are_the_programs_and_are_made_once(cluster: Any, tmp_path: Path) -> None:
    source, out = latents(tmp_path / "in", 5), tmp_path / "out"
    (source / "broken.latent").write_bytes(b"nothing")
    seen: list[str] = []
    summary = decode(str(source), out, vae=VAE, on_item=lambda item: seen.append(str(item["name"])), **FIXED)
    assert (summary.made, summary.kept, summary.failed) == (5, 0, 1)
    assert sorted(seen) == ["000", "001", "002", "003", "004", "broken"]
    (failed,) = failures(out)
    assert failed["name"] == "broken" and "latent" in failed["error"] and "\n" not in failed["error"]
    for number in range(5):
        alone = tmp_path / "alone.png"
        program("decode", source / f"{number:03}.safetensors", "--vae", VAE, "--policy", "fixed", "-q", "-o", alone)
        assert pixels((out / f"{number:03}.png").read_bytes()) == pixels(alone.read_bytes())
        record = record_of(out, f"{number:03}")
        assert record["record"]["stage"] == "decode" and record["record"]["policy"]["name"] == "fixed"
    before = (out / "003.png").stat().st_mtime_ns
    # One that was cut off is made again, and what was broken is mended.
    (out / "004.png").write_bytes((out / "004.png").read_bytes()[:100])
    (source / "broken.latent").unlink()
    summary = decode(str(source / "*.safetensors"), out, vae=VAE, **FIXED)
    assert (summary.made, summary.kept, summary.failed) == (1, 4, 0)
    assert (out / "003.png").stat().st_mtime_ns == before
    assert not (out / "failed.jsonl").exists()


def test_other_settings_leave_what_is_there(cluster: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert generate(["a red circle"], out, model=SHAPES, sample={"steps": 1, "width": 64, "height": 64}, **FIXED).made == 1
    (picture,) = out.glob("*.png")
    content = picture.read_bytes()
    summary = generate(["a red circle"], out, model=SHAPES, sample={"steps": 2, "width": 64, "height": 64}, **FIXED)
    assert (summary.made, summary.failed) == (0, 1)
    assert "with other settings" in failures(out)[0]["error"]
    assert picture.read_bytes() == content


def test_files_that_change_are_other_items_and_outputs_are_none(cluster: Any, tmp_path: Path) -> None:
    source = latents(tmp_path / "in", 2)
    out = source / "out"
    assert decode(source, out, vae=VAE, **FIXED).made == 2
    summary = decode(source, out, vae=VAE, **FIXED)
    assert (summary.made, summary.kept, summary.failed) == (0, 2, 0)
    (source / "000.safetensors").write_bytes((source / "001.safetensors").read_bytes())
    before = (out / "000.png").read_bytes()
    summary = decode(source, out, vae=VAE, **FIXED)
    assert (summary.made, summary.kept, summary.failed) == (0, 1, 1)
    assert failures(out)[0]["name"] == "000" and (out / "000.png").read_bytes() == before
    with pytest.raises(TilewrightError, match="only outputs"):
        decode(out, out, vae=VAE, **FIXED)


def test_items_have_settings_of_their_own(cluster: Any, tmp_path: Path) -> None:
    table = tmp_path / "prompts.jsonl"
    rows = [
        {"name": "one", "prompt": "a red circle", "seed": 1},
        {"name": "deep/two", "prompt": "a red circle", "seed": 2},
        {"prompt": "a blue square", "batch": 2, "format": None},
    ]
    table.write_text("".join(json.dumps({key: value for key, value in row.items() if value is not None}) + "\n" for row in rows))
    out = tmp_path / "out"
    summary = generate(table, out, model=SHAPES, sample={"steps": 1, "width": 64, "height": 64}, **FIXED)
    assert summary.made == 3
    one, two = (out / "one.png").read_bytes(), (out / "deep" / "two.png").read_bytes()
    assert pixels(one) != pixels(two)
    (third,) = (path for path in (out / "records").glob("*.json") if path.stem.startswith("000002-"))
    assert [file["file"] for file in json.loads(third.read_text())["outputs"]] == [f"{third.stem}_{n}.png" for n in (1, 2)]
    with tilewright.Engine({"shapes": SHAPES}, device="cpu", policy="fixed") as engine:
        job = engine.generate("a red circle", model="shapes", sample={"steps": 1, "width": 64, "height": 64, "seed": 2})
        assert pixels(job.result()) == pixels(two)


def test_tables_and_datasets_hold_arrays_and_files(cluster: Any, tmp_path: Path) -> None:
    pyarrow, parquet, data = map(importlib.import_module, ("pyarrow", "pyarrow.parquet", "ray.data"))
    folder = latents(tmp_path / "in", 2)
    contents = [(folder / f"00{number}.safetensors").read_bytes() for number in (0, 1)]
    table = tmp_path / "latents.parquet"
    parquet.write_table(pyarrow.table({"name": ["a", "b"], "latent": contents}), table)
    assert decode(table, tmp_path / "out", vae=VAE, **FIXED).made == 2
    arrays = [numpy.random.default_rng(number).standard_normal((1, 16, 8, 8)).astype(numpy.float32) for number in (0, 1)]
    dataset = data.from_items([{"latent": one} for one in arrays])
    assert decode(dataset, tmp_path / "arrays", vae=VAE, **FIXED).made == 2
    pictures = {pixels(path.read_bytes()) for path in (tmp_path / "arrays").glob("*.png")}
    assert pictures == {pixels((tmp_path / "out" / f"{name}.png").read_bytes()) for name in "ab"}


def test_an_address_is_a_folder_like_any(cluster: Any, tmp_path: Path) -> None:
    source, out = latents(tmp_path / "in", 3), tmp_path / "out"
    # fsspec's name for this machine's disk, which is used as an object store is.
    places = f"local://{source}/*.safetensors", f"local://{out}"
    assert decode(places[0], places[1], vae=VAE, **FIXED).made == 3
    (out / "001.png").write_bytes(b"cut off")
    summary = decode(places[0], places[1], vae=VAE, **FIXED)
    assert (summary.made, summary.kept, summary.failed) == (1, 2, 0)
    with tilewright.Engine({"picture": {"vae": VAE}}, device="cpu", policy="fixed") as engine:
        job = engine.decode(source / "001.safetensors", model="picture")
        assert pixels(job.result()) == pixels((out / "001.png").read_bytes())
    with pytest.raises(TilewrightError, match="no file system"):
        decode(places[0], "nowhere://bucket/out", vae=VAE, **FIXED)


def test_all_kinds_of_work(cluster: Any, tmp_path: Path) -> None:
    encoded = encode(str(EXAMPLES / "latents" / "astronaut.png"), tmp_path / "latents", vae=VAE, **FIXED)
    assert encoded.made == 1 and (tmp_path / "latents" / "astronaut.latent").exists()
    assert decode(str(tmp_path / "latents" / "*.latent"), tmp_path / "back", vae=VAE, **FIXED).made == 1
    conditioning = tmp_path / "one.safetensors"
    program("embed", "a red circle", "--model", SHAPES, "-q", "-o", conditioning)
    sampled = sample(
        str(conditioning), tmp_path / "samples", model=SHAPES, sample={"steps": 1, "width": 64, "height": 64}, **FIXED
    )
    assert sampled.made == 1 and (tmp_path / "samples" / "one.safetensors").exists()


def test_the_history_is_a_table_for_pandas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pandas: Any = importlib.import_module("pandas")
    monkeypatch.setenv("TILEWRIGHT_HISTORY", str(tmp_path / "own.sqlite"))
    source = latents(tmp_path / "in", 2)
    for number in (0, 1):
        words = ["decode", source / f"{number:03}.safetensors", "--vae", VAE, "--policy", "fixed", "--device", "cpu", "-q"]
        program(*words, "-o", tmp_path / f"{number}.png")
    program("history", "export", tmp_path / "history.parquet")
    table = pandas.read_parquet(tmp_path / "history.parquet")
    lines = [json.loads(line) for line in program("history", "export", "-").splitlines()]
    assert [json.loads(text) for text in table["record"]] == lines
    assert list(table["policy"]) == ["fixed", "fixed"] and not table["failed"].any()
    assert list(table["peak_bytes"]) == [line["outcome"]["peak_bytes"] for line in lines]
    times = pandas.to_datetime([line["time"] for line in lines], utc=True)
    assert (abs(table["time"] - times.to_series(index=table.index)) < pandas.Timedelta("2ms")).all()


@pytest.mark.parametrize(
    ("items", "said"),
    [
        ([], "there is no item"),
        ([{"promt": "x"}], "item 1: promt: no such field"),
        ([{"name": "x"}], "item 1: prompt: an item to generate needs one"),
        ([{"prompt": "x", "name": "../x"}], "can't name an output"),
        ([{"prompt": "x", "name": "/x"}], "can't name an output"),
        ([{"prompt": "x", "name": "a"}, {"prompt": "y", "name": "a"}], "items 1 and 2 have the same name: a"),
        ([{"prompt": "x", "cfg": float("nan")}], "item 1: cfg"),
    ],
)
def test_items_that_make_no_sense_are_refused_before_anything_runs(tmp_path: Path, items: list[Any], said: str) -> None:
    with pytest.raises(TilewrightError, match=said):
        generate(items, tmp_path / "out", model=SHAPES, **FIXED)
    assert not (tmp_path / "out").exists()


def test_rows_of_a_dataset_that_make_no_sense_fail_alone(cluster: Any, tmp_path: Path) -> None:
    data: Any = importlib.import_module("ray.data")
    rows = [{"prompt": "x", "name": "../../x"}, {"prompt": "a red circle", "name": "fine"}]
    small: Any = {"steps": 1, "width": 64, "height": 64}
    summary = generate(data.from_items(rows), tmp_path / "out" / "deep", model=SHAPES, sample=small, **FIXED)
    assert (summary.made, summary.failed) == (1, 1)
    assert not list(tmp_path.glob("x*"))


def test_a_model_that_is_missing_is_one_line(cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(TilewrightError, match="nowhere") as error:
        decode(str(LATENT), tmp_path / "out", vae="/nowhere/vae.safetensors", **FIXED)
    assert "\n" not in str(error.value)


def test_nothing_else_needs_ray(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules.update(ray=None, pyarrow=None)\n"
        "import tilewright, tilewright.client\n"
        "from tilewright.ray.__main__ import main\n"
        "sys.exit(main(['decode', 'x.latent', '--vae', 'y', '-o', 'out']))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (run.returncode, run.stderr) == (2, "error: Ray Data is not installed: pip install 'tilewright[ray]'\n")


def test_the_command_says_what_became_of_it(cluster: Any, tmp_path: Path) -> None:
    source, out = latents(tmp_path / "in", 2), tmp_path / "out"

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tilewright.ray", *map(str, words), "--address", cluster.address]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    words = ["decode", f"{source}/*.safetensors", "--vae", VAE, "-o", out, "--cpus", 1, "--policy", "fixed"]
    first = run(*words)
    assert first.returncode == 0, first.stderr
    assert "2 made, 0 there already, 0 failed" in first.stdout
    (source / "bad.safetensors").write_bytes(b"x")
    second = run(*words)
    assert second.returncode == 1 and "0 made, 2 there already, 1 failed" in second.stdout
    third = run("decode", f"{tmp_path}/nothing*", "--vae", VAE, "-o", out)
    assert third.returncode == 2 and third.stderr.splitlines()[-1].startswith("error: ")


DRIVER = """
import sys
import ray
from tilewright.ray import {work}
ray.init(address={address!r}, log_to_driver=False)
print("begun", flush=True)
{call}
"""


def processes(begins: bytes) -> list[int]:
    """This cluster's running processes whose command begins so, by its last part's name."""
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            is_own = f"{MARK}={OWN}".encode() in (folder / "environ").read_bytes().split(b"\0")
            state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if is_own and state != "Z" and os.path.basename(command.partition(b"\0")[0]).startswith(begins):
            found.append(int(folder.name))
    return found


def engines() -> list[int]:
    """The engines of workers, which are programs that serve in private."""
    return processes(b"tilewright")


def actors() -> list[int]:
    return processes(b"ray::MapWorker")


def kill_one(found: Callable[[], list[int]], driver: subprocess.Popen[str]) -> None:
    """Kills one of the processes as soon as there is one, unless the driver has ended by then."""
    end = time.monotonic() + 120
    while driver.poll() is None:
        assert time.monotonic() < end
        for process in reversed(found()):
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
            return
        time.sleep(0.02)


@pytest.mark.parametrize("work", ["decode", "generate"])
def test_each_output_is_made_once_whatever_is_killed(cluster: Any, tmp_path: Path, work: str) -> None:
    out = tmp_path / "out"
    if work == "decode":
        count = 200 // SHARE
        source = latents(tmp_path / "in", count, side=16)
        call = f"print(decode({str(source)!r}, {str(out)!r}, vae={str(VAE)!r}, policy='fixed', cpus=1, device='cpu'), flush=True)"
    else:
        count = 100 // SHARE
        prompts = tmp_path / "prompts.txt"
        prompts.write_text("".join(f"a red circle, {number}\n" for number in range(count)))
        small = {"steps": 1, "width": 64, "height": 64}
        call = f"print(generate({str(prompts)!r}, {str(out)!r}, model={str(SHAPES)!r}, sample={small!r}, policy='fixed', cpus=1, device='cpu'), flush=True)"
    script = DRIVER.format(work=work, address=cluster.address, call=call)

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def await_outputs(least: int) -> None:
        end = time.monotonic() + 120
        while len(list(out.glob("*.png"))) < least:
            assert time.monotonic() < end
            time.sleep(0.02)

    with start() as driver:
        await_outputs(count // 10)
        kill_one(actors, driver)
        await_outputs(count // 4)
        kill_one(engines, driver)
        await_outputs(count // 2)
        assert driver.poll() is None, "nothing was left to go on with"
        driver.kill()
    was = {path.name: path.stat().st_mtime_ns for path in (out / "records").glob("*.json")}
    with start() as driver:
        kill_one(actors, driver)
        assert driver.stdout is not None
        told = driver.stdout.read()
    assert driver.returncode == 0 and "failed=0" in told, told
    outputs = sorted(path.stem for path in out.glob("*.png"))
    assert len(outputs) == count
    assert sorted(path.stem for path in (out / "records").glob("*.json")) == outputs
    # What was whole when the driver died was not made again.
    assert {name: (out / "records" / name).stat().st_mtime_ns for name in was} == was
    left = [path.name for path in out.iterdir() if path.suffix != ".png" and path.name != "records"]
    assert not left
    with tilewright.Engine({"picture": {"vae": VAE}, "shapes": SHAPES}, device="cpu", policy="fixed") as engine:
        for number in (0, count // 3, count - 1):
            if work == "decode":
                job = engine.decode(tmp_path / "in" / f"{number:03}.safetensors", model="picture")
            else:
                job = engine.generate(f"a red circle, {number}", model="shapes", sample={"steps": 1, "width": 64, "height": 64})
            (made,) = out.glob(f"{number:03}.png" if work == "decode" else f"{number:06}-*.png")
            assert pixels(made.read_bytes()) == pixels(job.result())
