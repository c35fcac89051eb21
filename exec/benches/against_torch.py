#!/usr/bin/env python3
"""Takes turns with a PyTorch pipeline of the same model and prints the ratios torch / pipewright (above 1: we are faster).

    python exec/benches/against_torch.py PEER.py [TURNS]

PEER.py trains the model of benches/step.rs with torch.distributed.pipelining, takes --pp, --schedule, --chunks, --threads,
--steps and --warmup, and prints one JSON object with step_s_median. Needs torch in the Python that runs this, and
`cargo bench -p pipewright-exec --bench step --no-run` beforehand.
"""
import json, pathlib, statistics, subprocess, sys

peer, turns = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 6
root = pathlib.Path(__file__).resolve().parents[2]
benches = sorted((root / "target/release/deps").glob("step-*"), key=lambda p: p.stat().st_mtime)
ours = str([b for b in benches if b.suffix == ""][-1])
JOBS = {
    "loop": ["--pp", "1"],
    "1f1b": ["--pp", "2", "--schedule", "1f1b"],
    "interleaved": ["--pp", "2", "--schedule", "interleaved", "--chunks", "2"],
}


def step(command):
    line = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().splitlines()[-1]
    return json.loads(line)["step_s_median"]


for job, options in JOBS.items():
    torch, pipewright = [], []
    for _ in range(turns):
        torch.append(step([sys.executable, peer, *options, "--threads", "1", "--steps", "3", "--warmup", "1"]))
        pipewright.append(step([ours, job]))
    ratios = [t / p for t, p in zip(torch, pipewright)]
    print(
        f"{job:<12} torch {statistics.median(torch):.3f} s  pipewright {statistics.median(pipewright):.3f} s  "
        f"ratio median {statistics.median(ratios):.2f}, from {min(ratios):.2f} to {max(ratios):.2f}",
        flush=True,
    )
