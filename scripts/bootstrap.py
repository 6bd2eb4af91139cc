"""Make the virtual environment that `make` works in; do nothing when it is current.

    python3 scripts/bootstrap.py [--venv .venv] [--extras quickstart,dev]

Phases: venv -> package index -> torch build -> pip install -> stamp; a line for each, with the
seconds so far. The stamp holds a digest of all that decides what is installed, so an unchanged
checkout costs a file read.
Needs the standard library only. pip's own words go to VENV/install.log.
"""

import sys

# Before anything newer than Python 3.6 is parsed or imported: an old interpreter has to get
# a readable line, not a SyntaxError.
if sys.version_info < (3, 10):
    sys.exit(
        "bootstrap: Python 3.10 or newer is needed, this is %d.%d (%s); "
        "name another one with: make install PYTHON=python3.11"
        % (sys.version_info[0], sys.version_info[1], sys.executable)
    )

import argparse  # noqa: E402
import hashlib  # noqa: E402
import importlib.util  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import platform  # noqa: E402
import queue  # noqa: E402
import re  # noqa: E402
import shutil  # noqa: E402
import ssl  # noqa: E402
import subprocess  # noqa: E402
import tempfile  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
import urllib.error  # noqa: E402
import urllib.request  # noqa: E402
from http.client import HTTPException  # noqa: E402
from pathlib import Path  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
INPUTS = ("pyproject.toml", "constraints.txt", "scripts/bootstrap.py")
# PyTorch's own index of CPU builds: 0.2 GB where the default Linux build brings 3 GB of CUDA.
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PROBE_TIMEOUT_S = 4.0
PYPI = "https://pypi.org/simple"
QUIET_S = 15.0  # longest silence while pip works
STARTED = time.monotonic()
# The first words of pip's lines, and the phase that they begin.
PHASES = {
    "Collecting": "choosing and downloading packages",
    "Installing collected packages": "installing the packages",
    "Building": "building atropos-rl",
}
WITH_TORCH = {"all", "bench", "dev", "example_trainer", "inference", "lora"}
WITH_TORCH |= {"quickstart", "rewardfns", "train"}


def say(text: str) -> None:
    print(f"bootstrap: {time.monotonic() - STARTED:3.0f} s  {text}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Make the virtual environment of this checkout."
    )
    parser.add_argument("--venv", default=".venv", help="where it goes (default: .venv)")
    parser.add_argument("--extras", default="quickstart,dev", help="extras of pyproject.toml")
    args = parser.parse_args()

    venv = (ROOT / args.venv).resolve()
    stamp = venv / ".installed"
    wanted = digest(args.extras)
    if stamp.is_file() and stamp.read_text() == wanted and venv_python(venv).exists():
        stamp.touch()  # so that make, which compares times, sees it as current too
        return 0

    stamp.unlink(missing_ok=True)  # a half-made environment must not look finished
    make_venv(venv)
    log = venv / "install.log"
    log.unlink(missing_ok=True)
    install(venv_python(venv), args.extras, log)
    stamp.write_text(wanted)
    say(f"{args.venv} is ready")
    return 0


def digest(extras: str) -> str:
    """Digest of all that decides the content of the environment."""
    sha = hashlib.sha256(f"{sys.version_info[:2]} {extras} {ROOT}".encode())
    for name in INPUTS:
        sha.update((ROOT / name).read_bytes())
    return sha.hexdigest()


def venv_python(venv: Path) -> Path:
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def make_venv(venv: Path) -> None:
    if venv_python(venv).exists() and same_python(venv):
        return
    if (
        importlib.util.find_spec("venv") is None
        or importlib.util.find_spec("ensurepip") is None
    ):
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        sys.exit(
            "bootstrap: this Python has no venv module; install it "
            f"(Debian and Ubuntu: apt install python{version}-venv) and run this again"
        )
    say(f"making {venv.name} with Python {platform.python_version()}")
    if venv.exists():
        if not (venv / "pyvenv.cfg").exists() and any(venv.iterdir()):
            sys.exit(f"bootstrap: {venv} exists and is no virtual environment; move it away")
        shutil.rmtree(venv)
    done = subprocess.run([sys.executable, "-m", "venv", str(venv)], check=False)
    if done.returncode != 0:
        sys.exit("bootstrap: the virtual environment could not be made (see above)")


def same_python(venv: Path) -> bool:
    """Whether the environment there was made by this minor version of Python."""
    printed = output(venv_python(venv), "-c", "import sys; print(*sys.version_info[:2])")
    return printed.split() == [str(part) for part in sys.version_info[:2]]


