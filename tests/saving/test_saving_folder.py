"""The folder appears complete or not at all, and says what wrote it."""

from __future__ import annotations

import json
import os
import warnings

import pytest
import sklearn
from sklearn.exceptions import InconsistentVersionWarning
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import FunctionTransformer

import skfusion
from skfusion import _files
from skfusion.saving import load, save


@pytest.fixture
def saved(tmp_path):
    save(LogisticRegression(C=2.0), tmp_path / "model")
    return tmp_path / "model"


def rewrite(folder, **values):
    file = folder / "skfusion.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_a_saved_model_is_replaced(saved):
    save(LogisticRegression(C=3.0), saved)
    assert load(saved).C == 3.0
    assert [path.name for path in saved.parent.iterdir()] == ["model"]


def test_folders_are_made_and_an_empty_one_is_filled(tmp_path):
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "a" / "b", tmp_path / "empty"):
        save(LogisticRegression(C=2.0), str(path))
        assert load(str(path)).C == 2.0


def test_what_is_not_ours_is_not_replaced(tmp_path, saved):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine.txt").write_text("mine")
    (saved / "notes.txt").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "folder", saved):
        with pytest.raises(FileExistsError, match="is no folder that skfusion"):
            save(LogisticRegression(), path)
    assert (tmp_path / "file").read_text() == (saved / "notes.txt").read_text() == "mine"


def test_an_estimator_that_cannot_be_saved_leaves_the_older_one(saved):
    with pytest.raises(TypeError):
        save(FunctionTransformer(lambda X: X), saved)
    assert load(saved).C == 2.0


def test_a_failing_disk_leaves_the_older_one(saved, monkeypatch):
    rename = os.rename

    def failing(source, target):
        if str(source).endswith("new"):
            raise OSError("disk")
        rename(source, target)

    monkeypatch.setattr(_files.os, "rename", failing)
    with pytest.raises(OSError, match="disk"):
        save(LogisticRegression(C=3.0), saved)
    assert load(saved).C == 2.0
    assert [path.name for path in saved.parent.iterdir()] == ["model"]


def test_no_model(tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(FileNotFoundError, match="no model at"):
            load(path)


def test_another_format_is_refused(saved):
    rewrite(saved, format=99, versions={"skfusion": "9.0"})
    with pytest.raises(ValueError, match=r"format 99, and this skfusion reads 1.*9\.0"):
        load(saved)
    rewrite(saved, magic="something else")
    with pytest.raises(ValueError, match="not written by skfusion"):
        load(saved)


def test_another_scikit_learn_is_a_warning(saved):
    versions = {"skfusion": skfusion.__version__, "scikit-learn": "1.0"}
    rewrite(saved, versions=versions)
    with pytest.warns(InconsistentVersionWarning, match=r"1\.0") as caught:
        assert load(saved).C == 2.0
    assert len(caught) == 1 and caught[0].filename == __file__


def test_another_skfusion_is_a_warning(saved):
    versions = {"skfusion": "0.0.1", "scikit-learn": sklearn.__version__}
    rewrite(saved, versions=versions)
    with pytest.warns(UserWarning, match=r"skfusion 0\.0\.1 .* fit it again") as caught:
        assert load(saved).C == 2.0
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="skfusion"):
            load(saved)
