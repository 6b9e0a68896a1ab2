"""The tables without a terminal, and how a long network becomes a short one."""

from collections import Counter
from io import StringIO

import pytest
import torch
from rich.console import Console

from src.survey.coverage import Coverage, Kind
from src.survey.machine import ModeReport
from src.survey.tables import coverage_rows, half_sentence, show_coverage, show_formats, show_modes

CPU = torch.device("cpu")


def deep(stages: int = 4, blocks: int = 10) -> Coverage:
    coverage = Coverage()
    for stage in range(stages):
        for block in range(blocks):
            for layer in ("conv1", "conv2"):
                name = f"stage{stage}.{block}.{layer}"
                coverage.flops[Kind(name, "convolution", "float16", False)] = 10
                coverage.flops[Kind(name, "convolution", "float16", True)] = 20
                coverage.casts[name] = 3
    coverage.casts["(loss)"] = 2
    return coverage


def printed(show, *args, **kwargs) -> str:
    text = StringIO()
    show(Console(file=text, width=160), *args, **kwargs)
    return text.getvalue()


def test_a_short_network_is_shown_layer_by_layer():
    rows = coverage_rows(deep(blocks=2), expected="float16")
    assert [row.module for row in rows[:4]] == ["stage0.0.conv1", "stage0.0.conv2", "stage0.1.conv1", "stage0.1.conv2"]
    assert [(row.flops, row.casts) for row in rows[:-1]] == [(30, 3)] * 16


@pytest.mark.parametrize(("limit", "names"), [(41, ["stage0.0", "stage0.1"]), (40, ["stage0", "stage1"])])
def test_a_long_one_by_the_fronts_of_the_names(limit, names):
    """40 blocks and the loss: 41 rows, or 4 stages and the loss."""
    coverage = deep()
    rows = coverage_rows(coverage, expected="float16", limit=limit)
    assert [row.module for row in rows[:2]] == names
    assert sum(row.flops for row in rows) == sum(coverage.flops.values())
    assert sum(row.casts for row in rows) == sum(coverage.casts.values())


def test_a_layer_that_differs_is_shown_by_its_own_name():
    coverage = deep()
    coverage.flops[Kind("stage2.4.conv2", "convolution", "float32", False)] = 10
    coverage.flops[Kind("stage2.4.proj", "matmul", "float32", False)] = 7
    rows = coverage_rows(coverage, expected="float16", limit=12)
    found = {(row.module, row.number_format): row.flops for row in rows}
    assert found[("stage2.4.conv2", "float32")] == 10
    assert found[("stage2.4.proj", "float32")] == 7
    assert found[("stage2", "float16")] == 600


def test_the_coverage_table():
    lines = printed(show_coverage, deep(), images=2, expected="float16").splitlines()
    assert lines[0].split() == ["module", "op", "dtype", "MFLOP", "an", "image", "casts", "a", "step"]
    assert lines[1].split() == ["stage0", "convolution", "float16", "0.0003", "60"]
    assert lines[-2].split() == ["total", "0.0012", "242"]
    assert len(lines) < 45


def test_the_table_of_modes():
    modes = [ModeReport("amp", True, "float16", 7.84, "tensor cores"), ModeReport("o3", False, "-", None, "it failed")]
    lines = printed(show_modes, modes).splitlines()
    assert lines[1].split() == ["amp", "yes", "float16", "yes,", "7.8x", "tensor", "cores"]
    assert lines[2].split() == ["o3", "no", "-", "-", "it", "failed"]


def test_the_table_of_formats():
    lines = printed(show_formats, ["float32", "bfloat16"], {"float32": 4e9}, CPU).splitlines()
    assert lines[2].split()[:3] == ["float32", "4", "1x"]
    assert lines[3].split()[:3] == ["bfloat16", "fails", "-"]


@pytest.mark.parametrize(("speed", "said"), [(8e9, "supports float16 well: 2x"), (1e9, "gains nothing from float16: 0.25x")])
def test_whether_float16_is_supported_well(speed, said):
    """The articles' question, answered by a measurement."""
    assert said in half_sentence({"float32": 4e9, "float16": speed}, CPU)


def test_markup_in_names_is_text():
    coverage = Coverage(Counter({Kind("[bold]", "matmul", "float16", False): 1}), Counter(), kernels=1)
    assert "[bold]" in printed(show_coverage, coverage, images=1, expected="float16")
