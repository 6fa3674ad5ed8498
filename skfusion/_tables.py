"""Tables in files: CSV, TSV, JSON lines, Parquet, whatever their encoding; for the command line.

What is wrong with a file is said by line, and nothing is half-written.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

FORMATS = ("csv", "tsv", "jsonl", "parquet")
_SUFFIXES = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".txt": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_DELIMITERS = ",;\t|"
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # begins as that of UTF-16 does
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_SAMPLE = 2**16  # bytes that an encoding without a mark is guessed from
_MOST_NAMED = 5  # bad rows in a message


class TableError(ValueError):
    """A table that cannot be read or written; the message says what, where and what to do."""


@dataclass
class Table:
    """Columns of a file, and the line on which each row begins.

    Attributes
    ----------
    columns : dict of str to list
        Values by column.
    lines : list of int
        Lines of the rows, from 1; of Parquet the numbers of rows.
    notes : list of str
        What was guessed.
    bad : dict of int to str
        What is wrong with the lines that were left out.
    source : str
        The file's name.
    """

    columns: dict[str, list[Any]]
    lines: list[int]
    notes: list[str] = field(default_factory=list)
    bad: dict[int, str] = field(default_factory=dict)
    source: str = "the table"

    def __len__(self) -> int:
        return len(self.lines)

    def column(self, name: str) -> list[Any]:
        """Return the values of a column."""
        if name not in self.columns:
            raise TableError(
                f"{self.source} has no column {name!r}. It has {_listed(list(self.columns))}."
            )
        return self.columns[name]

    def without(self, bad: Mapping[int, str]) -> Table:
        """Return the rows that are not on these lines."""
        kept = [i for i, line in enumerate(self.lines) if line not in bad]
        return Table(
            {name: [values[i] for i in kept] for name, values in self.columns.items()},
            [self.lines[i] for i in kept],
            self.notes,
            {**self.bad, **bad},
            self.source,
        )


def name_lines(bad: Mapping[int, str]) -> str:
    """Say what is wrong on which lines, the first few of them.

    >>> name_lines({3: "no label", 7: "no label", 9: "5 fields instead of 2"})
    'line 3: no label; line 7: no label; line 9: 5 fields instead of 2'
    """
    named = [f"line {line}: {what}" for line, what in sorted(bad.items())[:_MOST_NAMED]]
    more = len(bad) - len(named)
    return "; ".join(named) + (f"; and {more} more" if more > 0 else "")


# --- reading -----------------------------------------------------------------------------------


def read_table(source: str, *, kind: str | None = None, stdin: BinaryIO | None = None) -> Table:
    """Read a table; "-" is the standard input, which is CSV unless `kind` says else."""
    kind = kind or ("csv" if source == "-" else _kind_of(source))
    if kind not in FORMATS:
        raise TableError(f"{kind!r} is no known format. Use one of {', '.join(FORMATS)}.")
    name = "the standard input" if source == "-" else source
    try:
        if source == "-":
            content = (stdin or sys.stdin.buffer).read()
        else:
            content = Path(source).read_bytes()
    except OSError as error:
        raise TableError(f"{source} cannot be read: {error.strerror or error}.") from error
    if not content.strip():
        raise TableError(f"{name} is empty.")
    table = _parquet(content, name) if kind == "parquet" else _text(content, kind, name)
    table.source = name
    if not len(table) and not table.bad:
        raise TableError(f"{name} has a header and no rows.")
    return table


def _kind_of(path: str) -> str:
    suffix = Path(path).suffix.lower()
    if suffix not in _SUFFIXES:
        raise TableError(
            f"What {path} holds cannot be told from its suffix {suffix!r}. Name it "
            f"{', '.join(sorted(_SUFFIXES))}, or say --format."
        )
    return _SUFFIXES[suffix]


def _text(content: bytes, kind: str, name: str) -> Table:
    encoding, guessed = guess_encoding(content)
    content = content.removeprefix(codecs.BOM_UTF8)
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise TableError(
            f"{name} is not {encoding}, as it seemed: byte {error.start} on line {line} is not. "
            f"Save it as UTF-8."
        ) from error
    notes = [f"{name} was read as {encoding}, which is a guess"] if guessed else []
    text = text.removeprefix("\ufeff")
    table = _json_lines(text) if kind == "jsonl" else _separated(text, kind, name)
    table.notes = [*notes, *table.notes]
    return table


def guess_encoding(content: bytes) -> tuple[str, bool]:
    """Return the encoding of a file, and whether it is but a guess.

    A mark at its beginning says it. UTF-8 is next to never valid by chance. Text in UTF-16 has a
    zero in most pairs of bytes; what is left is that of Windows, cp1252, or of all bytes, latin-1.

    >>> guess_encoding("caf\u00e9".encode("cp1252"))
    ('cp1252', True)
    """
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            return encoding, False
    sample = content[: _SAMPLE - _SAMPLE % 2]
    even, odd = sample[::2].count(0), sample[1::2].count(0)
    if max(even, odd) > 0.3 * len(sample) / 2:
        return ("utf-16-le" if odd > even else "utf-16-be"), True
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        pass
    else:
        return "utf-8", False
    try:
        content.decode("cp1252")
    except UnicodeDecodeError:
        return "latin-1", True
    return "cp1252", True


def _separated(text: str, kind: str, name: str) -> Table:
    delimiter = "\t" if kind == "tsv" else _guess_delimiter(text)
    notes = [] if delimiter in ",\t" else [f"columns of {name} are separated by {delimiter!r}"]
    before = csv.field_size_limit(sys.maxsize)
    try:
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=False)
        table = _collect(rows, name)
    except csv.Error as error:
        raise TableError(f"{name} is not valid: {error}.") from error
    finally:
        csv.field_size_limit(before)
    table.notes = notes
    return table


def _collect(rows: Any, name: str) -> Table:
    """Sort rows into columns; those that do not fit the header are bad."""
    first: list[str] = next((row for row in rows if row), [])
    header = [column.strip() for column in first]
    twice = sorted({column for column in header if header.count(column) > 1})
    if twice:
        raise TableError(f"{name} has several columns named {_listed(twice)}. Name each once.")
    columns: dict[str, list[Any]] = {column: [] for column in header}
    lines, bad, begin = list[int](), dict[int, str](), rows.line_num + 1
    for row in rows:
        line, begin = begin, rows.line_num + 1
        if not row:
            continue
        if len(row) != len(header):
            bad[line] = f"{len(row)} fields instead of {len(header)}"
        elif any("\x00" in value for value in row):
            bad[line] = "a NUL byte"
        else:
            lines.append(line)
            for column, value in zip(header, row, strict=True):
                columns[column].append(value)
    return Table(columns, lines, bad=bad)


def _guess_delimiter(text: str) -> str:
    header = text.lstrip("\r\n").split("\n", 1)[0]
    return max(_DELIMITERS, key=lambda one: (header.count(one), -_DELIMITERS.index(one)))


def _json_lines(text: str) -> Table:
    found: list[tuple[int, dict[str, Any]]] = []
    bad: dict[int, str] = {}
    # Not `splitlines`: strings may hold U+2028 and its like.
    for line, raw in enumerate(text.split("\n"), start=1):
        if not raw.strip():
            continue
        try:
            row = json.loads(raw)
        except ValueError as error:
            bad[line] = f"no JSON ({error})"
            continue
        if isinstance(row, dict):
            found.append((line, row))
        else:
            bad[line] = "no JSON object"
    names = list(dict.fromkeys(name for _, row in found for name in row))
    columns = {name: [row.get(name) for _, row in found] for name in names}
    return Table(columns, [line for line, _ in found], bad=bad)


def _parquet(content: bytes, name: str) -> Table:
    parquet = _arrow()[1]
    try:
        columns = parquet.read_table(io.BytesIO(content)).to_pydict()
    except Exception as error:  # pyarrow's own errors have several bases
        raise TableError(f"{name} is no Parquet file: {error}") from error
    n_rows = len(next(iter(columns.values()), []))
    return Table(columns, list(range(1, n_rows + 1)))


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise TableError(
            'Parquet needs pyarrow: pip install "skfusion[cli]". CSV and JSON lines do not.'
        ) from error
    return pyarrow, pyarrow.parquet


# --- writing -----------------------------------------------------------------------------------


def check_target(target: str, kind: str | None = None) -> str:
    """Return the format that a file will have; refuse one that cannot be written, before work."""
    kind = kind or ("csv" if target == "-" else _kind_of(target))
    if kind not in FORMATS:
        raise TableError(f"{kind!r} is no known format. Use one of {', '.join(FORMATS)}.")
    if kind == "parquet":
        _arrow()
    if target != "-" and not Path(target).absolute().parent.is_dir():
        raise TableError(f"There is no folder {Path(target).absolute().parent} for {target}.")
    return kind


def write_table(columns: Mapping[str, Any], target: str, kind: str | None = None) -> None:
    """Write a table whole or not at all; "-" is the standard output.

    A value may be a 2-D array: in Parquet it is a column of lists, elsewhere one column each.
    """
    kind = check_target(target, kind)
    content = _encoded(columns, kind)
    if target == "-":
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    write_file(target, content)


def write_file(target: str | Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    path = Path(target).absolute()
    try:
        handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    except OSError as error:
        raise TableError(f"{target} cannot be written: {error.strerror or error}.") from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # As other new files are, not as temporary ones.
        umask = os.umask(0)
        os.umask(umask)
        Path(scratch).chmod(0o666 & ~umask)
        Path(scratch).replace(path)
    except BaseException as error:
        Path(scratch).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OSError(
                f"{target} was not written: {error.strerror or error}. Nothing is left of it."
            ) from error
        raise


def _encoded(columns: Mapping[str, Any], kind: str) -> bytes:
    if kind == "parquet":
        return _parquet_bytes(columns)
    flat = _flat(columns)
    out = io.StringIO(newline="")
    if kind == "jsonl":
        for row in zip(*flat.values(), strict=True):
            values = {name: _plain(value) for name, value in zip(flat, row, strict=True)}
            out.write(json.dumps(values, ensure_ascii=False) + "\n")
    else:
        writer = csv.writer(out, delimiter="\t" if kind == "tsv" else ",", lineterminator="\n")
        writer.writerow(flat)
        writer.writerows(zip(*flat.values(), strict=True))
    return out.getvalue().encode("utf-8", errors="replace")


def _flat(columns: Mapping[str, Any]) -> dict[str, Iterable[Any]]:
    flat: dict[str, Iterable[Any]] = {}
    for name, values in columns.items():
        if getattr(values, "ndim", 1) == 2:
            flat |= {f"{name}{i}": column.tolist() for i, column in enumerate(values.T)}
        else:
            flat[name] = values.tolist() if hasattr(values, "tolist") else values
    return flat


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _parquet_bytes(columns: Mapping[str, Any]) -> bytes:
    arrow, parquet = _arrow()
    made = {}
    for name, values in columns.items():
        if getattr(values, "ndim", 1) == 2:
            width = values.shape[1]
            made[name] = arrow.FixedSizeListArray.from_arrays(arrow.array(values.ravel()), width)
        else:
            made[name] = arrow.array(values)
    sink = io.BytesIO()
    parquet.write_table(arrow.table(made), sink)
    return sink.getvalue()


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
