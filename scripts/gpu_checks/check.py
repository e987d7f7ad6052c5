#!/usr/bin/env python3
"""The checks on a card, within eight minutes: unpack the archive of `scripts/gpu_checks.sh --bundle` and call

    python3 check.py [--only cases|nccl|speed]... [--out FOLDER] [--seconds 480]

It needs bash, python3, a driver and CUDA's libraries (of a toolkit, or those that PyTorch brings). It writes FOLDER/report.md
(default: report) and each command's output beside it, and ends with "N passed, N failed, N not run"; the exit code is 0 if all held.

cases       every test case in a process of its own, golden values, training against results on the CPU, recorded steps against others,
            the sanitizer tools over the kernels' cases
nccl        two ranks on this card by NCCL: replicas, stages, tensor and context parallelism, ZeRO
speed       kernels against the bandwidth, a step kernel by kernel, GPT-2 124M in the steady state, PyTorch beside them
"""
import argparse
import collections
import concurrent.futures
import csv
import glob
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time

HERE = pathlib.Path(__file__).resolve().parent
BIN = HERE / "bin"
PARTS = ["cases", "nccl", "speed"]
AT_ONCE = 14
SECONDS = 480  # for everything; each command's limit is for this, and grows and shrinks with --seconds
SHARE = 0.52  # of the time is for the checks that run together, if others follow
FAMILIES = {"attention": "*attention*", "norms": "*norm*", "losses": "*cross entropy*", "products": "cuda matmul*", "indices": "*by index*,*gather*", "pointwise": "*pointwise op*", "steps": "cuda: a step over all*"}
TOOLS = {"memcheck": FAMILIES, "racecheck": ["norms", "losses", "attention"], "initcheck": ["norms", "losses", "attention"], "synccheck": ["norms", "losses", "attention"]}
RANK = 'NCCL_HOSTID=host$RANK NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_MAX_CTAS=1 exec "$@"'

Done = collections.namedtuple("Done", "code text seconds")


class NotRun(Exception):
    """A check that could not be made; its text is the reason."""


class Skipped(NotRun):
    """The same, where the machine need not have what the check needs."""


class Checks:
    def __init__(self, out, seconds):
        self.out, self.end, self.began = out, time.monotonic() + seconds, time.monotonic()
        self.scale = max(seconds / SECONDS, 0.05)
        self.counts = collections.Counter()
        self.rows, self.failures, self.pages = [], [], []
        self.env = dict(os.environ)

    def left(self):
        return self.end - time.monotonic()

    def run(self, command, limit, plain=False, **variables):
        """Runs a command to its end or its limit; plain: without our libraries."""
        own, limit = limit * self.scale, min(limit * self.scale, self.left())
        if limit <= 0:
            raise NotRun("no time left")
        begin, env = time.monotonic(), {**(os.environ if plain else self.env), **variables}
        try:
            child = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=env, cwd=self.out, start_new_session=True)
        except OSError as error:
            return Done(127, str(error), 0)
        try:
            text, code = child.communicate(timeout=limit)[0], child.returncode
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            text, code = child.communicate()[0], "timeout"
            if limit < own:
                raise NotRun(f"no time left: stopped after {limit:.1f} s")
            text += f"\nstopped after {limit:.0f} s".encode()
        return Done(code, text.decode(errors="replace"), time.monotonic() - begin)

    def take(self, part, name, check):
        """Makes one check: a function that returns a note, or raises. Thread-safe but for the order of rows."""
        begin, note = time.monotonic(), ""
        try:
            note, state = check() or "", "passed"
        except Skipped as why:
            note, state = str(why), "skipped"
        except NotRun as why:
            note, state = str(why), "not run"
        except Exception as error:  # of a check, or of a program's output that is not what it should be
            note, state = f"{error}" if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}", "failed"
        return part, name, state, note, time.monotonic() - begin

    def keep(self, result, printed=True):
        part, name, state, note, seconds = result
        self.counts[state] += 1
        first = note.strip().splitlines()[0][:160] if note.strip() else ""
        if state == "failed":
            self.failures.append(f"### {part}: {name}\n\n```\n{shortened(note)}\n```\n")
        if printed or state != "passed":
            self.rows.append(f"| {part} | {name.replace('|', '/')[:120]} | {state} | {seconds:.1f} s | {first.replace('|', '/')} |")
            print(f"{state:8} {part}: {name} ({seconds:.1f} s){': ' + first if first else ''}", flush=True)

    def one(self, part, name, check):
        self.keep(self.take(part, name, check))


