"""What README and docs/options.md say about the options is what the schema says."""

import re
from pathlib import Path

import pytest

from src.config import docs
from src.config.docs import about_option, by_section, markdown_tables, own_rows, rows
from src.config.keys import choosable, every_leaf, leaves
from src.config.schema import OPTIONS, Config, EvaluateConfig

ROOT = Path(__file__).parents[3]
NAMES = {group: next(iter(options)) for group, options in OPTIONS.items()}


def test_the_committed_page_is_the_generated_one() -> None:
    assert (ROOT / "docs/options.md").read_text(encoding="utf-8") == markdown_tables(), "run: python -m src.config.docs > docs/options.md"


@pytest.mark.parametrize("group", OPTIONS)
def test_readme_lists_every_option(group: str) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (line,) = [line for line in readme.splitlines() if line.startswith(f"| `{group}` |")]
    assert set(re.findall(r"`([^`]*)`", line.split("|")[2])) == set(OPTIONS[group])


def test_the_page_has_every_key_and_option() -> None:
    page = markdown_tables()
    for path in choosable(every_leaf(EvaluateConfig)):
        assert f"| `{path}` | " in page
    for options in OPTIONS.values():
        for name in options:
            assert f"| `{name}` | " in page
    for line in page.splitlines():
        assert not line.startswith("|") or len(re.findall(r"(?<!\\)\|", line)) in (3, 5)


def test_a_key_that_options_declare_differently_has_a_row_for_each() -> None:
    lines = [line for line in markdown_tables().splitlines() if line.startswith("| `optim.lr` |")]
    assert [("`0.002`" in line, "(only `adamw`)" in line) for line in lines] == [(True, True), (False, False)]


def test_rows_go_to_their_section_in_the_order_of_the_schema() -> None:
    found = by_section(rows(leaves(Config, NAMES)), Config)
    assert list(found)[:4] == ["", "objective", "train", "save"]
    assert {"seed", "tags"} <= {row.key for row in found[""]}
    assert {row.key.partition(".")[0] for section, part in found.items() if section for row in part} <= set(found)


def test_an_options_own_rows_are_its_new_keys_and_other_defaults() -> None:
    own = {row.key: row.default for row in own_rows("optim", "sgd", "adamw")}
    assert own == {"optim.lr": "0.05", "optim.weight_decay": "0.0005", "optim.momentum": "0.9", "optim.nesterov": "true"}
    assert own_rows("model", "resnet18", "digits_cnn") == []


def test_an_options_line_is_below_hydras_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs, "CONF_DIR", tmp_path)
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "o.yaml").write_text("# @package _global_\n# Says it.\n# More.\n")
    assert about_option("g", "o") == "Says it."
    assert about_option("g", "none") == ""