def output(python: Path, *words: str) -> str:
    """Output of a call of this Python; empty if it fails at once."""
    command = [str(python), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def install(python: Path, extras: str, log: Path) -> None:
    require_index(python)
    require_pip(python, log)
    index = torch_index(python) if WITH_TORCH.intersection(extras.split(",")) else None
    say(f"installing packages (pip's log: {display(log)})")
    target = f".[{extras}]" if extras else "."
    command = [str(python), "-m", "pip", "install", "--progress-bar", "off"]
    command += ["-c", "constraints.txt", "-e", target]
    if index is not None:
        command += ["--extra-index-url", index]
    if "atroposlib" in output(python, "-m", "pip", "show", "atroposlib"):
        # The name of this distribution before 0.5; it is the archived original's on indexes.
        run_logged([str(python), "-m", "pip", "uninstall", "-y", "atroposlib"], log)
    run_logged(command, log)


def require_index(python: Path) -> None:
    """End with a message if pip's package index cannot be reached; pip would try for minutes.

    With a proxy or a folder of wheels in its settings, pip may need no index: it goes on.
    """
    settings = {}  # the last value counts: environment variables come first in the list
    for line in reversed(output(python, "-m", "pip", "config", "list").splitlines()):
        key, _, value = line.partition("=")
        settings[key.rsplit(".", 1)[-1]] = value.strip("'\"")
    url = settings.get("index-url") or PYPI  # pip ignores an empty setting too
    shown = re.sub(r"//[^/@]*@", "//", url)  # URL without a password
    if "no-index" in settings:
        return
    say(f"asking the package index {shown}")
    problem = unreachable(shown)
    if problem and {"proxy", "find-links"} & settings.keys():
        say(f"it does not answer ({problem}): pip goes on with its other settings")
    elif problem:
        sys.exit(
            f"bootstrap: the package index {shown} does not answer: {problem}\n"
            "bootstrap: check the network; HTTPS_PROXY=URL names a proxy, PIP_INDEX_URL=URL "
            "another index"
        )


def unreachable(url: str) -> "str | None":
    """Why no server answers at this URL within a few seconds; None if any does."""
    hosts: "list[str | None]" = []

    def ask() -> None:
        try:
            urllib.request.urlopen(f"{url}/", timeout=PROBE_TIMEOUT_S).close()
            hosts.append(None)
        except (
            urllib.error.HTTPError
        ):  # an answer: pip may be allowed what this request is not
            hosts.append(None)
        except (OSError, ValueError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            tls = isinstance(reason, ssl.SSLError)  # pip has certificates and settings for it
            hosts.append(None if tls else str(reason))

    # In a thread: a look-up of the name has no timeout.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(2 * PROBE_TIMEOUT_S)
    return hosts[0] if hosts else f"nothing came back within {2 * PROBE_TIMEOUT_S:.0f} s"


def require_pip(python: Path, log: Path) -> None:
    """Early Python 3.10 ships a pip without --report and with a slow resolver."""
    words = output(python, "-m", "pip", "--version").split()
    major = int(words[1].split(".")[0]) if len(words) > 1 else 0
    if major < 23:
        run_logged([str(python), "-m", "pip", "install", "--upgrade", "pip>=23"], log)


def torch_index(python: Path) -> "str | None":
    """An extra package index for torch, or None to take pip's default.

    Order: the value of TORCH_INDEX; nothing where a GPU could use the default build or where
    that is a CPU build anyway; PyTorch's CPU index if it answers within a few seconds.
    An index that does not answer costs size, never the installation.
    """
    named = os.environ.get("TORCH_INDEX")
    if named is not None:
        return named or None
    say("asking for a CPU build of torch")
    if sys.platform != "linux" or has_nvidia_driver() or pip_offers_cpu_torch(python):
        return None
    if answers(f"{CPU_INDEX}/torch/"):
        say("no NVIDIA driver here: taking the CPU build of torch")
        return CPU_INDEX
    say("no NVIDIA driver here and PyTorch's CPU index does not answer: the default build")
    say("  of torch is used (about 3 GB; TORCH_INDEX=URL names another index)")
    return None


def has_nvidia_driver() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or bool(shutil.which("nvidia-smi"))


def pip_offers_cpu_torch(python: Path) -> bool:
    """Whether pip's own configuration (an index, a folder of wheels) leads to a CPU build."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [str(python), "-m", "pip", "install", "--dry-run", "--quiet", "--no-deps"]
        command += ["--ignore-installed", "--report", str(report), "-c", "constraints.txt"]
        done = subprocess.run([*command, "torch"], cwd=ROOT, capture_output=True, check=False)
        if done.returncode != 0 or not report.is_file():
            return False
        packages = json.loads(report.read_text())["install"]
    return any("+cpu" in entry["metadata"]["version"] for entry in packages)


def answers(url: str) -> bool:
    request = urllib.request.Request(url, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=PROBE_TIMEOUT_S) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError, ValueError):
        return False


def run_logged(command: "list[str]", log: Path) -> None:
    """Run pip with its output in ``log``; print a line per phase and during silence."""
    with log.open("a", encoding="utf-8") as out:
        out.write("$ " + " ".join(command) + "\n")
        child = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        lines: "queue.Queue[str | None]" = queue.Queue()
        threading.Thread(target=read_lines, args=(child, lines), daemon=True).start()
        phase, detail, printed = "starting pip", "", time.monotonic()
        while True:
            try:
                line = lines.get(timeout=1.0)
            except queue.Empty:
                line = ""
            if line is None:
                break
            out.write(line)
            out.flush()
            begun = next((PHASES[word] for word in PHASES if line.startswith(word)), phase)
            if re.match(r"\s*(Collecting|Downloading) ", line):
                detail = ": " + line.strip().split(" (")[0]
            if begun != phase:
                detail = ""  # detail of the phase before
            if begun != phase or time.monotonic() - printed > QUIET_S:
                say(begun + detail)
                phase, printed = begun, time.monotonic()
    if child.wait() != 0:
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
        print("\n".join("  " + line for line in tail), file=sys.stderr)
        sys.exit(f"bootstrap: pip failed; its whole log is in {display(log)}")


def read_lines(child: "subprocess.Popen[str]", lines: "queue.Queue[str | None]") -> None:
    """Pass the output of a process on, line by line, then None."""
    assert child.stdout is not None
    with child.stdout:
        for line in child.stdout:
            lines.put(line)
    lines.put(None)


def display(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("bootstrap: interrupted; run it again to finish")