def shortened(text):
    return text if len(text) < 4000 else text[:1500] + "\n...\n" + text[-2500:]


def require(condition, what):
    if not condition:
        raise AssertionError(what)


def good(done):
    require(done.code == 0, f"exit {done.code}\n{done.text}")
    return done.text


def result_of(done):
    """The JSON object that is the last line of a program's output."""
    return json.loads(good(done).strip().splitlines()[-1])


# --- Libraries and the device -------------------------------------------------------------------------------------


def library_folders():
    """Where CUDA's libraries may be, the likeliest first."""
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    folders += [f"{os.environ[v]}/lib64" for v in ("CUDA_HOME", "CUDA_PATH") if v in os.environ]
    folders += sorted(glob.glob("/usr/local/cuda*/lib64"), reverse=True) + glob.glob("/usr/local/cuda*/targets/*/lib")
    for packages in {*sys.path, *(sysconfig.get_paths()[k] for k in ("purelib", "platlib"))}:
        folders += glob.glob(f"{packages}/nvidia/*/lib") + glob.glob(f"{packages}/nvidia/lib")
    folders += glob.glob("/usr/lib/*-linux-gnu") + ["/usr/lib64", "/usr/lib"]
    return [f for f in folders if f and os.path.isdir(f)]


def find_libraries(wanted, folders):
    """The folders that hold the wanted libraries, and those that no folder holds."""
    found, missing = [], []
    for name in wanted:
        place = next((f for f in folders if os.path.exists(f"{f}/{name}")), None)
        if place is None:
            missing.append(name)
        elif place not in found:
            found.append(place)
    return found, missing


