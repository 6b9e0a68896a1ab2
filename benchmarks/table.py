"""``python benchmarks/table.py``: every file of benchmarks/results as Markdown tables, medians over the runs."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Write the tables to standard output."""
    for path in sorted(RESULTS.glob("*.json")):
        record = json.loads(path.read_text())
        title = f"{record.get('suite', record.get('what'))}: {record['device']}, torch {record['versions']['torch']}, {record['date']}"
        sys.stdout.write("\n".join([title, "", *table(record)]) + "\n\n")


def table(record: dict[str, Any]) -> Iterable[str]:
    """The table of one file, by what it holds."""
    if "rows" in record:
        return modes(record["rows"])
    if "median" in record:
        return rows(("setting", "images/s"), ([name, f"{value:,.0f}"] for name, value in record["median"].items()))
    if "pretrained" in record:
        return rows(("start", "val/accuracy", "seconds", "runs"), (finetuned(name, runs) for name, runs in record["runs"].items()))
    if all("images_per_second" not in run for runs in record["runs"].values() for run in runs):
        return rows(
            ("`python -m src.train ...`", "computed in", "val/accuracy", "runs"), map(seeds, *zip(*record["runs"].items(), strict=True))
        )
    header = ("`python -m src.train ...`", "computed in", "val/accuracy", "images/s", "seconds", "memory GiB", "runs")
    return rows(header, (trained(command, runs) for command, runs in record["runs"].items()))


def rows(header: tuple[str, ...], cells: Iterable[list[str]]) -> Iterable[str]:
    """Lines of a Markdown table."""
    yield "| " + " | ".join(header) + " |"
    yield "|" + "---|" * len(header)
    for row in cells:
        yield "| " + " | ".join(row) + " |"


def modes(found: list[dict[str, Any]]) -> Iterable[str]:
    """Steps of every mode, with speed and memory against fp32 of the same network and batch."""
    reference = {(row["model"], row["batch_size"]): row for row in found if row["mode"] == "fp32"}
    cells = []
    for row in found:
        base = reference[row["model"], row["batch_size"]]
        cells.append(
            [
                f"{row['model']}, {row['batch_size']}",
                row["mode"],
                row["computed_dtype"] + (" + scaler" if row["loss_scaling"] else ""),
                f"{row['ms_per_step']:.1f}",
                f"{row['images_per_second']:,.0f}",
                f"{base['ms_per_step'] / row['ms_per_step']:.2f}x",
                f"{row['peak_memory_bytes'] / 2**30:.2f}",
                f"{row['peak_memory_bytes'] / base['peak_memory_bytes']:.2f}",
            ]
        )
    return rows(("network, batch", "precision", "computed in", "ms/step", "images/s", "speed of fp32", "GiB", "memory of fp32"), cells)


def trained(command: str, runs: list[dict[str, Any]]) -> list[str]:
    """Medians over the runs; the speed is the median epoch after the first, which warms up."""
    rates = [median(r["images_per_second"][1:] or r["images_per_second"]) for r in runs]
    first = runs[0]
    return [
        f"`{command}`" if command else "(defaults)",
        first["dtype"] + (" + scaler" if first["scaler"] else ""),
        spread([r["best_accuracy"] for r in runs]),
        f"{median(rates):,.0f}",
        f"{median(r['duration_seconds'] for r in runs):.0f}",
        f"{median(r['peak_memory_bytes'] for r in runs) / 2**30:.2f}",
        str(len(runs)),
    ]


def seeds(command: str, runs: list[dict[str, Any]]) -> list[str]:
    """Accuracies of runs that shared their device."""
    return [
        f"`{command}`",
        runs[0]["dtype"] + (" + scaler" if runs[0]["scaler"] else ""),
        spread([r["best_accuracy"] for r in runs]),
        str(len(runs)),
    ]


def finetuned(start: str, runs: list[dict[str, Any]]) -> list[str]:
    """Accuracy and time of one way to start."""
    return [start, spread([r["best_accuracy"] for r in runs]), f"{median(r['duration_seconds'] for r in runs):.0f}", str(len(runs))]


def spread(values: list[float]) -> str:
    """The median, and the range of several."""
    return f"{median(values):.4f}" + (f" ({min(values):.4f}-{max(values):.4f})" if len(values) > 1 else "")


if __name__ == "__main__":
    main()
