"""Fetching models from a hub: whole, interrupted, damaged, refused, and with nowhere to put them."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from luced.front import hub as hub_module
from luced.front import incoming as incoming_module
from luced.front import pull as module
from luced.front.hub import Hub, PullError, choose, parse
from luced.front.incoming import Report
from luced.gguf import digests
from luced.gguf.catalogue import Catalogue
from tests.front.fake_hub import REVISION, FakeHub, serving
from tests.gguf.builder import small_file
from tests.gguf.split_test import part

CHUNK = 1000
REPO = "maker/Tiny-GGUF"
BIG = small_file() + random.Random(1).randbytes(10 * CHUNK)  # a model, and something after it
PARTS = [part(0, 2, "ab"), part(1, 2, "cd")]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "CHUNK_BYTES", CHUNK)
    monkeypatch.setattr(hub_module, "READ_BYTES", CHUNK // 3)
    monkeypatch.setattr(hub_module, "BACKOFF_S", 0.0)
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    files = {
        "README.md": b"hello",
        "Tiny-Q4_K_M.gguf": BIG,
        "Tiny-Q8_0.gguf": small_file(),
        "mmproj-F16.gguf": small_file(),
        "../evil.gguf": small_file(),
        "big/Tiny-F32-00001-of-00002.gguf": PARTS[0],
        "big/Tiny-F32-00002-of-00002.gguf": PARTS[1],
        "half/Tiny-Q2_K-00001-of-00002.gguf": PARTS[0],
    }
    with serving(FakeHub({REPO: files, "maker/one": {"One-Q8_0.gguf": small_file()}, "maker/none": {}})) as hub:
        yield hub


class Events(list[tuple[str, dict[str, Any]]]):
    def __call__(self, event: str, **fields: Any) -> None:
        self.append((event, fields))

    def of(self, event: str) -> list[dict[str, Any]]:
        return [fields for name, fields in self if name == event]


def pull(hub: FakeHub, folder: Path, name: str = REPO, report: Report | None = None) -> Path:
    repo, wanted = parse(name)
    client = Hub(hub.endpoint)
    return module.pull(
        client, choose(client.models(repo), repo, wanted), folder, Events() if report is None else report
    )


def refused(hub: FakeHub, folder: Path, name: str = REPO) -> PullError:
    with pytest.raises(PullError) as caught:
        pull(hub, folder, name)
    assert caught.value.remedy
    return caught.value


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_model_comes_with_its_digests(hub: FakeHub, tmp_path: Path) -> None:
    events = Events()
    path = pull(hub, tmp_path, report=events)
    assert path == tmp_path / REPO / "Tiny-Q4_K_M.gguf"
    assert path.read_bytes() == BIG
    known = digests.read(digests.path_of(path))
    assert known is not None
    assert known.origin == digests.Origin(len(BIG), hub.digest(REPO, path.name), f"hf:{REPO}:Q4_K_M@{REVISION}")
    expected = [hashlib.blake2b(BIG[i : i + CHUNK], digest_size=32).digest() for i in range(0, len(BIG), CHUNK)]
    assert list(known.chunks) == expected
    assert files(tmp_path / REPO) == {path.name, f"{path.name}.digests"}
    assert digests.is_due(path)
    assert events.of("start") == [{"files": [path.name], "bytes": len(BIG), "path": str(path)}]
    assert [e["done"] for e in events.of("fetch")] == sorted({e["done"] for e in events.of("fetch")})
    assert events.of("fetch")[-1]["done"] == events.of("fetch")[-1]["total"] == len(BIG)
    assert events.of("done") == [{"path": str(path), "fetched": len(BIG)}]
    assert Catalogue([tmp_path]).find(f"{REPO}:q4_k_m").path == path


def test_the_parts_of_a_split_model_come_together(hub: FakeHub, tmp_path: Path) -> None:
    hub.cuts = [10**9, 7]
    path = pull(hub, tmp_path, f"hf:{REPO}:F32")
    assert path == tmp_path / REPO / "big" / "Tiny-F32-00001-of-00002.gguf"
    entry = Catalogue([tmp_path]).find("tiny:f32")
    assert [p.read_bytes() for p in entry.paths] == PARTS
    assert entry.facts().n_parameters == 4 * 8


def test_no_part_is_in_place_before_all_are(hub: FakeHub, tmp_path: Path) -> None:
    hub.cuts = [10**9, *[0] * hub_module.MAX_TRIES]
    error = refused(hub, tmp_path, f"{REPO}:F32")
    assert error.status == 69
    assert not [name for name in files(tmp_path) if name.endswith(".gguf")]
    pull(hub, tmp_path, f"{REPO}:F32")
    assert len([name for name in files(tmp_path) if name.endswith(".gguf")]) == 2


def test_a_connection_that_breaks_is_opened_again(hub: FakeHub, tmp_path: Path) -> None:
    hub.cuts = [2500, 0, 1, 4000]
    assert pull(hub, tmp_path).read_bytes() == BIG
    begins = [int(r[6:-1]) for r in hub.ranges[1:]]
    assert len(begins) == 4
    assert begins == sorted(begins)
    assert 0 < begins[0] <= 2500


def test_a_connection_may_break_any_number_of_times_as_long_as_bytes_come(hub: FakeHub, tmp_path: Path) -> None:
    hub.cuts = [400] * 3 * hub_module.MAX_TRIES
    assert pull(hub, tmp_path).read_bytes() == BIG
    assert hub.cuts == []


def test_a_hub_that_serves_no_ranges(hub: FakeHub, tmp_path: Path) -> None:
    hub.cuts, hub.serves_ranges = [2500], False
    assert pull(hub, tmp_path).read_bytes() == BIG
    assert hub.ranges[1].startswith("bytes=")


def test_it_goes_on_where_it_was_interrupted(hub: FakeHub, tmp_path: Path) -> None:
    def interrupt(event: str, **fields: Any) -> None:
        if event == "fetch" and fields["done"] > 5 * CHUNK:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(hub, tmp_path, report=interrupt)
    partial = tmp_path / REPO / "Tiny-Q4_K_M.gguf.partial"
    n_kept = partial.stat().st_size
    assert n_kept > 5 * CHUNK
    assert files(tmp_path / REPO) == {partial.name, f"{partial.name}.digests"}
    events = Events()
    assert pull(hub, tmp_path, report=events).read_bytes() == BIG
    assert hub.ranges == ["", f"bytes={n_kept}-"]
    assert events.of("done")[0]["fetched"] == len(BIG) - n_kept
    assert not partial.exists()


def test_what_came_before_and_is_damaged_is_fetched_again(hub: FakeHub, tmp_path: Path) -> None:
    path = pull(hub, tmp_path)
    with path.open("r+b") as file:
        file.seek(3 * CHUNK + 5)
        file.write(b"damage")
    assert pull(hub, tmp_path).read_bytes() == BIG
    assert hub.ranges == ["", f"bytes={3 * CHUNK}-"]
    path.write_bytes(BIG[:-1])
    assert pull(hub, tmp_path).read_bytes() == BIG


def test_what_is_here_is_not_fetched_again(hub: FakeHub, tmp_path: Path) -> None:
    pull(hub, tmp_path)
    events = Events()
    pull(hub, tmp_path, report=events)
    assert len(hub.ranges) == 1
    assert events.of("done")[0]["fetched"] == 0


def test_a_copy_made_by_hand_gets_digests_and_another_file_is_left_alone(hub: FakeHub, tmp_path: Path) -> None:
    path = pull(hub, tmp_path)
    digests.path_of(path).unlink()
    pull(hub, tmp_path)
    assert digests.path_of(path).exists()
    assert len(hub.ranges) == 1
    digests.path_of(path).unlink()
    path.write_bytes(b"mine")
    assert "is not what the hub has" in str(refused(hub, tmp_path))
    assert path.read_bytes() == b"mine"


def test_a_new_version_takes_the_place_of_the_old_one(hub: FakeHub, tmp_path: Path) -> None:
    path = pull(hub, tmp_path)
    hub.repos[REPO]["Tiny-Q4_K_M.gguf"] = small_file() + b"new"
    assert pull(hub, tmp_path).read_bytes() == small_file() + b"new"
    known = digests.read(digests.path_of(path))
    assert known is not None
    assert known.origin.n_bytes == len(small_file()) + 3


def test_what_came_of_an_old_version_is_dropped(hub: FakeHub, tmp_path: Path) -> None:
    hub.cuts = [5000, *[0] * hub_module.MAX_TRIES]
    refused(hub, tmp_path)
    new = random.Random(2).randbytes(len(BIG))
    hub.repos[REPO]["Tiny-Q4_K_M.gguf"] = new
    hub.cuts, hub.ranges = [], []
    assert pull(hub, tmp_path).read_bytes() == new
    assert hub.ranges == [""]


def test_wrong_bytes_are_no_model_and_do_not_stay(hub: FakeHub, tmp_path: Path) -> None:
    hub.flipped = True
    error = refused(hub, tmp_path)
    assert error.status == 74
    assert hub.digest(REPO, "Tiny-Q4_K_M.gguf") in str(error)
    assert not [name for name in files(tmp_path) if name.endswith(".gguf")]
    hub.flipped = False
    assert pull(hub, tmp_path).read_bytes() == BIG


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("hf:maker/nosuch", 65, "there is no repository maker/nosuch"),
        ("hf:nosuch", 65, "'hf:nosuch' names no repository"),
        ("hf:../..", 65, "names no repository"),
        ("hf:maker/none", 65, "has no GGUF models"),
        (f"hf:{REPO}:Q5_0", 65, "has no Q5_0; there are Q4_K_M (0.00 GB), Q8_0 (0.00 GB), F32 (0.00 GB)"),
        (f"hf:{REPO}:Q2_K", 65, "has no Q2_K"),
    ],
)
def test_what_is_not_there_is_named(hub: FakeHub, tmp_path: Path, name: str, status: int, words: str) -> None:
    error = refused(hub, tmp_path, name)
    assert error.status == status
    assert words in str(error)
    assert not files(tmp_path)


def test_the_only_model_needs_no_type_and_a_file_may_be_named(hub: FakeHub, tmp_path: Path) -> None:
    assert pull(hub, tmp_path, "hf:maker/one").name == "One-Q8_0.gguf"
    assert pull(hub, tmp_path, f"hf:{REPO}:Tiny-Q8_0.gguf").name == "Tiny-Q8_0.gguf"
    del hub.repos[REPO]["Tiny-Q4_K_M.gguf"]
    assert "has no Q4_K_M; there are Q8_0" in str(refused(hub, tmp_path))
    hub.repos[REPO]["Other-Q8_0.gguf"] = small_file()
    error = refused(hub, tmp_path, f"{REPO}:q8_0")
    assert "has 2 models q8_0; there are Other-Q8_0 (0.00 GB), Tiny-Q8_0" in str(error)


def test_a_gated_repository_wants_a_token(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.gated = (REPO,)
    for token in ("", "hf_wrong"):
        monkeypatch.setenv("HF_TOKEN", token)
        error = refused(hub, tmp_path)
        assert error.status == 77
        assert "is gated" in str(error)
        assert "HF_TOKEN" in error.remedy
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert pull(hub, tmp_path).read_bytes() == BIG


def test_a_hub_that_is_not_there(tmp_path: Path) -> None:
    error = refused(FakeHub(endpoint="http://127.0.0.1:9"), tmp_path)
    assert error.status == 69
    assert "cannot be reached" in str(error)
    assert "HF_ENDPOINT" in error.remedy


@pytest.mark.parametrize("page", [b"<html>welcome</html>", b"[]", b"{}"])
def test_something_that_is_no_hub(hub: FakeHub, tmp_path: Path, page: bytes) -> None:
    hub.page = page
    error = refused(hub, tmp_path)
    assert error.status == 69
    assert "does not answer as the Hugging Face hub does" in str(error)


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9", "http://127.0.0.1:port"])
def test_an_endpoint_that_is_no_address(tmp_path: Path, endpoint: str) -> None:
    assert refused(FakeHub(endpoint=endpoint), tmp_path).status == 69


@pytest.mark.parametrize(("status", "n_tries"), [(503, hub_module.MAX_TRIES), (404, 1), (403, 1)])
def test_a_hub_that_fails(hub: FakeHub, tmp_path: Path, status: int, n_tries: int) -> None:
    hub.status = status
    assert refused(hub, tmp_path).status == {503: 69, 404: 65, 403: 77}[status]
    assert len(hub.ranges) == n_tries


def test_too_small_a_disk_is_known_before(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=module.SPARE_BYTES + len(BIG) - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    error = refused(hub, tmp_path)
    assert error.status == 73
    assert "0.00 GB are to be fetched" in str(error)
    assert "has 0.07 GB free" in str(error)
    assert hub.ranges == []


def test_a_full_disk_keeps_what_has_come(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = incoming_module.Incoming.write

    def fill_up(self: incoming_module.Incoming, at: int, data: bytes) -> None:
        if self.n_bytes > 4 * CHUNK:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, at, data)

    monkeypatch.setattr(incoming_module.Incoming, "write", fill_up)
    error = refused(hub, tmp_path)
    assert error.status == 74
    assert "the disk is full" in str(error)
    assert "is kept" in error.remedy
    n_kept = (tmp_path / REPO / "Tiny-Q4_K_M.gguf.partial").stat().st_size
    assert n_kept > 4 * CHUNK
    monkeypatch.setattr(incoming_module.Incoming, "write", write)
    assert pull(hub, tmp_path).read_bytes() == BIG
    assert hub.ranges[1] == f"bytes={n_kept}-"


def test_a_folder_that_cannot_be_written_to(hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    error = refused(hub, tmp_path / "file")
    assert "file" in str(error)
    assert error.status == 74


def test_two_at_once_do_not_mix(hub: FakeHub, tmp_path: Path) -> None:
    def pull_again(event: str, **fields: Any) -> None:
        if event == "fetch" and fields["done"] < fields["total"]:
            assert "another luced is fetching" in str(refused(hub, tmp_path))

    assert pull(hub, tmp_path, report=pull_again).read_bytes() == BIG


def luced_pull(hub: FakeHub, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.endpoint,
        "XDG_DATA_HOME": str(home),
        "HF_HUB_CACHE": str(home / "hf" / "hub"),
    }
    command = [sys.executable, "-m", "luced", "pull", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_the_command_in_a_pipe(hub: FakeHub, tmp_path: Path) -> None:
    done = luced_pull(hub, tmp_path, f"hf:{REPO}")
    assert done.returncode == 0
    assert done.stdout == f"{tmp_path}/luce/models/{REPO}/Tiny-Q4_K_M.gguf\n"
    assert "100 %" in done.stderr
    assert "\r" not in done.stderr
    assert "\x1b" not in done.stderr
    assert "luce-ask --model Tiny-Q4_K_M" in done.stderr


def test_the_command_as_json(hub: FakeHub, tmp_path: Path) -> None:
    done = luced_pull(hub, tmp_path, f"hf:{REPO}", "--json")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [e["event"] for e in events if e["event"] != "fetch"] == ["start", "done"]
    assert events[-2]["done"] == events[-2]["total"] == len(BIG)
    assert done.stderr == ""


def test_what_another_program_has_fetched_is_used_where_it_is(hub: FakeHub, tmp_path: Path) -> None:
    cached = tmp_path / "hf" / "hub" / "models--maker--Tiny-GGUF"
    blob = cached / "blobs" / hub.digest(REPO, "Tiny-Q4_K_M.gguf")
    link = cached / "snapshots" / REVISION / "Tiny-Q4_K_M.gguf"
    for path in (blob, link):
        path.parent.mkdir(parents=True)
    blob.write_bytes(BIG)
    link.symlink_to(blob)
    assert luced_pull(hub, tmp_path, f"hf:{REPO}").stdout == f"{link}\n"
    assert hub.ranges == []
    assert luced_pull(hub, tmp_path, f"hf:{REPO}:Q8_0").returncode == 0
    assert len(hub.ranges) == 1


def test_the_command_fails_with_remedy_and_status(hub: FakeHub, tmp_path: Path) -> None:
    done = luced_pull(hub, tmp_path, "hf:maker/nosuch")
    assert done.returncode == 65
    assert done.stdout == ""
    assert "luced: there is no repository maker/nosuch" in done.stderr
    assert "  -> " in done.stderr
    assert "Traceback" not in done.stderr
