"""Runs the judged tests beside each other, samples what they use, and writes a report: python watch.py TEST [--seconds N] [--seed N] [--out DIR]."""

import argparse
import html
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

# What is judged, by the test that does it, and what it is over.
RUNS = {"files": "judged::over_files", "sealed": "judged::over_s3", "minio": "judged::over_real_servers"}
EVERY_S = 2.0
# Growth from the second quarter to the last that is noise: histories differ in size, and replicas are young.
GROWTH_MAX = 1.5


def children(pid: int) -> list:
    """Processes below one, itself left out."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += [int(child), *children(int(child))]
    return found


def sample(pid: int, store: Path) -> dict:
    """What the replicas below a test use now: the largest of them counts. Processes come and go meanwhile."""
    rss, descriptors, replicas = 0, 0, 0
    try:
        below = children(pid)
    except OSError:
        below = []
    for child in below:
        try:
            if Path(f"/proc/{child}/comm").read_text().strip() != "kvasir":
                continue
            pages = int(Path(f"/proc/{child}/statm").read_text().split()[1])
            rss, descriptors = max(rss, pages * os.sysconf("SC_PAGE_SIZE")), max(descriptors, len(os.listdir(f"/proc/{child}/fd")))
            replicas += 1
        except OSError:
            continue
    stored = 0
    for folder, _, files in os.walk(store):
        for name in files:
            try:
                stored += os.stat(os.path.join(folder, name)).st_size
            except OSError:
                continue
    return {"replicas": replicas, "rss_bytes": rss, "descriptors": descriptors, "stored_bytes": stored}


def growth(values: list) -> float:
    """The last quarter's median over that of the second, in which all is warm."""
    quarter = len(values) // 4
    before, after = statistics.median(values[quarter : 2 * quarter]), statistics.median(values[-quarter:])
    return after / before if before else 1.0


def plot(title: str, unit: str, divisor: float, series: dict, seconds: float) -> str:
    """Lines over time as SVG."""
    width, height, colours = 720, 160, ["#1f77b4", "#d62728", "#2ca02c"]
    top = max((value for values in series.values() for value in values), default=0) / divisor or 1.0
    lines = []
    for colour, (name, values) in zip(colours, series.items()):
        points = " ".join(f"{60 + i * width / max(len(values) - 1, 1):.1f},{10 + height * (1 - value / divisor / top):.1f}" for i, value in enumerate(values))
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}"><title>{name}</title></polyline>')
    names = " · ".join(f'<tspan fill="{colour}">{name}</tspan>' for colour, name in zip(colours, series))
    return (f'<h2>{title}</h2><svg viewBox="0 0 {width + 80} {height + 50}" font-family="sans-serif" font-size="12">{"".join(lines)}'
            f'<text x="0" y="20">{top:.3g} {unit}</text><text x="0" y="{height + 10}">0</text>'
            f'<text x="60" y="{height + 30}">0 s to {seconds:.0f} s: {names}</text></svg>')


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("test")
    parser.add_argument("--seconds", type=int, default=3600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("target/hour"))
    parser.add_argument("--without-minio", action="store_true")
    given = parser.parse_args()
    runs = {name: test for name, test in RUNS.items() if name != "minio" or not given.without_minio}
    started, samples = {}, {name: [] for name in runs}
    for name, test in runs.items():
        folder = given.out.resolve() / name
        subprocess.run(["rm", "-rf", folder], check=True)
        (folder / "tmp").mkdir(parents=True)
        environment = {**os.environ, "TMPDIR": str(folder / "tmp"), "KVASIR_TEST_PROCESS_SECONDS": str(given.seconds), "KVASIR_TEST_PROCESS_SEED": str(given.seed)}
        with open(folder / "log", "w") as log:
            command = [given.test, "--nocapture", "--exact", test]
            started[name] = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    begun = time.monotonic()
    while any(process.poll() is None for process in started.values()):
        for name, process in started.items():
            if process.poll() is None:
                # Only the directory's store is in a folder; the others' are in processes of their own.
                stores = list((given.out / name / "tmp").glob("*/store"))
                samples[name].append(sample(process.pid, stores[0] if stores else Path("/nonexistent")))
        time.sleep(EVERY_S)
    seconds = time.monotonic() - begun
    wrong = [f"{name}: the judge found a wrong answer; see {given.out / name / 'log'}" for name, process in started.items() if process.returncode]
    rows = []
    for name, taken in samples.items():
        for what in ("rss_bytes", "descriptors", "stored_bytes"):
            values = [one[what] for one in taken if one["replicas"]]
            if len(values) < 8 or not any(values):
                continue
            grew = growth(values)
            rows.append((name, what, max(values), f"{grew:.2f}"))
            # A short run is all beginning.
            if seconds >= 600 and grew > GROWTH_MAX:
                wrong.append(f"{name}: {what} grew to {grew:.2f} times")
    last = {name: [line for line in (given.out / name / "log").read_text().splitlines() if "histories after" in line][-1:] for name in runs}
    (given.out / "samples.json").write_text(json.dumps({"seconds": seconds, "seed": given.seed, "samples": samples, "judged": last, "wrong": wrong}))
    page = [f"<!doctype html><meta charset=utf-8><title>The long hour</title><h1>The long hour: {seconds:.0f} s, seed {given.seed}</h1>"]
    page += [f"<p><b>{html.escape(text)}</b>" for text in wrong or ["No answer was wrong, and nothing grew."]]
    page += [f"<pre style='white-space:pre-wrap'>{html.escape(line)}</pre>" for lines in last.values() for line in lines]
    for title, unit, divisor, what in (("Memory of the largest replica", "MiB", 1 << 20, "rss_bytes"), ("Descriptors of the replica with most", "", 1, "descriptors"), ("Bytes in the store", "MB", 1e6, "stored_bytes")):
        page.append(plot(title, unit, divisor, {name: [one[what] for one in taken] for name, taken in samples.items()}, seconds))
    page.append("<table border=1 cellpadding=4><tr><th>over<th>what<th>most<th>last quarter / second</tr>")
    page += [f"<tr><td>{name}<td>{what}<td>{most}<td>{grew}</tr>" for name, what, most, grew in rows]
    (given.out / "report.html").write_text("\n".join([*page, "</table>"]))
    for line in [line for lines in last.values() for line in lines] + [" ".join(map(str, row)) for row in rows] + wrong:
        print(line)
    print(f"{given.out / 'report.html'}: {'FAILED' if wrong else 'nothing wrong'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