def take_libraries(checks, folders):
    """Lets programs find the archive's libraries and the folders' after them: the compiler's only if they do not start with the machine's."""
    for ours in ([HERE / "lib"], [HERE / "lib", HERE / "lib/compiler"]):
        checks.env["LD_LIBRARY_PATH"] = ":".join([*map(str, ours), *folders, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
        if checks.run([BIN / "lockstep", "--version"], 60).code == 0:
            return


def tool(name):
    """A program of CUDA's toolkit."""
    places = [shutil.which(name), *(f"{r}/{name}" for r in sorted(glob.glob("/usr/local/cuda*/bin") + glob.glob("/opt/nvidia/nsight-*/*") + glob.glob("/opt/nvidia/nsight-systems/*/bin"), reverse=True))]
    if os.environ.get("CUDA_HOME"):
        places.insert(0, f"{os.environ['CUDA_HOME']}/bin/{name}")
    found = next((p for p in places if p and os.path.isfile(p) and os.access(p, os.X_OK)), None)
    if not found:
        raise Skipped(f"there is no {name} in the toolkit")
    return found


def why_no_device(checks):
    """Empty, or the reason why programs have no device."""
    try:
        done = checks.run([BIN / "lockstep", "env"], 60)
    except NotRun as why:
        return str(why)
    said = re.search(r"no device: (.*)", done.text)
    if said:
        return said[1]
    if done.code != 0:
        return f"lockstep env ended with {done.code}: {done.text.strip()[-300:]}"
    return "" if "compute capability" in done.text else f"lockstep env names no device: {done.text.strip()[-300:]}"


# --- cases --------------------------------------------------------------------------------------------------------


def list_cases(checks, program):
    """The names of a suite's test cases. Listing needs no device."""
    done = checks.run([BIN / program, "-ltc"], 60)
    require(done.code == 0, f"{program} -ltc: exit {done.code}\n{done.text}")
    names, inside = [], False
    for line in done.text.splitlines():
        if line.startswith("==="):
            inside = not inside
        elif inside and line.strip() and not line.startswith("[doctest]"):
            names.append(line)
    require(names, f"{program} lists no test case\n{done.text}")
    return names


def pattern(name):
    """doctest's filter for one name: commas separate filters there, and * stands for anything."""
    return "-tc=" + re.sub(r"[,*\\]", "?", name)


def case(checks, program, name, **variables):
    def check():
        done = checks.run([BIN / program, pattern(name)], 90, **variables)
        require(done.code == 0, f"exit {done.code}\n{done.text}")
        ran = re.search(r"test cases:\s*(\d+)", done.text)
        require(ran and int(ran[1]) > 0, f"no case ran\n{done.text}")
    return check


def suites(checks):
    for program in checks.info["suites"]:
        own = HERE / "extensions" / program.removeprefix("test_") / "tests/golden"
        device = {} if program.startswith("test_cuda") else {"LOCKSTEP_TEST_DEVICE": "cuda"}
        if own.is_dir():
            device["LOCKSTEP_GOLDEN_DIR"] = str(own)
        for name in list_cases(checks, program):
            yield f"{program}: {name}", case(checks, program, name, **device)
            # the kernels that run on older cards, and in place of cuDNN's convolutions
            if program == "test_cuda" and "attention" in name:
                yield f"{program} without wgmma: {name}", case(checks, program, name, LOCKSTEP_WGMMA="0")
            if "conv" in name:
                yield f"{program} without cuDNN: {name}", case(checks, program, name, LOCKSTEP_CUDNN="0", **device)


def golden_values(checks):
    folders = [HERE / "tests/golden", *sorted(HERE.glob("extensions/*/tests/golden"))]
    done = checks.run([BIN / "golden", *folders], 120, LOCKSTEP_TEST_DEVICE="cuda")
    return good(done).strip().splitlines()[-1]


def train(checks, name, program="gpt", limit=120, env=None, **options):
    """Trains as the CPU did (expected.json): the same options, on the card."""
    folder = checks.out / "runs" / name
    shutil.rmtree(folder, ignore_errors=True)
    arguments = {**checks.info["training"][program], "device": "cuda", "out": folder, **options}
    command = [BIN / program, "train", "--json"]
    for key, value in arguments.items():
        command += [f"--{key.replace('_', '-')}"] + ([] if value is True else [str(value).replace("@", str(HERE))])
    return result_of(checks.run(command, limit, **(env or {}))), losses_of(folder)


def losses_of(folder):
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines() if "loss" in line]


def as_on_cpu(checks, program, figure, precision, tolerance):
    def check():
        found, _ = train(checks, f"{program}-{precision}", program, precision=precision)
        wanted = checks.info["expected"][program][figure]
        require(abs(found[figure] - wanted) <= tolerance, f"{figure} {found[figure]:.4f}, on the CPU {wanted:.4f}, allowed difference {tolerance}")
        return f"{figure} {found[figure]:.4f}, on the CPU {wanted:.4f}"
    return check


def graphs_change_nothing(checks, precision):
    def check():
        name = f"graphs-{precision}"
        few = {"precision": precision, "steps": 40, "dropout": 0.1}
        (one, a), (_, b), (two, c) = train(checks, name, **few), train(checks, name + "-again", **few), train(checks, name + "-off", no_graph=True, **few)
        require("replayed" in one["graphs"] and "turned off" in two["graphs"], f"graphs: {one['graphs']}; {two['graphs']}")
        require(len(a) == len(c) > 0 and a == c, f"losses with graphs {a[-3:]}, without {c[-3:]}")
        require(a == b, f"losses of two equal runs: {a[-3:]}, {b[-3:]}")
        return f"{len(a)} losses are equal; {one['graphs']}"
    return check


def sanitizer(checks, name, family):
    def check():
        done = checks.run([tool("compute-sanitizer"), "--tool", name, "--error-exitcode", "9", "--print-limit", "20", BIN / "test_cuda", f"-tc={FAMILIES[family]}"], 120)
        if done.code == "timeout" and "========= ERROR" not in done.text and "FAILED" not in done.text:
            raise NotRun("too slow under this tool; no error until then")
        require(done.code == 0, f"exit {done.code}\n{done.text}")
        ran = re.search(r"test cases:\s*(\d+)", done.text)
        require(ran and int(ran[1]) > 0, f"no case ran\n{done.text}")
    return check


def cases(checks):
    """All checks of numbers, in the order in which they start. The sanitizer tools come last: if time runs out, theirs is missing."""
    for precision, tolerance in (("f32", 0.01), ("tf32", 0.02), ("bf16", 0.03), ("f16", 0.03), ("fp8", 0.15)):
        yield f"gpt in {precision}, loss as on the CPU", as_on_cpu(checks, "gpt", "val_loss", precision, tolerance)
    for precision, tolerance in (("f32", 0.01), ("bf16", 0.015)):
        yield f"cnn in {precision}, digits read as on the CPU", as_on_cpu(checks, "cnn", "test_accuracy", precision, tolerance)
    for precision in ("f32", "bf16"):
        yield f"recorded steps in {precision} are bit-identical to steps that are not recorded", graphs_change_nothing(checks, precision)
    yield "golden values", lambda: golden_values(checks)
    yield from suites(checks)
    for name, families in TOOLS.items():
        for family in families:
            yield f"{name}: {family}", sanitizer(checks, name, family)


# --- nccl ---------------------------------------------------------------------------------------------------------


def plan_by_nccl(checks, plan):
    """Two ranks that NCCL takes for two hosts: the losses of one rank."""
    def check():
        few = {"precision": "f32", "steps": 8, "batch": 4}
        full = {**few, "accumulate": 2} if plan.startswith("dp") else few
        _, wanted = train(checks, f"one-{plan}", **full)
        folder = checks.out / "runs" / f"nccl-{plan}"
        shutil.rmtree(folder, ignore_errors=True)
        arguments = {**checks.info["training"]["gpt"], **few, "device": "cuda", "plan": plan, "out": folder}
        command = [BIN / "lockstep", "run", "-n", "2", "--", "bash", "-c", RANK, "--", BIN / "gpt", "train", "--json"]
        for key, value in arguments.items():
            command += [f"--{key.replace('_', '-')}", str(value).replace("@", str(HERE))]
        done = checks.run(command, 90)
        text = good(done)
        require("through the host" not in text, f"the ranks went through the host, not NCCL\n{text}")
        found = losses_of(folder)
        off = max((abs(a - b) for a, b in zip(found, wanted)), default=1)
        require(len(found) == len(wanted) and off < 2e-3, f"losses {found}, of one rank {wanted}")
        graphs = re.search(r'"graphs": ?"([^"]*)"', text)
        return f"largest difference of losses {off:.1e}; graphs: {graphs[1] if graphs else '?'}"
    return check


def nccl(checks):
    for plan in ("dp2", "pp2", "tp2", "cp2", "dp2+zero1", "dp2+zero3"):
        yield f"two ranks, {plan}", plan_by_nccl(checks, plan)


# --- speed --------------------------------------------------------------------------------------------------------


def json_lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(str(cell).replace("|", "/") for cell in row) + " |" for row in rows]) + "\n"


