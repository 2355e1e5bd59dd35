"""Measures the time of `import kvasir`: the minimum over twenty fresh interpreters, minus the interpreter's own start time."""

import subprocess
import sys
import time

ROUNDS = 20


def least(code: str) -> float:
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        times.append(time.perf_counter() - started)
    return min(times)


if __name__ == "__main__":
    print(f"import kvasir: {1e3 * (least('import kvasir') - least('pass')):.1f} ms")
