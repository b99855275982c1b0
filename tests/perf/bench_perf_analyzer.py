"""Triton's own load generator on every model of a server, and the first-response times of its export.

    python tests/perf/bench_perf_analyzer.py --program .venv/perf_analyzer/perf_analyzer [--requests 30]

What its numbers mean: docs/perf_analyzer.md.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

from triton_speech.serve.layout import find_models
from triton_speech.serve.ports import Ports
from triton_speech.serve.server import ServerSettings, TritonServer
from triton_speech_client.perf_analyzer.inputs import write_inputs
from triton_speech_client.perf_analyzer.report import EXPLANATION, read_export, table

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, required=True, help="perf_analyzer")
    parser.add_argument("--checkpoint", type=Path, default=ROOT / "checkpoints" / "quickstart")
    parser.add_argument("--profile", default="cpu")
    parser.add_argument("--concurrency", type=int, default=2)
    parser.add_argument("--requests", type=int, default=30, help="of each model")
    args = parser.parse_args()
    if not args.program.is_file():
        raise SystemExit(f"{args.program} is not there: python tests/perf/get_perf_analyzer.py {args.program.parent}")
    settings = ServerSettings(
        models=find_models(ROOT), checkpoints=args.checkpoint, profile=args.profile, ports=Ports(0, 0, 0)
    )
    more = ["--request-count", str(args.requests), "--concurrency-range", str(args.concurrency)]
    with TritonServer(settings) as server, tempfile.TemporaryDirectory() as folder:
        server.wait_ready(600)
        for one in write_inputs(Path(folder), server.grpc_url):
            words = one.command(server.grpc_url, more, str(args.program))
            done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
            print(f"{one.model}\n")
            if done.returncode:
                print(done.stdout[-500:], done.stderr[-500:])
                continue
            print(table(read_export(one.path.with_suffix(".export.json"))))
            print(f"\nperf_analyzer itself prints: {_line(done.stdout, 'p50 latency')}\n", flush=True)
    print(EXPLANATION)


def _line(text: str, words: str) -> str:
    return next((line.strip() for line in text.splitlines() if words in line), f"no {words}")


if __name__ == "__main__":
    main()