def kernels(checks):
    text = good(checks.run([BIN / "bench_cuda"], 90))
    (checks.out / "bench_cuda.jsonl").write_text(text)
    all_cases = json_lines(text)
    checks.pages.append(("Kernels against the bound", table(["case", "ms", "GB/s", "TFLOP/s", "of the bound"], [[c["name"], c.get("ms", c.get("error")), c.get("gbps", ""), c.get("tflops", ""), c.get("of_bound", "")] for c in all_cases])))
    wrong = [c["name"] for c in all_cases if "error" in c]
    require(all_cases and not wrong, f"errors in {wrong}\n{text}")
    return f"{len(all_cases)} cases"


def sees_card(checks):
    done = checks.run([sys.executable, "-c", "import torch; assert torch.cuda.is_available(); print(torch.__version__)"], 60, plain=True)
    if done.code != 0:
        raise Skipped("no PyTorch that sees the card")
    return done.text.strip()


def kernels_beside(checks):
    sees_card(checks)
    done = checks.run([sys.executable, HERE / "bench" / "cuda_compare.py", checks.out / "bench_cuda.jsonl"], 110, plain=True, **compiled_code(checks))
    lines = [line for line in done.text.splitlines() if line.startswith("|") or line.startswith("PyTorch ")]
    checks.pages.append(("Kernels beside PyTorch's; ratios above 1: ours is faster", "\n".join(lines[:1] + [""] + lines[1:]) + "\n"))
    return good(done) and f"{len(lines) - 3} cases"


def compiled_code(checks):
    """Where torch.compile keeps its code, which `ahead` fills."""
    return {"TORCHINDUCTOR_CACHE_DIR": str(checks.out / "inductor"), "TRITON_CACHE_DIR": str(checks.out / "triton")}


