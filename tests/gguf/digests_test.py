"""Digests beside a file, and what they find."""

from __future__ import annotations

import functools
import hashlib
import io
import os
import random
import time
from pathlib import Path

import pytest

from luced.errors import ModelError
from luced.gguf import digests
from luced.gguf.catalogue import Entry
from luced.gguf.digests import BadRange, Check, Hasher, Origin
from luced.gguf.verify import verify
from tests.gguf.builder import small_file

CHUNK = 1000
CONTENT = small_file() + random.Random(1).randbytes(7 * CHUNK)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "CHUNK_BYTES", CHUNK)
    monkeypatch.setattr(digests, "READ_BYTES", CHUNK // 3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return fetched(tmp_path / "tiny.gguf", CONTENT)


def fetched(path: Path, content: bytes) -> Path:
    """A file with its digests."""
    path.write_bytes(content)
    origin = Origin(len(content), hashlib.sha256(content).hexdigest(), "hf:maker/tiny:Q8_0@main")
    with digests.path_of(path).open("w") as out:
        hasher = Hasher(origin, out)
        hasher.update(content)
        hasher.finish()
    return path


def damage(path: Path, *offsets: int) -> None:
    content = bytearray(path.read_bytes())
    for offset in offsets:
        content[offset] ^= 1
    path.write_bytes(content)


def bad_ranges(*paths: Path, n_threads: int = 2) -> list[BadRange]:
    with Check(paths, n_threads) as check:
        assert check.wait(60)
        return check.bad_ranges()


@pytest.mark.parametrize("step", [1, 7, CHUNK - 1, CHUNK, 3 * CHUNK + 1, len(CONTENT)])
def test_they_do_not_depend_on_how_the_bytes_came(step: int) -> None:
    out = io.StringIO()
    hasher = Hasher(Origin(len(CONTENT), "", ""), out)
    for i in range(0, len(CONTENT), step):
        hasher.update(CONTENT[i : i + step])
    hasher.finish()
    chunks = [CONTENT[i : i + CHUNK] for i in range(0, len(CONTENT), CHUNK)]
    assert out.getvalue().splitlines()[1:] == [hashlib.blake2b(c, digest_size=32).hexdigest() for c in chunks]
    assert hasher.sha256 == hashlib.sha256(CONTENT).hexdigest()


@pytest.mark.parametrize("n_bytes", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1])
def test_they_are_read_as_written(tmp_path: Path, n_bytes: int) -> None:
    known = digests.read(digests.path_of(fetched(tmp_path / "f", CONTENT[:n_bytes])))
    assert known is not None
    assert known.is_complete
    assert known.origin.n_bytes == n_bytes


def test_a_last_line_that_was_not_written_to_its_end_does_not_count(path: Path) -> None:
    beside = digests.path_of(path)
    text = beside.read_text()
    beside.write_text(text[:-10])
    known = digests.read(beside)
    assert known is not None
    assert len(known.chunks) == text.count("\n") - 2
    assert not known.is_complete


@pytest.mark.parametrize("text", ["", "{}\n", "[]\n", "x\n", '{"chunk_bytes": 7}\n', "\xff"])
def test_damaged_digests_are_said_to_be(path: Path, text: str) -> None:
    digests.path_of(path).write_text(text)
    with pytest.raises(ModelError, match="is damaged"):
        digests.read(digests.path_of(path))


def test_a_line_that_is_no_digest_is_damage(path: Path) -> None:
    digests.path_of(path).write_text(digests.path_of(path).read_text() + "abcd\n")
    with pytest.raises(ModelError, match="is damaged"):
        digests.read(digests.path_of(path))


@pytest.mark.parametrize("n_threads", [1, 3, 50])
def test_a_file_in_order_has_no_bad_ranges(path: Path, n_threads: int) -> None:
    assert bad_ranges(path, n_threads=n_threads) == []


def test_bad_ranges_are_named_and_joined(path: Path) -> None:
    damage(path, 5, 1999, 4000, len(CONTENT) - 1)
    last = len(CONTENT) // CHUNK * CHUNK
    assert bad_ranges(path) == [
        BadRange(path, 0, 2000),
        BadRange(path, 4000, 5000),
        BadRange(path, last, len(CONTENT)),
    ]


def test_each_byte_counts(path: Path) -> None:
    for offset in range(0, len(CONTENT), 97):
        damage(path, offset)
        assert len(bad_ranges(path)) == 1
        damage(path, offset)


def test_another_size_is_an_error(path: Path) -> None:
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(ModelError, match=f"has {len(CONTENT) - 1} bytes, {len(CONTENT)} were fetched") as caught:
        Check([path])
    assert caught.value.remedy == "repair it: luced pull hf:maker/tiny:Q8_0"


def test_a_file_without_digests_is_not_looked_at(tmp_path: Path) -> None:
    (tmp_path / "f.gguf").write_bytes(CONTENT)
    with Check([tmp_path / "f.gguf"]) as check:
        assert check.wait(0)
        assert (check.total_bytes, check.bad_ranges()) == (0, [])


def test_a_check_that_is_left_ends(path: Path) -> None:
    with Check([path], 1) as check:
        pass
    assert check.wait(0)


def test_a_file_that_goes_away_is_an_error(path: Path) -> None:
    with Check([path], 1) as check:
        check.wait(60)
    check._todo = iter([(path.with_name("gone"), 0, b"")])
    check._stopped = False
    check._run()
    with pytest.raises(ModelError, match="cannot be read"):
        check.raise_if_bad()


def test_a_check_is_due_after_a_change_and_after_a_week(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests.mark_unchecked(path)
    assert digests.is_due(path)
    later_ns = path.stat().st_ctime_ns + 10**9
    monkeypatch.setattr(os, "utime", functools.partial(os.utime, ns=(later_ns, later_ns)))
    digests.mark_checked(path)
    for days, is_due in ((0, False), (6, False), (8, True)):
        monkeypatch.setattr(time, "time_ns", lambda days=days: later_ns + days * 86400 * 10**9)
        assert digests.is_due(path) is is_due
    digests.path_of(path).unlink()
    digests.mark_checked(path)
    assert not digests.is_due(path)


def test_verify_says_what_it_compared(path: Path, tmp_path: Path) -> None:
    def entry(path: Path, place: str = "folder") -> Entry:
        return Entry("tiny", path, path.stat().st_size, place=place)  # type: ignore[arg-type]

    def progress(name: str, done: int, total: int) -> None:
        assert done <= total

    assert verify(entry(path), progress).checked == "digests"
    damage(path, 2500)
    verdict = verify(entry(path), progress)
    assert verdict.problem == f"{path}: bytes 2000 to 2999 are not what was fetched"
    assert verdict.remedy == "repair it: luced pull hf:maker/tiny:Q8_0"
    assert verdict.ranges == [BadRange(path, 2000, 3000)]
    digests.path_of(path).unlink()
    assert (verify(entry(path), progress).checked, verify(entry(path), progress).problem) == ("header", "")
    path.write_bytes(CONTENT[:50])
    assert "do not fit in the file" in verify(entry(path), progress).problem

    blob = tmp_path / hashlib.sha256(CONTENT).hexdigest()
    blob.write_bytes(CONTENT)
    link = tmp_path / "link.gguf"
    link.symlink_to(blob)
    verdict = verify(entry(link, "hub"), progress)
    assert (verdict.checked, verdict.problem) == ("sha256", "")
    damage(blob, 4321)
    assert "it should have" in verify(entry(link, "hub"), progress).problem
