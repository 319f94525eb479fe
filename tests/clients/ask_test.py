"""luce-ask as a process, against a fake daemon on a real socket."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from luce.errors import CODES, LuceError
from luce.messages import SAMPLING
from luce_shell import exits
from luce_shell.options import FIELDS, OptionError, read_options
from luce_shell.terminal import visible
from tests.clients.fake import USAGE, FakeDaemon
from tests.clients.shell import Screen, call, command, environment, open_terminal, read_all


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    with FakeDaemon(tmp_path / "luced.sock") as fake:
        yield fake


def ask(daemon: FakeDaemon, *words: str, stdin: bytes = b"", **more: str) -> subprocess.CompletedProcess[bytes]:
    return call("luce-ask", daemon.path, *words, stdin=stdin, **more)


def messages(daemon: FakeDaemon) -> Any:
    return daemon.asked("chat")[0].params["messages"]


@pytest.mark.parametrize("flags", [[], ["--no-stream"]])
def test_answer(daemon: FakeDaemon, flags: list[str]) -> None:
    done = ask(daemon, *flags, "why is it ©?", LC_ALL="C")
    assert (done.returncode, done.stdout, done.stderr) == (0, "why is it ©?\n".encode(), b"")
    params = daemon.asked("chat")[0].params
    assert params == {"model": "", "messages": [{"role": "user", "content": "why is it ©?"}], "stream": not flags}
    assert daemon.asked("hello")[0].params["client"] == "luce-ask"


def test_one_newline_at_the_end(daemon: FakeDaemon) -> None:
    assert ask(daemon, "line\n").stdout == b"line\n"
    assert ask(daemon, "line\n\n").stdout == b"line\n\n"


def test_what_is_piped_goes_first(daemon: FakeDaemon) -> None:
    ask(daemon, "explain", stdin="été\n\n".encode())
    assert messages(daemon) == [{"role": "user", "content": "été\n\nexplain"}]


def test_only_piped(daemon: FakeDaemon) -> None:
    assert ask(daemon, stdin=b"one\ntwo\n").stdout == b"one\ntwo\n"


def test_options(daemon: FakeDaemon) -> None:
    words = "-s short -m small -o temperature 0 -o seed 7 -o stop a -o stop b -o ignore_eos true -o logit_bias 5=-1.5"
    assert ask(daemon, *words.split(), "--", "-q").returncode == 0
    params = daemon.asked("chat")[0].params
    assert params == {
        "model": "small",
        "messages": [{"role": "system", "content": "short"}, {"role": "user", "content": "-q"}],
        "stream": True,
        "temperature": 0.0,
        "seed": 7,
        "stop": ["a", "b"],
        "ignore_eos": True,
        "logit_bias": {"5": -1.5},
    }


def test_json(daemon: FakeDaemon) -> None:
    done = ask(daemon, "--json", "a ©")
    assert (done.returncode, done.stderr, done.stdout.count(b"\n")) == (0, b"", 1)
    answer = json.loads(done.stdout)
    assert (answer["answer"], answer["finish"], answer["model"], answer["seed"]) == ("a ©", "stop", "fake", 17)
    assert (answer["usage"], answer["timings"]["load_s"], answer["degraded"]) == (USAGE, 0.5, [])
    assert answer["choices"] == [{"index": 0, "text": "a ©", "finish": "stop", "tokens": [1, 2]}]


def test_json_of_several(daemon: FakeDaemon) -> None:
    answer = json.loads(ask(daemon, "--json", "-o", "n", "2", "two").stdout)
    assert [choice["text"] for choice in answer["choices"]] == ["first", "second"]
    answer = json.loads(ask(daemon, "--json", "-o", "logprobs", "2", "logprobs").stdout)
    assert answer["choices"][0]["logprobs"][0]["top"][0] == {"id": 7, "bytes": [0xC3], "logprob": -0.5, "top": []}


def test_what_was_not_done_is_told(daemon: FakeDaemon) -> None:
    done = ask(daemon, "degraded")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"degraded\n", b"luce-ask: it was shortened\n")


@pytest.mark.parametrize(
    ("name", "code"), [("context_too_long", 65), ("busy", 75), ("no_memory", 78), ("engine_failed", 70)]
)
def test_errors(daemon: FakeDaemon, name: str, code: int) -> None:
    done = ask(daemon, f"error {name}")
    assert (done.returncode, done.stdout) == (code, b"")
    first, second = done.stderr.decode().splitlines()
    assert first == f"luce-ask: a fault called {name}"
    assert second.startswith("  ")
    done = ask(daemon, "--json", f"error {name}")
    assert (done.returncode, done.stderr) == (code, b"")
    assert json.loads(done.stdout)["error"]["name"] == name


def test_no_daemon(tmp_path: Path) -> None:
    done = ask(FakeDaemon(tmp_path / "none.sock"), "hello")
    assert (done.returncode, done.stdout) == (69, b"")
    assert done.stderr.decode() == (
        f"luce-ask: no daemon listens on {tmp_path}/none.sock\n  start the daemon: `luced serve`\n"
    )


def test_the_daemon_goes_away(daemon: FakeDaemon) -> None:
    done = ask(daemon, "die")
    assert (done.returncode, done.stdout) == (69, b"working")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "there is no question"),
        (["-o", "temprature", "1", "q"], "did you mean 'temperature'?"),
        (["-o", "top_k", "1.5", "q"], "top_k is an integer, not '1.5'"),
        (["-o", "stream", "true", "q"], "no parameter 'stream'"),
        (["-o", "n", "2", "q"], "n shows only with --json"),
        (["--jsno", "q"], "--jsno"),
    ],
)
def test_wrong_use(daemon: FakeDaemon, words: list[str], message: str) -> None:
    done = ask(daemon, *words)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"luce-ask: ")
    assert message in done.stderr.decode()


def test_input_that_is_no_text(daemon: FakeDaemon) -> None:
    done = ask(daemon, stdin=b"caf\xe9")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"not UTF-8 (byte 3)" in done.stderr


def start(daemon: FakeDaemon, *words: str, **streams: Any) -> subprocess.Popen[bytes]:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a background job ignores, its children would too
    env = environment(daemon.path)
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, **streams}
    return subprocess.Popen(command("luce-ask", *words), env=env, **streams)


def test_input_that_never_ends(daemon: FakeDaemon) -> None:
    done = call("luce-ask", daemon.path, "-f", "/dev/zero", "hello")
    assert (done.returncode, done.stdout) == (65, b"")
    assert b"/dev/zero has more than the 16 MiB that the daemon takes at once" in done.stderr


@pytest.mark.parametrize(
    ("redirection", "message"),
    [(">/dev/full", b"standard output: No space left on device"), (">&-", b"standard output is closed")],
)
def test_output_that_cannot_be_written(daemon: FakeDaemon, redirection: str, message: bytes) -> None:
    asked = f"{shlex.join(command('luce-ask', 'hello'))} {redirection}"
    done = subprocess.run(["sh", "-c", asked], env=environment(daemon.path), stdin=subprocess.DEVNULL, stderr=-1)
    assert done.returncode == 74
    assert message in done.stderr
    assert done.stderr.count(b"\n") == 2


def test_interrupt(daemon: FakeDaemon) -> None:
    with start(daemon, "wait", stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(7) == b"working"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"")
    assert daemon.wait_for("cancel").params == {"id": daemon.asked("chat")[0].id}


def test_nobody_reads(daemon: FakeDaemon) -> None:
    with start(daemon, "huge", stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"x"
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_progress_on_a_terminal(daemon: FakeDaemon) -> None:
    ours, its = open_terminal()
    with start(daemon, "progress", stderr=its) as process:
        os.close(its)
        shown = read_all(ours)
    assert process.returncode == 0
    lines = [line.decode() for line in shown.split(b"\r\x1b[K")]
    assert lines == [
        "",
        "loading the model: 0.00 of 0.00 GB",
        "waiting: 2 requests ahead",
        "reading the question: 5 of 9 tokens (4 cached)",
        "",
    ]


def test_interrupt_on_a_terminal(daemon: FakeDaemon) -> None:
    ours, its = open_terminal()
    with start(daemon, "wait", stdout=its, stderr=its) as process:
        os.close(its)
        assert os.read(ours, 7) == b"working"
        process.send_signal(signal.SIGINT)
        assert read_all(ours) == b"\r\n"
    assert process.returncode == 130


def shown(daemon: FakeDaemon, *words: str, **more: str) -> list[str]:
    """The lines on a terminal of 40 columns once luce-ask has ended."""
    ours, its = open_terminal(40)
    env = environment(daemon.path, **more)
    with subprocess.Popen(command("luce-ask", *words), env=env, stdin=its, stdout=its, stderr=its) as process:
        os.close(its)
        screen = Screen(40, 24)
        screen.feed(read_all(ours))
    assert process.returncode == 0
    return screen.lines


def test_markdown_on_a_terminal(daemon: FakeDaemon) -> None:
    assert shown(daemon, "a **b** c\n\n1. `d`") == ["a b c", "", " 1 d"]
    for words, more in ((["--no-markdown"], {}), (["--no-stream"], {}), ([], {"TERM": "dumb"})):
        assert shown(daemon, *words, "a **b** c", **more) == ["a **b** c"]
    assert ask(daemon, "a **b** c").stdout == b"a **b** c\n"


def test_fragments(daemon: FakeDaemon, tmp_path: Path) -> None:
    (tmp_path / "one").write_text("first\n\n")
    (tmp_path / "two").write_text("second\n")
    files = ["-f", str(tmp_path / "one"), "-f", str(tmp_path / "two")]
    assert ask(daemon, *files, "what?", stdin=b"piped\n").stdout == b"first\n\nsecond\n\npiped\n\nwhat?\n"
    assert ask(daemon, "-f", "-", *files[:2], stdin=b"piped\n").stdout == b"piped\n\nfirst\n"
    done = ask(daemon, "-f", str(tmp_path / "none"), "what?")
    assert (done.returncode, done.stdout) == (74, b"")
    assert b"No such file" in done.stderr


CODE = "see:\n\n```py\na = 1\n```\n~~~~\n```\nb\n```\n~~~~\nor\n```c\nd\n```\nend"


def test_extract(daemon: FakeDaemon) -> None:
    assert ask(daemon, "-x", CODE).stdout == b"a = 1\n"
    assert ask(daemon, "--xl", CODE).stdout == b"d\n"
    assert ask(daemon, "--xl", CODE.partition("or")[0]).stdout == b"```\nb\n```\n"
    done = ask(daemon, "-x", "no code")
    assert (done.returncode, done.stdout) == (0, b"no code\n")
    assert b"there is no fenced code" in done.stderr


def test_usage(daemon: FakeDaemon) -> None:
    done = ask(daemon, "-u", "hello")
    assert done.stdout == b"hello\n"
    assert done.stderr.decode() == (
        "luce-ask: 9 tokens read (4 of them cached), 2 written (8.0 tokens/s), 0.88 s; seed 17\n"
    )


def test_class(daemon: FakeDaemon) -> None:
    ask(daemon, "--class", "batch", "hello")
    assert daemon.asked("chat")[0].params["priority"] == "batch"


def test_words_that_are_no_text(daemon: FakeDaemon) -> None:
    for words in (["caf\udce9"], ["-s", "caf\udce9", "q"], ["-o", "stop", "caf\udce9", "q"]):
        done = ask(daemon, *words)
        assert (done.returncode, done.stdout) == (2, b"")
        assert b"is not UTF-8 (byte 3)" in done.stderr


def test_no_progress_in_a_pipe(daemon: FakeDaemon) -> None:
    assert ask(daemon, "progress").stderr == b""


def test_the_start_imports_nothing_that_takes_long() -> None:
    script = "import sys, luce_shell.ask, luce_shell.luce, luce_shell.render; print(*sorted(sys.modules))"
    env = environment(Path("none"))
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, check=True)
    late = {"rich", "markdown_it", "sqlite3", "json", "shutil", "trio", "logging", "importlib.metadata"}
    assert not late & set(done.stdout.decode().split())


def test_control_characters_are_shown() -> None:
    assert visible("a\x1b[2Jb\n\tc\x9b\x7f\r") == "a␛[2Jb\n\tc\ufffd␡␍"


def test_every_code_has_an_exit() -> None:
    listed = {int(line.split()[0]) for line in exits.HELP.splitlines()[1:]}
    for code in CODES:
        assert exits.exit_code(LuceError(code.name, "")) in listed


def test_every_parameter_can_be_given() -> None:
    example = {"int": "1", "float": "1", "str": "x", "bool": "true", "list[str]": "x", "list[int]": "1"}
    for name, field in FIELDS.items():
        assert name in read_options([(name, example.get(field.type, "1=1"))])
    assert set(FIELDS) == {f.name for f in SAMPLING} - {"stream"}
    with pytest.raises(OptionError):
        read_options([("ignore_eos", "yes")])
