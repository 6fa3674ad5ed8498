"""Studies that are kept: resumed, shared, and refused where they are another search's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import joblib
import numpy as np
import optuna
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from optuna.distributions import FloatDistribution
from optuna.storages import InMemoryStorage
from optuna.trial import TrialState
from scipy.stats import loguniform
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import make_scorer
from sklearn.model_selection import KFold, cross_val_score
from sklearn.pipeline import Pipeline

from skfusion import OptunaSearchCV

SPACE = {"C": FloatDistribution(1e-3, 1e3, log=True), "class_weight": [None, {0: 1, 1: 2}]}


@pytest.fixture
def data():
    return make_classification(40, n_features=4, random_state=0)


@pytest.fixture(params=["journal", "sqlite", "memory"])
def storage(request, tmp_path):
    if request.param == "memory":
        return InMemoryStorage()
    return {
        "journal": tmp_path / "search.journal",
        "sqlite": f"sqlite:///{tmp_path / 'search.db'}",
    }[request.param]


def make(storage, name="films", **options) -> OptunaSearchCV:
    options = {"n_trials": 8, "cv": 2, "random_state": 0, **options}
    return OptunaSearchCV(LogisticRegression(), SPACE, storage=storage, study_name=name, **options)


class Interrupting(LogisticRegression):
    """Ctrl-C during the seventh fit, which is the first of trial 3."""

    fits = 0

    def fit(self, X, y):
        Interrupting.fits += 1
        if Interrupting.fits == 7:
            raise KeyboardInterrupt
        return super().fit(X, y)


def test_an_interrupted_search_goes_on_to_the_end(storage, data):
    Interrupting.fits = 0
    search = make(storage).set_params(estimator=Interrupting())
    with pytest.raises(KeyboardInterrupt):
        search.fit(*data)
    states = [trial.state for trial in search.study_.trials]
    assert states == 3 * [TrialState.COMPLETE] + [TrialState.FAIL]
    with pytest.raises(NotFittedError):
        search.predict(data[0])
    search.study_.ask()  # as a process leaves it behind that was killed
    again = clone(search).fit(*data)  # a new object of the same name
    assert Interrupting.fits == 7 + 2 * 5 + 1  # nothing is measured twice; one refit
    assert again.n_trials_ == 8 and len(again.cv_results_["params"]) == 8
    drawn = [trial.params["C"] for trial in again.study_.trials if trial.params]
    assert len(set(drawn)) == 9  # the seed is the same, the draws are not
    assert drawn[:3] == [trial.params["C"] for trial in search.study_.trials[:3]]
    whole = clone(again).fit(*data)  # nothing is left to do
    np.testing.assert_array_equal(
        whole.cv_results_["mean_test_score"], again.cv_results_["mean_test_score"]
    )
    assert whole.cv_results_["params"] == again.cv_results_["params"]
    assert whole.best_params_ == again.best_params_


def test_without_a_name_each_fit_makes_a_study(storage, data):
    search = make(storage, None, n_trials=2)
    names = {search.fit(*data).study_.study_name for _ in range(2)}
    assert len(names) == 2 and search.n_trials_ == 2


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("space", {"param_distributions": {"C": loguniform(1e-3, 1e3)}}),
        ("space", {"param_distributions": lambda trial: {"C": trial.suggest_float("C", 1, 2)}}),
        ("estimator", {"estimator__max_iter": 50}),
        ("cv", {"cv": KFold(2, shuffle=True, random_state=1)}),
        ("scoring", {"scoring": "f1"}),
        ("scoring", {"cost": lambda estimator, X, y: 1.0}),
    ],
)
def test_a_study_of_another_search_is_refused(tmp_path, data, part, change):
    path = str(tmp_path / "search.log")
    make(path, n_trials=1).fit(*data)
    with pytest.raises(ValueError, match=f"'films' was made with another {part} than"):
        make(path).set_params(**change).fit(*data)
    assert make(path, n_trials=2).fit(*data).n_trials_ == 2


def test_a_study_of_other_data_or_of_someone_else_is_refused(tmp_path, data):
    path, (X, y) = tmp_path / "search.journal", data
    make(path, n_trials=1).fit(X, y)
    for args in [(X + 1, y), (X, 1 - y)]:
        with pytest.raises(ValueError, match="another data"):
            make(path).fit(*args)
    with pytest.raises(ValueError, match="another data"):
        make(path).fit(X, y, sample_weight=np.ones(len(y)))
    memory = InMemoryStorage()
    other = optuna.create_study(storage=memory, study_name="films", direction="maximize")
    other.add_trial(optuna.create_trial(value=1.0))
    with pytest.raises(ValueError, match="not made by OptunaSearchCV"):
        make(memory).fit(X, y)
    optuna.create_study(storage=memory, study_name="down", direction="minimize")
    with pytest.raises(ValueError, match="not made by OptunaSearchCV"):
        make(memory, "down").fit(X, y)


def test_a_study_goes_on_elsewhere(tmp_path, data):
    """Where things are cached and how many workers there are makes no other search."""
    path = tmp_path / "search.journal"
    search = make(path, n_trials=1)
    pipe = Pipeline([("clf", LogisticRegression())], memory=str(tmp_path / "here"))
    space = {f"clf__{name}": distribution for name, distribution in SPACE.items()}
    search.set_params(estimator=pipe, param_distributions=space).fit(*data)
    elsewhere = clone(search).set_params(
        estimator__memory=None, estimator__verbose=False, n_jobs=2
    )
    with joblib.parallel_config("threading"):
        assert elsewhere.set_params(n_trials=2, n_jobs=2).fit(*data).n_trials_ == 2
    assert elsewhere.study_.trials[0].params == search.study_.trials[0].params


def test_functions_count_by_what_they_do(tmp_path, data):
    def space(high):
        return lambda trial: {"C": trial.suggest_float("C", 0.1, high)}

    path = tmp_path / "search.journal"
    search = make(path, n_trials=1).set_params(param_distributions=space(1.0)).fit(*data)
    assert search.set_params(param_distributions=space(1.0)).fit(*data).n_trials_ == 1
    with pytest.raises(ValueError, match="another space"):
        search.set_params(param_distributions=space(2.0)).fit(*data)


def test_nested_folds_have_studies_of_their_own_and_resume_them(tmp_path, data):
    path = tmp_path / "search.journal"
    with pytest.raises(ValueError, match=r"'\{data\}' into study_name"):
        cross_val_score(make(path, n_trials=1), *data, cv=2, error_score="raise")
    search = make(path, "nested-{data}", n_trials=2)
    first = cross_val_score(search, *data, cv=2)
    studies = [s for s in optuna.get_all_study_names(_journal(path)) if "nested-" in s]
    assert len(studies) == 2
    np.testing.assert_array_equal(cross_val_score(search, *data, cv=2), first)
    assert len(optuna.get_all_study_names(_journal(path))) == 3  # with "films"


def _journal(path: Path) -> optuna.storages.JournalStorage:
    return optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))


# --- a writer that was killed -----------------------------------------------------------------

CUT = pytest.mark.filterwarnings("ignore:The last line of the Journal file:UserWarning")


@pytest.mark.parametrize("left", [1, 30, -1])  # bytes of the last line; -1: all but its end
@pytest.mark.parametrize("as_object", [False, True])
def test_half_a_last_line_is_left_out(tmp_path, data, left, as_object):
    path = tmp_path / "search.journal"
    drawn = make(path, n_trials=2).fit(*data).study_.trials[0].params
    *before, last = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(before) + last[:left])
    with pytest.warns(UserWarning, match=r"last line of .*search\.journal' is not whole.*killed"):
        again = make(_journal(path) if as_object else path, n_trials=4).fit(*data)
    assert again.n_trials_ == 4
    assert again.study_.trials[0].params == drawn
    assert path.read_bytes().startswith(b"".join(before))
    assert len(_journal(path).get_all_studies()) == 1  # Optuna can read it
    assert make(path, n_trials=5).fit(*data).n_trials_ == 5  # nothing is left to warn of


@CUT
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(0, 10**6))
def test_a_journal_that_is_cut_anywhere_goes_on(tmp_path, data, cut):
    path = tmp_path / "search.journal"
    if not (kept := tmp_path / "kept").exists():
        make(path, n_trials=2).fit(*data)
        kept.write_bytes(path.read_bytes())
    path.write_bytes(kept.read_bytes()[: cut % (kept.stat().st_size + 1)])
    assert make(path, n_trials=2).fit(*data).n_trials_ == 2
    assert make(path, n_trials=2).fit(*data).n_trials_ == 2


def test_a_line_that_is_cut_during_a_search_is_left_out(tmp_path, data):
    """By another process, killed while it wrote; the search that is going on writes next."""
    path = tmp_path / "search.journal"

    def cut(study, trial):
        if trial.number == 1:
            with open(path, "ab") as file:
                file.write(b'{"op_code":4,"worker_id":"some')

    with pytest.warns(UserWarning, match="is not whole"):
        search = make(path, n_trials=4, callbacks=[cut]).fit(*data)
    assert search.n_trials_ == 4
    assert make(path, n_trials=5).fit(*data).n_trials_ == 5


@CUT
def test_the_remains_of_two_writers_are_left_out(tmp_path, data):
    """Optuna alone writes the next line on to half a line; what is at the end may go."""
    path = tmp_path / "search.journal"
    make(path, n_trials=1).fit(*data)
    with open(path, "ab") as file:
        file.write(b'{"op_code":4,"worker{"op_code":4}\n')
    assert make(path, n_trials=2).fit(*data).n_trials_ == 2


@pytest.mark.parametrize("damage", [b"\x00\x00\x00", b'{"op_code":4,"wor', b"[]", b"\xff\xfe"])
def test_damage_in_the_middle_names_the_line(tmp_path, data, damage):
    path = tmp_path / "search.journal"
    make(path, n_trials=2).fit(*data)
    lines = path.read_bytes().split(b"\n")
    lines[4] = damage
    path.write_bytes(damaged := b"\n".join(lines))
    message = r"Line 5 of the Journal file '.*search\.journal' is damaged.*the 4 before it"
    with pytest.raises(ValueError, match=message):
        make(path).fit(*data)
    assert path.read_bytes() == damaged


def test_a_file_that_is_no_journal_is_never_written_to(tmp_path, data):
    path = tmp_path / "notes.log"
    for notes in (b"Tuesday: half a line", b"one\ntwo\n", b"[1]\n"):
        path.write_bytes(notes)
        with pytest.raises(ValueError, match=r"notes\.log' is there but no Journal file"):
            make(path).fit(*data)
        assert path.read_bytes() == notes
    path.write_bytes(b"")
    assert make(path, n_trials=1).fit(*data).n_trials_ == 1


@pytest.mark.slow
def test_two_processes_lose_no_trial(tmp_path, data):
    path = tmp_path / "search.journal"
    joblib.dump(make(path, n_trials=6).set_params(cv=[*KFold(2).split(data[0])]), tmp_path / "s")
    joblib.dump(data, tmp_path / "data")
    code = (
        "import joblib, sys; search, data = map(joblib.load, sys.argv[1:]); "
        "print(search.fit(*data).n_trials_)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "s"), str(tmp_path / "data")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    counts = [int(process.communicate(timeout=120)[0]) for process in running]
    search = make(path, n_trials=6).set_params(cv=[*KFold(2).split(data[0])]).fit(*data)
    trials = search.study_.trials
    assert [trial.number for trial in trials] == list(range(len(trials)))
    assert {trial.state for trial in trials} == {TrialState.COMPLETE}
    assert max(counts) == len(trials) in (6, 7)
    assert len({trial.params["C"] for trial in trials}) >= len(trials) - 1
    assert len(search.cv_results_["params"]) == len(trials)


def test_sqlite_warns_of_several_workers(tmp_path, data):
    url = f"sqlite:///{tmp_path / 'search.db'}"
    for storage in (url, optuna.storages.RDBStorage(url)):
        search = make(storage, None, n_trials=1, n_jobs=2)
        with (
            joblib.parallel_config("threading"),
            pytest.warns(UserWarning, match="SQLite, which locks its whole file"),
        ):
            search.fit(*data)


def test_a_path_that_is_no_journal_is_an_error(tmp_path, data):
    with pytest.raises(ValueError, match=r"'films\.db' is neither the URL .* \.log or \.journal"):
        make("films.db").fit(*data)


def test_what_cannot_be_hashed_is_named(tmp_path, data):
    search = make(tmp_path / "search.log", scoring=make_scorer(lambda y, p: 1.0))
    with pytest.raises(ValueError, match="must know its scoring, but that cannot be hashed"):
        search.fit(*data)
