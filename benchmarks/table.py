"""``python benchmarks/table.py``: every file of benchmarks/results as one Markdown table, medians over the runs."""

import json
import sys
from pathlib import Path
from statistics import median

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Write the tables to standard output."""
    for path in sorted(RESULTS.glob("*.json")):
        record = json.loads(path.read_text())
        versions = record["versions"]
        out = [f"{record['suite']}: {record['device']}, torch {versions['torch']}, {record['date']}", ""]
        out += [
            "| `python -m src.train ...` | computed in | val/accuracy | images/s | seconds | memory GiB | runs |",
            "|---|---|---|---|---|---|---|",
        ]
        out += [row(command, runs) for command, runs in record["runs"].items()]
        sys.stdout.write("\n".join(out) + "\n\n")


def row(command: str, runs: list[dict]) -> str:
    """Medians over the runs; the speed is the median epoch after the first, which warms up."""
    accuracies = sorted(r["best_accuracy"] for r in runs)
    rates = [median(r["images_per_second"][1:] or r["images_per_second"]) for r in runs]
    spread = f"{median(accuracies):.4f}" + (f" ({accuracies[0]:.4f}-{accuracies[-1]:.4f})" if len(runs) > 1 else "")
    first = runs[0]
    computed = first["dtype"] + (" + scaler" if first["scaler"] else "")
    cells = [f"`{command}`" if command else "(defaults)", computed, spread, f"{median(rates):,.0f}"]
    cells += [
        f"{median(r['duration_seconds'] for r in runs):.0f}",
        f"{median(r['peak_memory_bytes'] for r in runs) / 2**30:.2f}",
        str(len(runs)),
    ]
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
