#!/usr/bin/env python3
"""`lockstep config --inference`: output, rejected files, and configuration.md, which it generates.

commands.py BUILD          ends with "N passed, N failed"
"""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests"))
from programs import check, finish, run  # noqa: E402

r = run("lockstep", "config", "--inference", "--reference")
check("configuration.md is current (lockstep config --inference --reference > extensions/inference/configuration.md)", r.returncode == 0 and r.stdout == (ROOT / "extensions/inference/configuration.md").read_text())
r = run("lockstep", "config", "--inference", '{"tp": {"tp_size": 2}, "dtype": "half", "kernel_inject": true}')
check("an inference file", r.returncode == 0 and '"fp16"' in r.stdout and "tensor_parallel.tp_size" in r.stdout and "the same kernels serve every model" in r.stderr, r.stdout + r.stderr)
r = run("lockstep", "config", "--inference", '{"dtype": "float8", "zero": {"stage": 3, "offload_param": {"device": "gpu"}}}')
check("an inference file with problems", r.returncode == 2 and "2 problems" in r.stderr and "expected none, cpu or nvme" in r.stderr and "'float8' is not a dtype" in r.stderr, r.stdout + r.stderr)
finish()
