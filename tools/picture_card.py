"""Take the picture of a run's card that the README shows: python tools/picture_card.py RUN_DIRECTORY
nbs/images/card.png
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from lab import browser_page

from fsdl_dev.cards.card import card_bundle
from fsdl_dev.core.rundir import RunDir
from fsdl_dev.records.run import Run


def main() -> None:
    folder, target = Path(sys.argv[1]).absolute(), Path(sys.argv[2])
    shown = card_bundle(Run(RunDir(folder)))["text/html"]
    target.parent.mkdir(parents=True, exist_ok=True)
    with browser_page(760, 700, scale=1.5) as page:
        page.set_content(
            "<!doctype html><body style='margin:0;background:#fff'><div id='card'"
            f" style='display:inline-block;padding:8px;width:690px'>{shown}</div>"
        )
        page.locator("#card").screenshot(path=str(target))
    print(f"{target}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
