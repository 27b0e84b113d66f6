"""Where numba keeps what it has compiled.

It takes the folder of the source or the user's cache folder. In a container both may be read-only: then it would
refuse to start. Must be called before numba is imported; the child processes inherit what it sets.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path


def ensure_cache() -> None:
    """Sets NUMBA_CACHE_DIR to a private temporary folder where numba would find no folder to write to."""
    if os.environ.get("NUMBA_CACHE_DIR") or any(_writable(folder) for folder in _usual_places()):
        return
    folder = tempfile.mkdtemp(prefix="kvctl-kernels-")
    os.environ["NUMBA_CACHE_DIR"] = folder
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    print(
        f"kvctl: neither the package's folder nor the home folder can be written to: compiled kernels go to {folder} "
        "for this run, and the next one compiles them again; set NUMBA_CACHE_DIR to a folder that stays",
        file=sys.stderr,
    )


def _usual_places() -> list[Path]:
    """numba's own order: beside the source, then the user's cache folder."""
    source = Path(__file__).parents[1] / "router" / "prefix" / "__pycache__"
    cache = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return [source, Path(cache) / "numba"]


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except (OSError, RuntimeError):
        return False