def gpt2(checks, precision, steps, *more, limit=90):
    command = [BIN / "gpt", "train", "--device", "cuda", "--model", "gpt:12x768x12", "--context", 1024, "--batch", 16, "--tokenizer", HERE / "tokenizer", "--text", HERE / "text.txt", "--eval-every", 1000000,
               "--eval-batches", 1, "--warmup", 10, "--steps", steps, "--json", *more]
    return command + (["--precision", precision] if precision else [])


def steady(checks, few, many, precision, *more):
    """Milliseconds of a step: the difference between runs of two lengths, so that their starts do not count."""
    short, long = (result_of(checks.run(gpt2(checks, precision, steps, *more), 90)) for steps in (few, many))
    ms = 1e3 * (long["seconds"] - short["seconds"]) / (many - few)
    require(ms > 0, f"{many} steps took {long['seconds']} s, {few} took {short['seconds']} s")
    return ms, long


def speed_of(checks, name, precision, *more, few=25, many=125):
    def check():
        ms, last = steady(checks, few, many, precision, *more)
        checks.steps[name] = ms
        checks.memory[name] = last["peak_memory_mib"] / 1024
        return f"{ms:.2f} ms a step, {16384e3 / ms:.0f} tokens/s, loss {last['loss']:.3f}, {last['peak_memory_mib'] / 1024:.1f} GiB, graphs: {last['graphs']}"
    return check


def pytorch_gpt2(checks):
    version = sees_card(checks)
    text = good(checks.run([sys.executable, HERE / "bench" / "cuda_gpt.py", "--batch", "16", "--steps", "20"], 150, plain=True, **compiled_code(checks)))
    for line in json_lines(text):
        checks.steps[line["name"]] = line["ms"]
        checks.memory[line["name"]] = line["peak_gib"]
    return f"PyTorch {version}: " + ", ".join(f"{line['name']} {line['ms']} ms" for line in json_lines(text))


def beside_compiled(checks):
    if "PyTorch compiled" not in checks.steps or "as typed" not in checks.steps:
        raise Skipped("no step of both to compare")
    ratio = checks.steps["PyTorch compiled"] / checks.steps["as typed"]
    require(ratio >= 1.15, f"{ratio:.2f} times the speed of torch.compile, expected 1.15 or more")
    return f"{ratio:.2f} times the speed of torch.compile"


def steps_of(rows, last="step_all_kernel"):
    """Cuts kernels in the order of their starts into steps, each of which ends with the optimizer's kernels. The first (which begins with
    the program) and what follows the last are left out."""
    steps, now = [], []
    for i, (name, ns) in enumerate(rows):
        now.append((name, ns))
        if last in name and not (i + 1 < len(rows) and last in rows[i + 1][0]):
            steps.append(now)
            now = []
    return steps[1:]


def profiled(text):
    """(name, nanoseconds) of each kernel in ncu's or nsys' CSV."""
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if "Kernel Name" in line or "Duration (ns)" in line), None)
    require(first is not None, f"the profiler printed no table\n{shortened(text)}")
    rows = list(csv.DictReader(lines[first:]))
    name = next(n for n in rows[0] if n in ("Kernel Name", "Name"))
    found = []
    for row in rows:
        if "Metric Value" in row:  # one line for each metric
            scale = {"ns": 1, "nsecond": 1, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6}.get(row["Metric Unit"])
            if scale:
                found.append((row[name], float(row["Metric Value"].replace(",", "")) * scale))
        elif row.get("Duration (ns)"):
            if not row[name].startswith("[CUDA"):  # copies
                found.append((row[name], float(row["Duration (ns)"])))
    require(found, f"the profiler's table has no kernel\n{shortened(text)}")
    return found


def short_name(name):
    return re.sub(r"\(.*|^void ", "", name.replace("(anonymous namespace)", "<unnamed>").replace("<unnamed>::", "").replace("lockstep::", ""))[:110]


GROUPS = [("products", r"nvjet|gemm|cutlass|xmma"), ("sums of split products", r"splitKreduce"), ("attention", r"attention|sdpa|matmul_dq|compute_dot_do_o|fmha"), ("gradients of biases", r"BgradAB|bias_grad|column_sums"),
          ("norms", r"norm_kernel|norm_grad|norm_rows|add_groups"), ("loss", r"loss"), ("optimizer", r"step_all|square_sums|take_norm|add_sums|store_kernel"), ("gradient of the embedding", r"add_rows|merge_kernel|sort_tiles|embedding"),
          ("casts and copies", r"Moved")]


