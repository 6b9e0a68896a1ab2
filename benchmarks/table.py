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
    if record.get("suite") == "scaling":
        return scaling(record["rows"])
    if record.get("suite") == "saving":
        header = (
            f"{record['model']}, {record['state_bytes'] / 2**20:,.0f} MiB",
            "ms blocked",
            "ms of the first",
            "ms/step",
            "beside writing",
        )
        return rows(header, map(saving, record["saving"]))
    if "rows" in record:
        return modes(record["rows"])
    if "seeds" in record:
        return rows(
            ("`python -m src.train ...`", "computed in", "val/accuracy", "runs"), map(seeds, *zip(*record["seeds"].items(), strict=True))
        )
    if "median" in record:
        return rows(("setting", "images/s"), ([name, f"{value:,.0f}"] for name, value in record["median"].items()))
    if "pretrained" in record:
        return rows(("start", "val/accuracy", "seconds", "runs"), (finetuned(name, runs) for name, runs in record["runs"].items()))
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


def scaling(found: list[dict[str, Any]]) -> Iterable[str]:
    """Steps on one device and, with the same batch on each, on all."""
    cells = (
        [
            f"{row['model']}, {row['batch_size_per_device']}",
            row["setting"],
            str(row["devices"]),
            f"{row['ms_per_step']:.2f}",
            f"{row['images_per_second']:,.0f}",
            f"{row['speedup']:.2f}x",
        ]
        for row in found
    )
    return rows(("network, batch of each device", "parallel", "devices", "ms/step", "images/s", "speed of one"), cells)


def saving(found: dict[str, Any]) -> list[str]:
    """What checkpoints cost training."""
    name = "in the background" if found["background"] else "at once"
    return [name, *(f"{found[key]:.1f}" for key in ("blocked_ms", "first_blocked_ms", "step_ms_before", "step_ms_beside"))]


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
    """Accuracies over seeds; runs that failed are counted."""
    good = [run for run in runs if run["exit_code"] == 0]
    failed = len(runs) - len(good)
    precision = (good or runs)[0]["precision"] or {"dtype": "?", "scaler": False}
    return [
        f"`{command}`",
        precision["dtype"] + (" + scaler" if precision["scaler"] else ""),
        spread([run["best_accuracy"] for run in good]) if good else "",
        f"{len(runs)}" + (f", {failed} failed" if failed else ""),
    ]


def finetuned(start: str, runs: list[dict[str, Any]]) -> list[str]:
    """Accuracy and time of one way to start."""
    return [start, spread([r["best_accuracy"] for r in runs]), f"{median(r['duration_seconds'] for r in runs):.0f}", str(len(runs))]


def spread(values: list[float]) -> str:
    """The median, and the range of several."""
    return f"{median(values):.4f}" + (f" ({min(values):.4f}-{max(values):.4f})" if len(values) > 1 else "")


if __name__ == "__main__":
    main()
