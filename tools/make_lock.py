"""Write requirements.lock: what pip resolves on each supported Python, merged with markers.

    python tools/make_lock.py python3.10 python3.11 python3.12 python3.13

Each argument is an interpreter with pip. Where they resolve to different versions, each line gets a
`python_version` marker. Nothing is installed.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    sys.exit("make_lock.py itself needs Python >= 3.11; it may be given a 3.10 to resolve for")

ROOT = Path(__file__).resolve().parent.parent
PINNED = {"torch": "2.13.0", "transformers": "5.24.0"}  # what the project is tested on
PINNED["soupsieve"] = "2.10"  # later ones need a newer 3.11 than Debian 12 has (3.11.2)
# Brought in by the Linux build of torch from PyPI, which names their exact versions itself.
TORCH_OWN = re.compile(r"^(nvidia-|cuda-|triton$|intel-|mkl$|tbb$)")
NOT_ON_WINDOWS = {"pexpect", "ptyprocess"}
HEADER = """\
# Exact versions for Python 3.10 to 3.13, written by tools/make_lock.py; `make setup` installs them.
# torch: any build of this version (CPU or CUDA). The CUDA libraries that a Linux build from PyPI
# needs are named by torch itself and not repeated here; neither are the few packages that only
# Windows or macOS need (pywinpty, colorama, appnope): pip adds them where they belong.
# Python 3.10: several packages have ended their support for it, so it gets their last version.
"""


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(python_version):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = project["dependencies"] + project["optional-dependencies"]["test"]
    pins = dict(PINNED)
    if python_version == "3.10":
        del pins["transformers"]  # 5.21 and later need Python 3.11
    return listed + ["setuptools"] + [f"{name}=={version}" for name, version in pins.items()]


def resolve(python):
    """{package: version} that pip would install for this interpreter."""
    probe = "import sys; print('%d.%d' % sys.version_info[:2])"
    version = subprocess.check_output([python, "-c", probe], text=True).strip()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [python, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
        subprocess.check_call([*command, "--report", str(report), *requirements(version)])
        items = json.loads(report.read_text())["install"]
    found = {normal(i["metadata"]["name"]): i["metadata"]["version"] for i in items}
    return version, {k: v.split("+")[0] for k, v in found.items() if not TORCH_OWN.match(k)}


def lines(found):
    """One line a package and version; `found` is {python version: {package: version}}."""
    for name in sorted({name for packages in found.values() for name in packages}):
        groups = {}
        for python, packages in found.items():
            if name in packages:
                groups.setdefault(packages[name], []).append(python)
        for version, pythons in groups.items():
            yield f"{name}=={version}" + marker(name, pythons, list(found))


def marker(name, pythons, supported):
    parts = []
    if pythons != supported:
        if len(pythons) == 1 and pythons[0] not in (supported[0], supported[-1]):
            parts.append(f'python_version == "{pythons[0]}"')
        elif pythons == supported[: len(pythons)]:
            parts.append(f'python_version < "{supported[len(pythons)]}"')
        elif pythons == supported[-len(pythons) :]:
            parts.append(f'python_version >= "{pythons[0]}"')
        else:
            parts += [f'python_version >= "{pythons[0]}"', f'python_version <= "{pythons[-1]}"']
    if name in NOT_ON_WINDOWS:
        parts.append('sys_platform != "win32"')
    return " ; " + " and ".join(parts) if parts else ""


if __name__ == "__main__":
    text = HEADER + "\n".join(lines(dict(resolve(python) for python in sys.argv[1:]))) + "\n"
    target = ROOT / "requirements.lock"
    temporary = target.with_suffix(".new")
    temporary.write_text(text)
    os.replace(temporary, target)