def group_of(name):
    return next((group for group, words in GROUPS if re.search(words, name)), "other")


def step_by_kernel(checks, name, precision, *more):
    def check():
        command = gpt2(checks, precision, 3, "--no-graph", *more)
        try:
            done = checks.run([tool("ncu"), "--metrics", "gpu__time_duration.sum", "--clock-control", "none", "--csv", *command], 100)
        except Skipped:
            done = Done(1, "", 0)
        if done.code != 0 or "ERR_NVGPUCTRPERM" in done.text:  # counters are for root on many machines; a trace is not
            trace = checks.out / f"step-{re.sub('[^a-z0-9]+', '-', name)}"
            good(checks.run([tool("nsys"), "profile", "--trace", "cuda", "--sample", "none", "--cpuctxsw", "none", "--force-overwrite", "true", "-o", trace, *command], 80))
            done = checks.run([tool("nsys"), "stats", "--report", "cuda_gpu_trace", "--format", "csv", f"{trace}.nsys-rep"], 60)
        steps = steps_of(profiled(good(done)))
        require(steps, "no whole step in what the profiler saw")
        page, total = page_of_step(steps[-1])
        checks.pages.append((f"A training step of GPT-2 124M kernel by kernel: {name}", page))
        return f"{len(steps[-1])} kernels, {total:.2f} ms"
    return check


def page_of_step(step):
    by_name, by_group = {}, collections.Counter()
    for kernel, ns in step:
        row = by_name.setdefault(kernel, [0, 0])
        row[0] += 1
        row[1] += ns / 1e3
        by_group[group_of(kernel)] += ns / 1e6
    total = sum(by_group.values())
    page = f"{len(step)} kernels, {total:.2f} ms: " + ", ".join(f"{group} {ms:.2f}" for group, ms in by_group.most_common()) + "\n\n"
    rows = sorted(by_name.items(), key=lambda item: -item[1][1])
    return page + table(["kernel", "launches", "us each", "us in all"], [[f"`{short_name(kernel)}`", n, f"{us / n:.1f}", f"{us:.0f}"] for kernel, (n, us) in rows]), total


def predicted(checks):
    """What lockstep roofline says beside what was measured."""
    said = result_of(checks.run([BIN / "lockstep", "roofline", "--json"], 60))
    measured = checks.steps.get("as typed")
    return f"lockstep roofline: {1e3 * said['seconds']:.2f} ms, {said['launches']} launches" + (f"; measured {measured:.2f} ms" if measured else "")


def speed(checks):
    checks.steps, checks.memory = {}, {}
    yield "kernels against the bound", lambda: kernels(checks)
    yield "GPT-2 124M as typed", speed_of(checks, "as typed", "")
    yield "GPT-2 124M beside PyTorch", lambda: pytorch_gpt2(checks)
    yield "as typed beside torch.compile", lambda: beside_compiled(checks)
    yield "a step kernel by kernel, as typed", step_by_kernel(checks, "as typed", "")
    yield "what the model of a step says", lambda: predicted(checks)
    yield "kernels beside PyTorch's", lambda: kernels_beside(checks)
    yield "GPT-2 124M without graphs", speed_of(checks, "without graphs", "", "--no-graph", many=75)
    yield "GPT-2 124M in fp8", speed_of(checks, "fp8", "fp8", many=75)
    yield "GPT-2 124M in f32", speed_of(checks, "f32", "f32", few=5, many=20)


def page_of_speed(checks):
    compiled = checks.steps.get("PyTorch compiled")
    rows = [[name, f"{ms:.2f}", f"{16384e3 / ms:,.0f}", f"{compiled / ms:.2f}" if compiled else "", f"{checks.memory[name]:.1f} GiB"] for name, ms in checks.steps.items()]
    if rows:
        checks.pages.append(("GPT-2 124M, 16 x 1,024 tokens a step, steady state", table(["", "ms a step", "tokens/s", "of torch.compile", "memory"], rows)))


# --- all ----------------------------------------------------------------------------------------------------------


