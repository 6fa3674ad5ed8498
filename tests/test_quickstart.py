"""The example that the README runs first: what it reads, and what it says of bad input."""

from types import SimpleNamespace

import pytest

pytest.importorskip("matplotlib")

from quickstart import check_labels, draw_weights, layer_weights, main, read_rows


def test_columns_are_named_by_the_user(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text('\ufeffid,body,topic\n1,"two\nlines",a\n2,plain,b\n', encoding="utf-8")
    assert read_rows(path, "body", "topic") == (["two\nlines", "plain"], ["a", "b"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("body,label\nx,y\n", "no column text, but body, label: name the columns with --text"),
        ("", "no column label and no column text, but nothing"),
        ("text,label\nx\n", "line 2 has too few columns"),
        ("text,label\nx,a\ny,a\n", "needs two classes or more"),
    ],
)
def test_a_bad_file_is_said_before_a_model_is_fetched(tmp_path, capsys, content, message):
    path = tmp_path / "bad.csv"
    path.write_text(content)
    with pytest.raises(SystemExit):
        main(["--data", str(path), "--model", "no/model"])
    assert message in capsys.readouterr().err


def test_folds_need_two_texts_of_a_class():
    check_labels(["a", "a", "b"], 2)
    with pytest.raises(ValueError, match="at least 2 texts of a class"):
        check_labels(["a", "b"], 2)


def test_the_picture_has_a_panel_for_each_language_model():
    blend = SimpleNamespace(layer_weights_={"layer0_mean": 0.25, "layer1_mean_no_first": 0.75})
    union = SimpleNamespace(embedders_=[("one", blend), ("words", object()), ("two", blend)])
    weights = layer_weights(SimpleNamespace(pipeline_={"embed": union}))
    expected = {"mean": {0: 0.25}, "mean_no_first": {1: 0.75}}
    assert weights == {"one": expected, "two": expected}
    axes = draw_weights(weights, {"one": 0.5, "words": 0.2, "two": 0.3}).axes
    titles = ["one: 50 % of the whole", "two: 30 % of the whole"]
    assert [axis.get_title() for axis in axes] == titles
    assert [bar.get_width() for bar in axes[0].patches] == [25, 0, 0, 75]
