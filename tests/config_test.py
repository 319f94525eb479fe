"""Where settings come from, which of them count, and what is said of wrong ones."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from luced import config
from luced.config import Config
from luced.errors import ModelError
from tests.gguf.builder import small_file


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without settings, on a machine without settings."""
    for name in [name for name in os.environ if name.startswith(("LUCE_", "HF_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(config, "SYSTEM_FILE", tmp_path / "etc" / "luced.toml")
    for path in (system_file(tmp_path), user_file(tmp_path)):
        path.parent.mkdir(parents=True)
    return tmp_path


def system_file(home: Path) -> Path:
    return home / "etc" / "luced.toml"


def user_file(home: Path) -> Path:
    return home / ".config" / "luce" / "luced.toml"


def refused(**flags: object) -> ModelError:
    with pytest.raises(ModelError) as caught:
        config.load(**flags)
    assert caught.value.name == "bad_config"
    return caught.value


def test_the_object_and_the_table_of_settings_have_the_same_defaults() -> None:
    bare = Config(Path("s"))
    for setting in config.SETTINGS:
        if setting.name not in config.PATHS:
            assert getattr(bare, setting.name) == setting.default, setting.name


def test_each_source_overrules_those_before_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (config.load().n_ctx, config.load().sources.get("n_ctx")) == (0, None)
    system_file(home).write_text('n_ctx = 1\nkv_type = "q8_0"')
    assert (config.load().n_ctx, config.load().sources["n_ctx"]) == (1, str(system_file(home)))
    user_file(home).write_text("n_ctx = 2")
    assert (config.load().n_ctx, config.load().sources["n_ctx"]) == (2, str(user_file(home)))
    monkeypatch.setenv("LUCE_N_CTX", "3")
    assert (config.load().n_ctx, config.load().sources["n_ctx"]) == (3, "$LUCE_N_CTX")
    assert (config.load(n_ctx=4).n_ctx, config.load(n_ctx=4).sources["n_ctx"]) == (4, "command line")
    assert config.load(n_ctx=None).n_ctx == 3
    assert (config.load().kv_type, config.load().sources["kv_type"]) == ("q8_0", str(system_file(home)))


def test_xdg_config_home_is_looked_at(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "xdg" / "luce").mkdir(parents=True)
    (home / "xdg" / "luce" / "luced.toml").write_text("n_batch = 8")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "xdg"))
    assert config.load().n_batch == 8


def test_aliases_and_models_are_merged_key_by_key(home: Path) -> None:
    system_file(home).write_text('[aliases]\na = "one"\nb = "two"\n[models.Tiny]\ntop_k = 1\ntemperature = 0\n')
    user_file(home).write_text('[aliases]\nb = "three"\n[models."tiny"]\ntop_k = 7\nkv_type = "f32"\n')
    settings = config.load()
    assert settings.aliases == {"a": "one", "b": "three"}
    assert settings.of_model(["x", "TINY"]) == {"top_k": 7, "temperature": 0.0, "kv_type": "f32"}
    assert settings.of_model(["other"]) == {}
    assert [name for name in settings.models if name.lower() == "tiny"] == ["tiny"]
    assert settings.sources["models.tiny.temperature"] == str(system_file(home))
    assert settings.sources["models.tiny.top_k"] == settings.sources["aliases.b"] == str(user_file(home))


def test_folders(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = (home / ".local/share/luce/models", Path("/var/lib/luce/models"), home / ".cache/huggingface/hub")
    assert config.load().search_path == usual
    user_file(home).write_text('model_dirs = ["~/a", "/b"]\npull_dir = "~/pulled"')
    assert config.load().search_path == (home / "a", Path("/b"), home / "pulled", *usual[1:])
    monkeypatch.setenv("LUCE_MODEL_DIRS", "/c:/d")
    monkeypatch.setenv("HF_HOME", "/hf")
    assert config.load().search_path == (Path("/c"), Path("/d"), home / "pulled", usual[1], Path("/hf/hub"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("n_cxt = 5", "n_cxt is no setting; did you mean n_ctx?"),
        ("zzz = 5", "zzz is no setting; there are model_dirs,"),
        ("[alias]\na = 'b'", "alias is no setting; did you mean aliases?"),
        ("n_ctx = 'many'", "n_ctx must be int, not 'many'"),
        ("n_ctx = true", "n_ctx must be int, not True"),
        ("n_ctx = -1", "n_ctx must be at least 0, not -1"),
        ("n_batch = 0", "n_batch must be at least 1, not 0"),
        ("kv_type = 'f16/q4_0/q4_0'", "kv_type must be str[/str], not 'f16/q4_0/q4_0'"),
        ("kv_type = 'f16/q3'", "kv_type must be one of f32, f16, bf16, q8_0, q4_0, not 'f16/q3'"),
        ("kv_type = 'q3'", "kv_type must be one of f32, f16, bf16, q8_0, q4_0, not 'q3'"),
        ("model_dirs = ['models']", "model_dirs must be an absolute path or begin with ~/, not 'models'"),
        ("model_dirs = '/a'", "model_dirs must be list[str], not '/a'"),
        ("[models.tiny]\ntop_p = 1.5", 'models."tiny": top_p must be at most 1, not 1.5'),
        ("[models.tiny]\ntemprature = 1", 'models."tiny": temprature is no setting; did you mean temperature?'),
        ("[models.tiny]\nn = 2", "n is no setting"),
        ("[models]\ntiny = 3", 'models."tiny" must be a table'),
        ("aliases = 3", "aliases must be a table"),
        ("[aliases]\na = 3", "aliases.a must be the name of a model"),
        ("n_ctx = ", "is no TOML"),
        ("socket = '/s'", "socket is no setting"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name_the_key_and_the_remedy(home: Path, text: str, words: str) -> None:
    user_file(home).write_text(text)
    message = refused().message
    assert words in message
    assert str(user_file(home)) in message


def test_a_file_that_cannot_be_read_is_no_absent_one(home: Path) -> None:
    user_file(home).write_bytes(b"n_ctx = 1 # \xff")
    assert "cannot be read" in refused().message
    user_file(home).unlink()
    user_file(home).mkdir()
    assert "cannot be read" in refused().message


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("LUCE_N_CTX", "many", "$LUCE_N_CTX: n_ctx must be int, not 'many'"),
        ("LUCE_N_CXT", "5", "$LUCE_N_CXT is no setting; did you mean $LUCE_N_CTX?"),
        ("LUCE_SOCKT", "/s", "did you mean $LUCE_SOCKET?"),
        ("LUCE_ISA", "mmx", "one of auto, baseline"),
    ],
)
def test_a_wrong_variable_is_refused(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: str) -> None:
    monkeypatch.setenv(variable, value)
    assert words in refused().message


def test_variables_of_others_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUCE_COLOUR", "blue")
    monkeypatch.setenv("LUCE_N_CTX", "")
    assert config.load().n_ctx == 0


def test_it_is_frozen(home: Path) -> None:
    user_file(home).write_text("[models.tiny]\ntop_k = 1")
    settings = config.load()
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.n_ctx = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        settings.models["tiny"]["top_k"] = 2  # type: ignore[index]


@pytest.fixture
def tiny(home: Path) -> None:
    """A model of this user."""
    path = home / ".local/share/luce/models/tiny.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(small_file())


def luced_config(home: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "luced", "config", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


@pytest.mark.usefixtures("tiny")
def test_the_command_shows_value_and_source(home: Path) -> None:
    user_file(home).write_text('n_ctx = 64\n[aliases]\nfast = "tiny"\n[models.tiny]\ntop_k = 1')
    done = luced_config(home, LUCE_KV_TYPE="q8_0/q4_0")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["n_ctx", "64", str(user_file(home))] in lines
    assert ["kv_type", "q8_0/q4_0", "$LUCE_KV_TYPE"] in lines
    assert ["n_batch", "512", "default"] in lines
    assert ["aliases.fast", "tiny", str(user_file(home))] in lines
    assert ["models.tiny.top_k", "1", str(user_file(home))] in lines


def test_the_command_as_json(home: Path) -> None:
    rows = {row["key"]: row for row in map(json.loads, luced_config(home, "--json").stdout.splitlines())}
    assert rows.keys() >= {"socket", "model_dirs", "usual_dirs", "pull_dir", *(f.name for f in config.SETTINGS)}
    assert rows["model_dirs"]["value"] == []
    assert rows["cache_bytes"]["source"] == "default"
    assert all(row["doc"] for row in rows.values())


@pytest.mark.usefixtures("tiny")
def test_the_command_says_which_names_mean_nothing(home: Path) -> None:
    user_file(home).write_text('[aliases]\nlost = "nosuch"\n[models.nosuch]\ntop_k = 1\n[models.tiny]\ntop_k = 1')
    rows = {row["key"]: row for row in map(json.loads, luced_config(home, "--json").stdout.splitlines())}
    assert "'lost' stands for 'nosuch', and there is no such model" in rows["aliases.lost"]["problem"]
    assert rows["models.nosuch.top_k"]["problem"] == "no model has this name now"
    assert rows["models.tiny.top_k"]["problem"] == rows["n_ctx"]["problem"] == ""


def test_the_command_refuses_what_the_daemon_refuses(home: Path) -> None:
    user_file(home).write_text("n_cxt = 5")
    done = luced_config(home)
    assert done.returncode == 78
    assert "did you mean n_ctx?" in done.stderr
    assert "  -> " in done.stderr
    assert "Traceback" not in done.stderr


def test_every_setting_is_in_the_document() -> None:
    document = (Path(__file__).parent.parent / "docs/operating.md").read_text()
    assert not [f.name for f in (*config.SETTINGS, *config.MODEL_SETTINGS) if f"`{f.name}`" not in document]