def ahead(checks):
    """Compiles PyTorch's model while tests run, so that timing it does not wait for the compiler."""
    try:
        sees_card(checks)
        checks.run([sys.executable, HERE / "bench" / "cuda_gpt.py", "--batch", "16", "--steps", "1", "--only", "compiled"], 150, plain=True, **compiled_code(checks))
        checks.run([sys.executable, HERE / "bench" / "cuda_compare.py", "/dev/null"], 120, plain=True, **compiled_code(checks))
    except NotRun:
        pass


def run_together(checks, parts, wanted):
    """The checks of numbers, many at once. Passed test cases get no line of their own."""
    ready = [(part, name, check) for part in parts for name, check in part_of(checks, part)]
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        if "speed" in wanted:
            pool.submit(ahead, checks)
        running = [pool.submit(checks.take, *one) for one in ready]
        for done in concurrent.futures.as_completed(running):
            result = done.result()
            checks.keep(result, printed=not result[1].startswith("test_"))


def part_of(checks, part):
    return globals()[part](checks)


def say_not_run(checks, part, why, starts):
    """Without a device: each part's checks; starts: with its libraries a program has to list its cases all the same."""
    names = []
    try:
        names = [name for name, _ in part_of(checks, part)]
    except (AssertionError, NotRun) as error:
        if starts:
            checks.keep((part, "its programs start", "failed", str(error), 0))
    checks.counts["not run"] += max(len(names), 1)
    checks.rows.append(f"| {part} | {len(names)} checks | not run | | {why} |")
    print(f"not run  {part}: {len(names)} checks: {why}", flush=True)


def fact(checks, command):
    """A command's output, or nothing if it fails."""
    try:
        done = checks.run(command, 30)
    except NotRun:
        return ""
    return done.text if done.code == 0 else ""


def write_report(checks, facts):
    text = "# Lockstep on a card\n\n" + "".join(f"- {fact}\n" for fact in facts) + "\n"
    last = f"{checks.counts['passed']} passed, {checks.counts['failed']} failed, {checks.counts['not run']} not run"
    text += f"**{last}**" + (f" ({checks.counts['skipped']} skipped, for what this machine lacks)" if checks.counts["skipped"] else "") + f", {time.monotonic() - checks.began:.0f} s\n\n"
    text += "| part | check | result | time | |\n|---|---|---|---|---|\n" + "\n".join(checks.rows) + "\n\n"
    text += "".join(f"## {title}\n\n{page}\n" for title, page in checks.pages)
    if checks.failures:
        text += "## What failed\n\n" + "\n".join(checks.failures)
    (checks.out / "report.md").write_text(text)
    print(f"the report is {checks.out / 'report.md'}\n{last}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=PARTS, help="make only these checks; may be repeated")
    parser.add_argument("--out", default="report", help="folder of the report")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time for everything")
    o = parser.parse_args()
    out = pathlib.Path(o.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    wanted = [part for part in PARTS if part in (o.only or PARTS)]
    checks = Checks(out, o.seconds)
    checks.info = json.loads((HERE / "info.json").read_text())
    folders, missing = find_libraries(checks.info["libraries"], library_folders())
    take_libraries(checks, folders)
    checks.env["LOCKSTEP_GOLDEN_DIR"] = str(HERE / "tests/golden")
    why = "this machine lacks " + ", ".join(missing) if missing else why_no_device(checks)
    facts = [f"built from {checks.info['commit']}", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())]
    facts.append(fact(checks, ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm", "--format=csv,noheader"]).strip().replace("\n", "; ") or "no nvidia-smi")
    if why:
        for part in wanted:
            say_not_run(checks, part, why, not missing)
    else:
        facts += [line.strip() for line in fact(checks, [BIN / "lockstep", "env"]).splitlines() if re.match(r"\s*(cuda|cudnn|nccl|cublas)", line, re.I)]
        together = [part for part in wanted if part in ("cases", "nccl")]
        if together:
            if len(together) < len(wanted):
                checks.end = checks.began + SHARE * o.seconds
            run_together(checks, together, wanted)
            checks.end = checks.began + o.seconds
        for part in wanted:
            if part not in together:
                for name, check in part_of(checks, part):
                    checks.one(part, name, check)
        if "speed" in wanted:
            page_of_speed(checks)
    write_report(checks, facts)
    return checks.counts["failed"] + checks.counts["not run"] > 0


if __name__ == "__main__":
    sys.exit(main())
