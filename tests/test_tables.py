"""Tables in files: any encoding is read or refused with the line, nothing is half-written."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skfusion._tables import (
    TableError,
    check_target,
    guess_encoding,
    name_lines,
    read_table,
    write_table,
)

ROWS = "text,label\ncafé € “quoted”,ja\nzweite Zeile,nein\n"
VALUES = {"text": ["café € “quoted”", "zweite Zeile"], "label": ["ja", "nein"]}


def write(folder: Path, content: bytes | str, name: str = "data.csv") -> str:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


@pytest.mark.parametrize(
    ("encoding", "note"),
    [
        ("utf-8", None),
        ("utf-8-sig", None),
        ("utf-16", None),
        ("utf-32", None),
        ("utf-16-le", "utf-16-le"),
        ("utf-16-be", "utf-16-be"),
        ("cp1252", "cp1252"),
    ],
)
def test_encodings_are_found_and_guesses_are_said(
    tmp_path: Path, encoding: str, note: str | None
) -> None:
    table = read_table(write(tmp_path, ROWS.encode(encoding)))
    assert table.columns == VALUES
    assert [note is not None and note in line for line in table.notes] == [True] * bool(note)


def test_bytes_of_no_encoding_are_latin_1() -> None:
    assert guess_encoding(b"a,b\n\x81,\xe9\n") == ("latin-1", True)


def test_damage_behind_a_mark_is_named_by_line(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="line 2 is not"):
        read_table(write(tmp_path, b"\xef\xbb\xbftext\n\xff\xff\n"))


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ("text;label\na, b;c\n", "data.csv"),
        ("text\tlabel\na, b\tc\n", "data.tsv"),
        ("text|label\na, b|c\n", "data.txt"),
        ('text,label\r\n"a, b",c\r\n', "data.csv"),
        ('\n\ntext,label\n"a, b",c\n\n', "data.csv"),
        ('{"text": "a, b", "label": "c"}\n\n', "data.jsonl"),
    ],
)
def test_separators_and_formats(tmp_path: Path, content: str, name: str) -> None:
    assert read_table(write(tmp_path, content, name)).columns == {"text": ["a, b"], "label": ["c"]}


def test_bad_rows_are_left_out_and_named_by_the_line_on_which_they_begin(tmp_path: Path) -> None:
    content = 'text,label\n"two\nlines",a\nragged\nb,c,d\nnul\x00,e\ngood,f\n'
    table = read_table(write(tmp_path, content))
    assert table.columns == {"text": ["two\nlines", "good"], "label": ["a", "f"]}
    assert table.lines == [2, 7]
    assert table.bad == {
        4: "1 fields instead of 2",
        5: "3 fields instead of 2",
        6: "a NUL byte",
    }
    assert name_lines(table.bad).startswith("line 4: 1 fields")
    assert name_lines(dict.fromkeys(range(9), "x")).endswith("and 4 more")
    fewer = table.without({7: "no label"})
    assert (len(fewer), fewer.lines, fewer.bad[7]) == (1, [2], "no label")


def test_lines_that_are_no_objects_are_bad(tmp_path: Path) -> None:
    content = '{"text": "a"}\n[1]\n{"text": \n{"text": "b\\u2028c", "more": 1}\n'
    table = read_table(write(tmp_path, content, "data.jsonl"))
    assert table.columns == {"text": ["a", "b\u2028c"], "more": [None, 1]}
    assert sorted(table.bad) == [2, 3]
    assert "no JSON object" in table.bad[2]


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        ("", "data.csv", "is empty"),
        (" \n", "data.csv", "is empty"),
        ("text,label\n", "data.csv", "a header and no rows"),
        ("text,text\na,b\n", "data.csv", "several columns named 'text'"),
        ("text\na\n", "data.docx", r"suffix '\.docx'"),
        ("no parquet", "data.parquet", "no Parquet file"),
    ],
)
def test_what_is_no_table_is_refused(
    tmp_path: Path, content: str, name: str, message: str
) -> None:
    with pytest.raises(TableError, match=message):
        read_table(write(tmp_path, content, name))


def test_a_missing_file_and_a_missing_column_are_named(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="cannot be read: No such file"):
        read_table(str(tmp_path / "none.csv"))
    with pytest.raises(TableError, match=r"no column 'labels'\. It has 'text', 'label'"):
        read_table(write(tmp_path, ROWS)).column("labels")


def test_many_rows_from_the_standard_input() -> None:
    content = ("text\n" + "a row\n" * 100_000).encode()
    table = read_table("-", stdin=io.BytesIO(content))
    assert len(table) == 100_000
    assert table.lines[-1] == 100_001
    assert table.source == "the standard input"


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_what_is_written_is_read_back(tmp_path: Path, kind: str) -> None:
    texts = ["plain", 'a, "quoted"\tone', "two\nlines", "日本", ""]
    target = str(tmp_path / f"out.{kind}")
    write_table({"text": texts, "score": np.arange(5) / 4}, target)
    table = read_table(target)
    assert table.column("text") == texts
    assert [float(score) for score in table.column("score")] == [0, 0.25, 0.5, 0.75, 1]
    assert [path.name for path in tmp_path.iterdir()] == [f"out.{kind}"]


@given(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\x00\r"), max_size=20),
        min_size=1,
        max_size=8,
    )
)
def test_any_text_survives_csv(tmp_path_factory: Any, texts: list[str]) -> None:
    target = str(tmp_path_factory.mktemp("tables") / "out.csv")
    write_table({"n": range(len(texts)), "text": texts}, target)
    assert read_table(target).column("text") == texts


def test_vectors_are_lists_in_parquet_and_columns_elsewhere(tmp_path: Path) -> None:
    import pyarrow.parquet

    vectors = np.arange(6, dtype=np.float32).reshape(3, 2)
    write_table({"vector": vectors}, str(tmp_path / "out.parquet"))
    column = pyarrow.parquet.read_table(tmp_path / "out.parquet")["vector"]
    assert column.type.list_size == 2
    assert column.to_pylist() == vectors.tolist()
    write_table({"vector": vectors}, str(tmp_path / "out.jsonl"))
    first = (tmp_path / "out.jsonl").read_text().splitlines()[0]
    assert json.loads(first) == {"vector0": 0.0, "vector1": 1.0}


def test_a_full_disk_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = write(tmp_path, "text\nbefore\n", "out.csv")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="was not written: No space left"):
        write_table({"text": ["after"]}, target)
    assert Path(target).read_text() == "text\nbefore\n"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_target_is_looked_at_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="There is no folder"):
        check_target(str(tmp_path / "none" / "out.csv"))
    with pytest.raises(TableError, match="suffix"):
        check_target(str(tmp_path / "out.xlsx"))
    with pytest.raises(TableError, match="'xml' is no known format"):
        check_target("-", "xml")
    assert check_target("-") == "csv"


def test_without_pyarrow_parquet_is_refused_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(TableError, match=r"skfusion\[cli\]"):
        check_target(str(tmp_path / "out.parquet"))
