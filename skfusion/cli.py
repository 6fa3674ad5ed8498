"""The command line: fit, predict, embed, rank, and what a store holds.

Results go to the standard output, all else to the standard error. Bad input is said before any
work, by line, with exit code 2; what fails later has exit code 1; nothing is half-written.
"""

from __future__ import annotations

import functools
import json
import logging
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, ParamSpec

import numpy as np
import platformdirs
import typer

from . import __version__
from ._tables import Table, TableError, check_target, name_lines, read_table, write_table
from .embed.estimating import size_words

if TYPE_CHECKING:
    from .recipe import FusionClassifier
    from .selection.optuna_search import OptunaSearchCV

P = ParamSpec("P")

FAILED, BAD_INPUT = 1, 2
_KNOWN = (MemoryError, OSError, ImportError, RuntimeError, TypeError, ValueError)

app = typer.Typer(
    name="skfusion",
    help="Classify texts with the hidden states of language models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code."""
    try:
        app(args=list(arguments), prog_name="skfusion", standalone_mode=True)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else FAILED
    return 0


# --- options that several commands have --------------------------------------------------------

Data = Annotated[
    str, typer.Argument(help="CSV, TSV, JSON lines or Parquet; - is the standard input.")
]
TextColumn = Annotated[str, typer.Option("--text", "-t", help="The column of texts.")]
LabelColumn = Annotated[str, typer.Option("--label", "-l", help="The column of labels.")]
Models = Annotated[
    list[str],
    typer.Option("--model", "-m", help="A hub id, folder or .gguf file; several times for more."),
]
Model = Annotated[str, typer.Option("--model", "-m", help="A hub id, folder or .gguf file.")]
Memory = Annotated[
    Path | None,
    typer.Option(
        help="Where vectors are stored, so that no text is run twice.",
        show_default="the user's cache",
    ),
]
MaxLength = Annotated[
    int | None, typer.Option(min=1, help="Tokens per text.", show_default="the model's limit")
]
Format = Annotated[
    str | None,
    typer.Option("--format", help="csv, tsv, jsonl or parquet.", show_default="by the suffix"),
]
Skip = Annotated[
    bool, typer.Option("--skip-bad-rows", help="Leave out rows that are bad instead of stopping.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no estimates.")]
Seed = Annotated[int, typer.Option(help="Seed of all that is drawn.")]
Store = Annotated[Path, typer.Argument(help="The folder of the store.")]


def commands(function: Callable[P, None]) -> Callable[P, None]:
    """Turn errors into messages and exit codes."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        logging.captureWarnings(False)
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = _show_warning
            try:
                function(*args, **kwargs)
            except KeyboardInterrupt:
                _stop("Stopped. What was computed is stored: the same command goes on.", FAILED)
            except (TableError, BadInput) as error:
                _stop(str(error), BAD_INPUT)
            except BrokenPipeError:
                sys.stderr.close()
                raise typer.Exit(FAILED) from None
            except _KNOWN as error:
                _stop(f"{type(error).__name__}: {error}", FAILED)

    return wrapped


class BadInput(ValueError):
    """What the user gave cannot be used."""


def _stop(message: str, code: int) -> NoReturn:
    typer.secho(f"skfusion: {message}", fg=typer.colors.RED, err=True)
    raise typer.Exit(code)


def say(message: str) -> None:
    """Print to the standard error, where nothing disturbs a pipe."""
    typer.echo(message, err=True)


def _show_warning(message: Any, category: Any, *_: Any, **__: Any) -> None:
    text = str(message)
    if text not in _HEARD:
        _HEARD.add(text)
        say(f"warning: {text}")


_HEARD: set[str] = set()


# --- commands ------------------------------------------------------------------------------------


@app.command()
@commands
def fit(
    data: Data,
    model: Models,
    save: Annotated[Path | None, typer.Option(help="A folder for the fitted model.")] = None,
    report: Annotated[
        Path | None, typer.Option(help="An .html or .md file that says how good it is.")
    ] = None,
    include_texts: Annotated[
        bool, typer.Option("--include-texts", help="Show texts in the report.")
    ] = False,
    text: TextColumn = "text",
    label: LabelColumn = "label",
    scoring: Annotated[
        str, typer.Option(help="What it should be good at, as scikit-learn names it.")
    ] = "f1_macro",
    search: Annotated[
        bool,
        typer.Option(
            "--search", help="Search one layer, pooling and operator instead of blending all."
        ),
    ] = False,
    trials: Annotated[int, typer.Option(min=1, help="Combinations that --search tries.")] = 50,
    max_length: MaxLength = None,
    memory: Memory = None,
    time_budget: Annotated[
        float | None,
        typer.Option(
            min=0, help="Seconds for all that comes after the first fit, or for new trials."
        ),
    ] = None,
    format: Format = None,
    skip_bad_rows: Skip = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    seed: Seed = 0,
) -> None:
    """Train a classifier on a table of texts and labels, and say how good it is.

    **Example**: `skfusion fit reviews.csv -t text -l label -m
    sentence-transformers/all-MiniLM-L6-v2 --save model/ --report report.html`
    """
    from .inspection.report import report as write_report
    from .recipe import FusionClassifier
    from .saving import save as save_model

    table = _rows(read_table(data, kind=format), [text, label], skip_bad_rows)
    texts, labels = table.column(text), _labels(table, label)
    _check_classes(labels)
    if save is not None:
        _check_folder(save)
    if report is not None:
        _check_report(report)
    store = _memory(memory)
    classifier: Any = FusionClassifier(
        model,
        max_length=max_length,
        scoring=scoring,
        memory=store,
        time_budget=time_budget,
        random_state=seed,
        verbose=0 if quiet else 1,
    )
    if search:
        classifier = _search(classifier, labels, trials)
    if not quiet:
        _say_estimates(model, texts, max_length, store)
    started = time.perf_counter()
    classifier.fit(texts, labels)
    if save is not None:
        save_model(getattr(classifier, "best_estimator_", classifier), save)
    if report is not None:
        write_report(classifier, report, X=texts, y=labels, include_texts=include_texts)
    if as_json:
        _print_json(
            {
                "n_rows": len(texts),
                "classes": classifier.classes_.tolist(),
                "scoring": scoring,
                **(_found(classifier) if search else _blended(classifier)),
                "seconds": time.perf_counter() - started,
                "saved": None if save is None else str(save),
                "report": None if report is None else str(report),
                "version": __version__,
            }
        )
    else:
        typer.echo(_search_summary(classifier, scoring) if search else classifier.summary())
    if save is not None and not quiet:
        say(f"saved: {save}; next: skfusion predict {save} DATA -o predictions.csv")


@app.command()
@commands
def predict(
    folder: Annotated[Path, typer.Argument(help="What `skfusion fit --save` has written.")],
    data: Data,
    output: Annotated[
        str, typer.Option("--output", "-o", help="A file of any of the formats; - prints CSV.")
    ] = "-",
    text: TextColumn = "text",
    format: Format = None,
    skip_bad_rows: Skip = False,
    probabilities: Annotated[
        bool, typer.Option(help="Add a column for the probability of each class.")
    ] = True,
) -> None:
    """Predict the labels of texts; all columns of the input are kept.

    **Example**: `skfusion predict model/ new.csv -o predictions.parquet`
    """
    from .saving import load

    kind = check_target(output)
    table = _rows(read_table(data, kind=format), [text], skip_bad_rows)
    if not folder.is_dir():
        raise BadInput(f"There is no saved model at {folder}. `skfusion fit --save` makes one.")
    classifier = load(folder, memory="saved")  # so that what is interrupted goes on
    texts = table.column(text)
    columns: dict[str, Any] = dict(table.columns)
    columns[_free("prediction", columns)] = classifier.predict(texts)
    if probabilities and hasattr(classifier, "predict_proba"):
        chances = classifier.predict_proba(texts)
        for name, column in zip(classifier.classes_, chances.T, strict=True):
            columns[_free(f"p_{name}", columns)] = column
    write_table(columns, output, kind)


@app.command()
@commands
def embed(
    data: Data,
    model: Model,
    output: Annotated[
        str, typer.Option("--output", "-o", help="A file of any of the formats; - prints CSV.")
    ] = "-",
    text: TextColumn = "text",
    layer: Annotated[
        str, typer.Option(help="A layer's number, -1 the last; a depth such as 0.5; mean.")
    ] = "-1",
    pooling: Annotated[
        str, typer.Option(help="mean, mean_no_first, last, first, max or weighted_mean.")
    ] = "mean",
    max_length: MaxLength = None,
    memory: Memory = None,
    format: Format = None,
    skip_bad_rows: Skip = False,
    quiet: Quiet = False,
) -> None:
    """Write the vectors of texts beside the columns of the input.

    **Example**: `skfusion embed texts.csv -m sentence-transformers/all-MiniLM-L6-v2 -o
    vectors.parquet --layer 4`
    """
    from .embed.embedder import LLMLayerEmbedder

    kind = check_target(output)
    table = _rows(read_table(data, kind=format), [text], skip_bad_rows)
    texts, store = table.column(text), _memory(memory)
    embedder = LLMLayerEmbedder(
        model, layer=_layer(layer), pooling=pooling, max_length=max_length, memory=store
    )
    with _bad_parameters():
        embedder.fit(texts)
    if not quiet:
        _say_estimates([model], texts, max_length, store)
    embedder.precompute(texts, verbose=0 if quiet else 1)
    columns: dict[str, Any] = dict(table.columns)
    columns[_free("vector", columns)] = embedder.transform(texts)
    write_table(columns, output, kind)


@app.command()
@commands
def rank(
    data: Data,
    model: Models,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="Write the table to a file as well.")
    ] = None,
    text: TextColumn = "text",
    label: LabelColumn = "label",
    max_length: MaxLength = None,
    memory: Memory = None,
    format: Format = None,
    skip_bad_rows: Skip = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    seed: Seed = 0,
) -> None:
    """Say which model to start with: estimated score, seconds and bytes of each and of its blend.

    **Example**: `skfusion rank reviews.csv -m org/a -m org/b`
    """
    from .selection.rank import rank_models

    if output is not None:
        check_target(output)
    table = _rows(read_table(data, kind=format), [text, label], skip_bad_rows)
    texts, labels = table.column(text), _labels(table, label)
    _check_classes(labels)
    store = _memory(memory)
    if not quiet:
        _say_estimates(model, texts, max_length, store)
    ranks = rank_models(
        model,
        texts,
        labels,
        memory=store,
        max_length=max_length,
        random_state=seed,
        verbose=0 if quiet else 1,
    )
    if output is not None:
        write_table({name: ranks[name].to_numpy() for name in ranks}, output)
    if as_json:
        _print_json({"scoring": ranks.attrs["scoring"], "models": ranks.to_dict("records")})
    else:
        typer.echo(ranks.to_string(index=False, float_format=lambda value: f"{value:.3g}"))


@app.command()
@commands
def info(store: Store, as_json: AsJson = False) -> None:
    """Say what a store of vectors holds.

    **Example**: `skfusion info cache/`
    """
    found = _open_store(store).info()
    if as_json:
        _print_json(found)
        return
    typer.echo(f"{found['location']}: {found['n_texts']:,} texts, {size_words(found['n_bytes'])}")
    for one in found["models"]:
        layers = one["layers"]
        span = f"layers {layers[0]} to {layers[-1]}" if layers else "no layers"
        held = f"{one['n_texts']:,} texts, {size_words(one['n_bytes'])}, {span}"
        typer.echo(f"  {one.get('model', 'unknown')}: {held}, {', '.join(one['poolings'])}")


@app.command()
@commands
def verify(store: Store, as_json: AsJson = False) -> None:
    """Compare every stored vector with its checksum; exit code 1 if one is damaged.

    **Example**: `skfusion verify cache/`
    """
    found = _open_store(store).verify()
    if as_json:
        _print_json(found)
    else:
        typer.echo(f"{found['n_texts']:,} texts in {found['n_shards']:,} files were read.")
        for path in found["damaged"]:
            typer.echo(f"damaged: {path}")
    if found["damaged"]:
        raise typer.Exit(FAILED)


@app.command()
@commands
def clear(store: Store) -> None:
    """Remove the vectors of a store; files that no store has written stay.

    **Example**: `skfusion clear cache/`
    """
    opened = _open_store(store)
    freed = opened.info()["n_bytes"]
    opened.clear()
    typer.echo(f"{size_words(freed)} removed from {store}.")


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print it.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Classify texts with the hidden states of language models."""


# --- what is read --------------------------------------------------------------------------------


def _rows(table: Table, needed: Sequence[str], skip: bool) -> Table:
    """Return the rows in which the needed columns have a value; say what was guessed."""
    for guess in table.notes:
        say(f"note: {guess}")
    empty: dict[int, str] = {}
    for name in needed:
        for line, value in zip(table.lines, table.column(name), strict=True):
            if value is None or not str(value).strip():
                empty.setdefault(line, f"no {name}")
    kept = table.without(empty)
    if kept.bad:
        if not skip:
            raise BadInput(
                f"{table.source} has {len(kept.bad)} bad rows: {name_lines(kept.bad)}. Mend them, "
                f"or use --skip-bad-rows."
            )
        say(f"note: {len(kept.bad)} bad rows left out: {name_lines(kept.bad)}")
    if not len(kept):
        raise BadInput(f"{table.source} has no row with {' and '.join(needed)}.")
    for name in needed:
        kept.columns[name] = [str(value) for value in kept.column(name)]
    return kept


def _labels(table: Table, column: str) -> list[str]:
    """Return labels without the white space around them."""
    given = table.column(column)
    labels = [label.strip() for label in given]
    spellings: dict[str, set[str]] = {}
    for before, after in zip(given, labels, strict=True):
        spellings.setdefault(after, set()).add(before)
    for label, several in spellings.items():
        if len(several) > 1:
            shown = ", ".join(map(repr, sorted(several)))
            say(f"warning: the labels {shown} differ in white space only; all are {label!r}.")
    table.columns[column] = labels
    return labels


def _check_classes(labels: Sequence[str]) -> None:
    counts = Counter(labels)
    if len(counts) < 2:
        raise BadInput(f"All {len(labels)} rows have the label {labels[0]!r}. Two are needed.")
    if len(counts) > len(labels) / 2 and len(labels) > 10:
        say(f"warning: {len(counts)} labels on {len(labels)} rows: is this the column of labels?")
    rare = sorted(label for label, count in counts.items() if count == 1)
    if rare:
        say(f"warning: labels with one row only: {', '.join(rare[:5])}.")


def _layer(text: str) -> Any:
    """Return what a layer on the command line is."""
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    if text != "mean":
        raise BadInput(
            f"--layer {text} is no layer that texts alone can have. Use a whole number, a depth "
            f"between 0 and 1, or mean."
        )
    return text


def _check_folder(folder: Path) -> None:
    """Refuse a folder that cannot be saved to, before any work."""
    if not folder.absolute().parent.is_dir():
        raise BadInput(f"There is no folder {folder.absolute().parent} for {folder}.")
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file. Name a folder that --save may make.")


def _check_report(path: Path) -> None:
    """Refuse a report that cannot be written, before any work."""
    from .inspection.report import SUFFIXES

    if path.suffix.lower() not in SUFFIXES:
        raise BadInput(f"--report {path} must end in {' or '.join(SUFFIXES)}.")
    if not path.absolute().parent.is_dir():
        raise BadInput(f"There is no folder {path.absolute().parent} for {path}.")


def _memory(folder: Path | None) -> str:
    if folder is None:
        return str(platformdirs.user_cache_path("skfusion") / "vectors")
    return str(folder)


def _open_store(folder: Path) -> Any:
    from .embed.store import VectorStore

    if not folder.is_dir():
        raise BadInput(f"There is no folder {folder}.")
    return VectorStore(folder)


@contextmanager
def _bad_parameters() -> Iterator[None]:
    """Take what `fit` refuses as bad input: it was given on the command line."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise BadInput(str(error)) from error


# --- what is fitted ------------------------------------------------------------------------------


def _search(recipe: FusionClassifier, labels: Sequence[str], n_trials: int) -> OptunaSearchCV:
    """Return a search for one layer and pooling of each model, and how they are fused."""
    from sklearn.pipeline import Pipeline

    from .embed.embedder import LLMLayerEmbedder
    from .embed.pooling import POOLINGS
    from .embed.union import EmbedderUnion
    from .fusion.transformer import FusionTransformer
    from .selection.head import FusionHead
    from .selection.names import name_models
    from .selection.optuna_search import OptunaSearchCV
    from .selection.spaces import fusion_space

    rarest = min(Counter(labels).values())
    if rarest < 2:
        raise BadInput("--search needs two rows of each label, to train on one and test on one.")
    seed, verbose, limit = recipe.random_state, recipe.verbose, recipe.max_length
    embedders = {
        name: LLMLayerEmbedder(model, max_length=limit, verbose=verbose)
        for name, model in name_models(recipe.models).items()
    }
    union = EmbedderUnion(list(embedders.items()), memory=recipe.memory)
    steps = [
        ("embed", union),
        ("fuse", FusionTransformer(random_state=seed)),
        ("head", FusionHead(scoring=recipe.scoring, random_state=seed)),
    ]
    with _bad_parameters():
        space = fusion_space(union, poolings=list(POOLINGS))
    return OptunaSearchCV(
        Pipeline(steps),
        space,
        n_trials=n_trials,
        timeout=recipe.time_budget,
        scoring=recipe.scoring,
        cv=min(5, rarest),
        random_state=seed,
        verbose=verbose,
    )


# --- what is said --------------------------------------------------------------------------------


def _say_estimates(
    models: Sequence[str], texts: Sequence[str], max_length: int | None, memory: str
) -> None:
    """Say what the passes will take, by some texts, whose vectors are stored."""
    from .embed.embedder import LLMLayerEmbedder

    for model in models:
        embedder = LLMLayerEmbedder(model, max_length=max_length, memory=memory)
        with _bad_parameters():
            embedder.fit(texts)
        say(f"{model}: {embedder.estimate(texts)}")


def _blended(classifier: Any) -> dict[str, Any]:
    return {
        "models": classifier.model_weights_,
        "scores": classifier.scores_.tolist(),
        "baseline_scores": classifier.baseline_scores_.tolist(),
    }


def _found(search: Any) -> dict[str, Any]:
    from .inspection.candidates import read_candidates

    found = read_candidates(search)
    chosen = found.rows.index(search.best_index_)
    return {
        "params": search.best_params_,
        "n_trials": search.n_trials_,
        "scores": found.scores[chosen].tolist(),
    }


def _search_summary(search: Any, scoring: str) -> str:
    from .inspection.candidates import half_intervals, read_candidates

    found = read_candidates(search)
    scores = found.scores[found.rows.index(search.best_index_)]
    half = float(half_intervals(scores[np.newaxis], found.test_fraction)[0])
    lines = [
        f"best of {search.n_trials_} trials, {search.n_splits_} folds",
        f"{scoring}: {scores.mean():.3f} ± {half:.3f} (95 % interval over the folds; being the "
        f"best of many, it flatters)",
        *(f"  {name}: {value}" for name, value in search.best_params_.items()),
    ]
    return "\n".join(lines)


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, default=_plain, ensure_ascii=False))


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)


def _free(name: str, columns: dict[str, Any]) -> str:
    """Return a name that no column has."""
    while name in columns:
        name += "_"
    return name
