"""A module that reads what git ignores beside it and writes beside itself: run elsewhere it must find the one and
leave the other.
"""

from pathlib import Path

FILES = {
    ".gitignore": ".fsdl\ndata/\n",
    "data/x.csv": "1,2",
    "pkg/__init__.py": "",
    "pkg/other.py": "V = 3\n",
    "pkg/train.py": """
from pathlib import Path
import sys
from .other import V
here = Path(__file__).resolve().parent
print("said", V, __name__, __spec__.name, sys.argv[1:], flush=True)
print("read", (here.parent / "data" / "x.csv").read_text())
(here / "curve.csv").write_text("a,b")
""",
    "asks.py": "name = input()\n",
}


def lay_out(folder: Path) -> None:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def check_neighbours(launch, fetched: Path) -> None:
    "`launch` takes what to launch, arguments and options."
    run, asking = launch("-m pkg.train", args=["a"], data=["data"]), launch("asks.py")
    assert run.wait(progress=False).state == "succeeded", run.failure
    assert "said 3 __main__ pkg.train ['a']\nread 1,2" in run.logs()
    assert run.view.products.outputs.files == ["pkg/curve.csv"]
    run.fetch(fetched, say=None)
    kept = [p.relative_to(fetched / "outputs") for p in (fetched / "outputs").rglob("*") if p.is_file()]
    assert kept == [Path("pkg/curve.csv")] and (fetched / "outputs" / kept[0]).read_text() == "a,b"
    assert asking.wait(progress=False).state == "failed"
    assert "a job has no standard input" in asking.failure.command, asking.failure
