"""The command line: what it prints, writes and refuses, with its exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skfusion import FusionClassifier, LLMLayerEmbedder, VectorStore, __version__, load
from skfusion._tables import read_table
from skfusion.cli import run

WORDS = ["good", "fine", "great", "bad", "poor", "weak"]
TEXTS = [f"{word} {thing}" for thing in ("film", "plot", "scene", "cast") for word in WORDS]
LABELS = ["yes" if i % 6 < 3 else "no" for i in range(24)]


@pytest.fixture
def data(tmp_path: Path) -> str:
    """24 rows in cp1252, with one more column."""
    path = tmp_path / "data.csv"
    rows = [
        f"{text},{label},{i}é" for i, (text, label) in enumerate(zip(TEXTS, LABELS, strict=True))
    ]
    path.write_bytes("\n".join(["text,label,id", *rows]).encode("cp1252"))
    return str(path)


@pytest.fixture
def model(folder: Callable[..., str]) -> str:
    return folder("bert")


@pytest.fixture
def memory(tmp_path: Path) -> str:
    return str(tmp_path / "store")


def written(tmp_path: Path, rows: list[str], name: str = "rows.csv") -> str:
    path = tmp_path / name
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return str(path)


# --- the main way --------------------------------------------------------------------------------


def test_fit_and_predict(
    data: str, model: str, memory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, page = tmp_path / "model", tmp_path / "report.html"
    options = ["--memory", memory, "--save", str(saved), "--report", str(page)]
    assert run(["fit", data, "-m", model, *options]) == 0
    out, err = capsys.readouterr()
    assert "Confusion matrix" in page.read_text()
    assert not any(text in page.read_text() for text in TEXTS)
    assert out.startswith("FusionClassifier fitted on 24 rows")
    assert "cp1252" in err
    assert "24 different texts" in err
    assert "tokens" in err
    target = tmp_path / "out.parquet"
    assert run(["predict", str(saved), data, "-o", str(target)]) == 0
    table = read_table(str(target))
    fitted = load(saved)
    assert list(table.columns) == ["text", "label", "id", "prediction", "p_no", "p_yes"]
    assert table.column("id")[3] == "3é"
    assert table.column("prediction") == fitted.predict(TEXTS).tolist()
    np.testing.assert_allclose(table.column("p_yes"), fitted.predict_proba(TEXTS)[:, 1])


def test_a_search_tries_layers_and_saves_the_best_pipeline(
    data: str, model: str, memory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, page = tmp_path / "model", tmp_path / "report.md"
    options = ["-m", model, "-m", model, "--memory", memory, "--search", "--trials", "3", "-q"]
    assert run(["fit", data, *options, "--save", str(saved), "--report", str(page)]) == 0
    out = capsys.readouterr().out
    assert "best of 3 trials, 5 folds" in out
    assert "layer: " in out and "fuse__operator: " in out
    assert "Confusion matrix" in page.read_text()
    assert run(["fit", data, *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["n_trials"] == 3 and len(found["scores"]) == 5
    assert load(saved).get_params()["fuse__operator"] == found["params"]["fuse__operator"]
    few = written(tmp_path, ["text,label", "good,yes", "fine,yes", "bad,no"])
    assert run(["fit", few, *options]) == 2
    assert "two rows of each label" in capsys.readouterr().err


def test_json_is_the_only_thing_on_the_standard_output(
    data: str, model: str, memory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fit", data, "-m", model, "--memory", memory, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = FusionClassifier([model], memory=memory, random_state=0).fit(TEXTS, LABELS)
    assert found["scores"] == pytest.approx(expected.scores_.tolist())
    assert found["classes"] == ["no", "yes"]
    assert found["models"] == pytest.approx(expected.model_weights_)


def test_vectors_are_those_of_the_embedder(
    data: str, model: str, memory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(tmp_path / "out.parquet")
    options = ["--layer", "1", "--pooling", "last", "--memory", memory, "-q"]
    assert run(["embed", data, "-m", model, "-o", target, *options]) == 0
    expected = LLMLayerEmbedder(model, layer=1, pooling="last").fit_transform(TEXTS)
    assert np.array_equal(np.array(read_table(target).column("vector"), np.float32), expected)
    assert capsys.readouterr().out == ""
    assert run(["embed", data, "-m", model, "--memory", memory, "-q", "--layer", "0.5"]) == 0
    header = capsys.readouterr().out.splitlines()[0]
    assert header.startswith("text,label,id,vector0,vector1")


def test_rank_prints_a_row_for_each_model_and_blend(
    data: str, model: str, memory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(tmp_path / "ranks.csv")
    assert run(["rank", data, "-m", model, "--memory", memory, "-o", target, "--json", "-q"]) == 0
    ranks = json.loads(capsys.readouterr().out)["models"]
    assert sorted(row["layer"] for row in ranks) == ["-1", "blend"]
    assert len(read_table(target)) == 2


def test_a_store_is_described_checked_and_cleared(
    model: str, memory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    LLMLayerEmbedder(model, memory=memory).fit_transform(TEXTS)
    assert run(["info", memory]) == 0
    assert "24 texts" in capsys.readouterr().out
    assert run(["info", memory, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_texts"] == 24
    assert run(["verify", memory]) == 0
    shard = next(path for path in Path(memory).rglob("*") if path.suffix == ".safetensors")
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.chmod(0o644)
    shard.write_bytes(content)
    assert run(["verify", memory]) == 1
    assert "damaged" in capsys.readouterr().out
    assert run(["clear", memory]) == 0
    assert VectorStore(memory).info()["n_texts"] == 0


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__
    for command in ("fit", "predict", "embed", "rank", "info", "verify", "clear"):
        assert run([command, "--help"]) == 0
        assert f"skfusion {command}" in capsys.readouterr().out  # an example
    assert run(["fit"]) == 2


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["text,label", "a,x", "b", "c,y,z"], "line 3: 1 fields instead of 2; line 4"),
        (["text,label", "a,x", "b,", ",y"], "line 3: no label; line 4: no text"),
        (["text,label", "a,x", "b,x"], "All 2 rows have the label 'x'"),
        (["words,label", "a,x", "b,y"], "no column 'text'"),
        (["text,label"], "a header and no rows"),
    ],
)
def test_bad_rows_are_named_before_any_work(
    rows: list[str],
    message: str,
    tmp_path: Path,
    model: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    saved = tmp_path / "model"
    data = written(tmp_path, rows)
    assert run(["fit", data, "-m", model, "--save", str(saved)]) == 2
    assert message in capsys.readouterr().err
    assert not saved.exists()


def test_bad_rows_may_be_left_out(
    tmp_path: Path, model: str, memory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{text},{label}" for text, label in zip(TEXTS, LABELS, strict=True)]
    data = written(tmp_path, ["text,label", *rows, "ragged", "empty,"])
    options = ["-m", model, "--memory", memory, "-q", "--json", "--skip-bad-rows"]
    assert run(["fit", data, *options]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["n_rows"] == 24
    assert "2 bad rows left out: line 26" in err


def test_labels_that_differ_in_white_space_are_one_with_a_warning(
    tmp_path: Path, model: str, memory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        f"{text},{label}{' ' * (i % 2)}"
        for i, (text, label) in enumerate(zip(TEXTS, LABELS, strict=True))
    ]
    data = written(tmp_path, ["text,label", *rows])
    assert run(["fit", data, "-m", model, "--memory", memory, "-q", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["classes"] == ["no", "yes"]
    assert "'no', 'no ' differ in white space only" in err


@pytest.mark.parametrize("n_rows", [3, 5])
def test_few_rows_and_a_class_of_one_row(
    n_rows: int, tmp_path: Path, model: str, memory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ["a film,x", "b film,y", "c film,y", "d film,y", "e film,y"][:n_rows]
    data = written(tmp_path, ["text,label", *rows])
    assert run(["fit", data, "-m", model, "--memory", memory]) == 0
    out, err = capsys.readouterr()
    assert f"fitted on {n_rows} rows" in out
    assert "labels with one row only: x" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "{tmp}/none", "{data}"], "no saved model"),
        (["predict", "{tmp}", "{data}", "-o", "{tmp}/none/out.csv"], "There is no folder"),
        (["embed", "{data}", "-m", "{model}", "--layer", "deep"], "--layer deep"),
        (["embed", "{data}", "-m", "{model}", "--layer", "77"], "layer=77"),
        (["embed", "{data}", "-m", "{model}", "--pooling", "median"], "median"),
        (["embed", "{data}", "-m", "{model}", "-o", "{tmp}/out.xlsx"], "suffix"),
        (["fit", "{tmp}/none.csv", "-m", "{model}"], "cannot be read"),
        (["fit", "{data}", "-m", "{model}", "--save", "{data}"], "is a file"),
        (["fit", "{data}", "-m", "{model}", "--report", "{tmp}/r.pdf"], "must end in .html"),
        (["fit", "{data}", "-m", "{model}", "--report", "{tmp}/none/r.md"], "There is no folder"),
        (["info", "{tmp}/none"], "no folder"),
    ],
)
def test_what_cannot_be_is_said_with_exit_code_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    data: str,
    model: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = sorted(path.name for path in tmp_path.iterdir())
    filled = [one.format(tmp=tmp_path, data=data, model=model) for one in arguments]
    assert run(filled) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_what_fails_later_has_exit_code_1(
    data: str,
    model: str,
    memory: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("skfusion._files.publish", full)
    saved = tmp_path / "model"
    options = ["-m", model, "--memory", memory, "-q", "--save", str(saved)]
    assert run(["fit", data, *options]) == 1
    assert "No space left" in capsys.readouterr().err
    assert not saved.exists()


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
def test_of_vectors_that_do_not_fit_the_disk_nothing_is_left(
    data: str,
    model: str,
    memory: str,
    tmp_path: Path,
    suffix: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    target = tmp_path / f"vectors.{suffix}"
    arguments = ["embed", data, "-m", model, "--memory", memory, "-q", "-o", str(target)]
    assert run(arguments) == 0
    before = target.read_bytes()
    monkeypatch.setattr("skfusion._tables.os.fsync", full)
    assert run(arguments) == 1
    assert "was not written: No space left on device" in capsys.readouterr().err
    assert target.read_bytes() == before
    assert [path.name for path in tmp_path.glob(f"*vectors.{suffix}*")] == [target.name]


# --- as a process --------------------------------------------------------------------------------


def process(*arguments: str, **settings: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "skfusion", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, **settings)


@pytest.mark.slow
def test_the_standard_input_is_read_to_its_end(model: str, memory: str) -> None:
    rows = "\n".join(["text", *(["a film", "a plot"] * 50_000)])
    with process("embed", "-", "-m", model, "--memory", memory, "-q", "--format", "csv") as embed:
        out, err = embed.communicate(rows.encode(), timeout=300)
    assert embed.returncode == 0, err.decode()
    assert out.count(b"\n") == 100_001
    assert VectorStore(memory).info()["n_texts"] == 2


@pytest.mark.slow
def test_an_interrupted_command_goes_on(model: str, memory: str, tmp_path: Path) -> None:
    rows = [f"film number {i} {'very ' * 40} long" for i in range(6000)]
    data = written(tmp_path, ["text", *rows])
    target = tmp_path / "out.parquet"
    arguments = ["embed", data, "-m", model, "--memory", memory, "-q", "-o", str(target)]
    embed = process(*arguments, env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 120
    while VectorStore(memory).info()["n_texts"] < 100:
        assert embed.poll() is None, embed.stderr.read().decode()  # type: ignore[union-attr]
        assert time.monotonic() < deadline
        time.sleep(0.2)
    embed.send_signal(signal.SIGINT)
    _, err = embed.communicate(timeout=60)
    assert embed.returncode == 1
    assert b"the same command goes on" in err
    assert not target.exists()
    stored = VectorStore(memory).info()["n_texts"]
    assert 100 <= stored < 6000
    assert run(arguments) == 0
    assert len(read_table(str(target))) == 6000
