"""Take the picture of a team's board: python tools/picture_board.py

nbs/images/board.png is the upper part of the front page of the team that tests/support/team_store.py makes.
"""

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))


def main() -> None:
    """Make the team, its board, and the picture."""
    from lab import browser_page
    from team_store import make_team

    from fsdl_dev.board.settings import read_board
    from fsdl_dev.board.write import Board
    from fsdl_dev.core.settings import find_project

    with tempfile.TemporaryDirectory() as folder:
        os.environ.pop("FSDL_STORE", None)
        os.environ["FSDL_STATE"] = f"{folder}/state"
        root = Path(folder, "digits")
        make_team(root)
        project = find_project(root)
        made = Board(project, root / "board", read_board(project.config)).write()
        with browser_page(1180, 900) as page:
            page.goto(made.index.as_uri())
            end = page.locator("#sweeps").bounding_box()["y"]
            clip = {"x": 0, "y": 0, "width": 1180, "height": end}
            page.screenshot(path=str(ROOT / "nbs" / "images" / "board.png"), full_page=True, clip=clip)


if __name__ == "__main__":
    main()
