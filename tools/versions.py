"""The versions of the documentation: python tools/versions.py FOLDER

A built site names its version and commit on each page. FOLDER is what is published: the site in _docs goes to
FOLDER/v/VERSION, and to FOLDER itself where it is the newest; a select on each page leads to the same page of another
version. Nothing of it needs a server: FOLDER is a folder of files.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST, PAGES = "versions.js", "pages.js"
# what each page says before it ends: where the list of versions is, which lies beside the folder v
ENTRY = (
    '<script>document.write(`<script src="${{/\\/v\\/[^/]+\\//.test(location.pathname) ? "{root}../../" : "{root}"}}'
    + LIST
    + '" data-root="{root}" data-version="{version}" data-commit="{commit}"><\\/script>`)</script>'
)
CODE = """
(() => {
  const self = document.currentScript, { root, version, commit } = self.dataset, top = self.src.replace(/[^/]*$/, '');
  const place = document.querySelector('.navbar') || document.body, label = document.createElement('label');
  label.className = 'version'; label.title = `version ${version}, commit ${commit}`; label.textContent = 'Version ';
  const others = window.VERSIONS.filter(one => one.version !== version);
  if (!others.length) { label.textContent = `Version ${version} (${commit})`; place.append(label); return; }
  const select = document.createElement('select'); select.setAttribute('aria-label', 'Version of the documentation');
  for (const { version: one } of window.VERSIONS) select.append(new Option(one, one, false, one === version));
  label.append(select); place.append(label);
  select.addEventListener('change', () => {
    const chosen = window.VERSIONS.find(one => one.version === select.value), base = top + chosen.path;
    const here = new URL(root || './', location.href).href, page = location.href.slice(here.length).split(/[?#]/)[0];
    const script = document.createElement('script'); script.src = base + 'pages.js';
    script.onload = () => location.assign(base + (window.PAGES.includes(page) ? page : 'index.html'));
    document.head.append(script);
  });
})();
"""


def this_version() -> tuple[str, str]:
    """The package's version and the commit, with a + where files differ from it."""
    import fsdl_dev

    run = lambda *words: subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    changed = "+" if run("status", "--porcelain", "--untracked-files=no") else ""
    return fsdl_dev.__version__, (run("rev-parse", "--short=8", "HEAD") or "unknown") + changed


def write_list(folder: Path, versions: list[dict]) -> None:
    """The file with all versions, newest first, and the code of the select."""
    (folder / LIST).write_text(f"window.VERSIONS = {json.dumps(versions)};\n{CODE}", encoding="utf-8")


def name_version(site: Path, version: str, commit: str) -> None:
    """Let each page of a built site name its version."""
    pages = sorted(path for path in site.rglob("*.html") if "v" not in path.relative_to(site).parts[:-1])
    for path in pages:
        root = os.path.relpath(site, path.parent)
        entry = ENTRY.format(root="" if root == "." else f"{root}/", version=version, commit=commit)
        before, end, after = path.read_text(encoding="utf-8").rpartition("</body>")
        path.write_text(f"{before}{entry}\n{end}{after}" if end else after + entry, encoding="utf-8")
    names = [path.relative_to(site).as_posix() for path in pages]
    (site / PAGES).write_text(f"window.PAGES = {json.dumps(names)};\n", encoding="utf-8")
    (site / "version.json").write_text(json.dumps({"version": version, "commit": commit}) + "\n")
    write_list(site, [{"version": version, "commit": commit, "path": ""}])


def order(version: str) -> list[int]:
    """Sorts versions by their numbers."""
    return [int(number) for number in re.findall(r"\d+", version)]


def publish(site: Path, folder: Path) -> list[str]:
    """Put a built site into the published folder; return the versions that are there, newest first."""
    told = json.loads((site / "version.json").read_text())
    mine = folder / "v" / told["version"]
    shutil.rmtree(mine, ignore_errors=True)
    shutil.copytree(site, mine)
    found = [json.loads(path.read_text()) for path in (folder / "v").glob("*/version.json")]
    found.sort(key=lambda one: order(one["version"]), reverse=True)
    if found[0]["version"] == told["version"]:
        for path in folder.iterdir():
            if path.name not in ("v", ".git", "CNAME", ".nojekyll"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(site, folder, dirs_exist_ok=True)
    paths = ["", *(f"v/{one['version']}/" for one in found[1:])]
    write_list(folder, [{**one, "path": path} for one, path in zip(found, paths)])
    return [one["version"] for one in found]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "folder", type=Path, help="what is published, with the versions that are there already"
    )
    parser.add_argument("--site", type=Path, default=ROOT / "_docs", help="the built site [default: _docs]")
    options = parser.parse_args()
    if not (options.site / "version.json").is_file():
        print(f"docs: {options.site} is no built site: make docs", file=sys.stderr)
        return 1
    options.folder.mkdir(parents=True, exist_ok=True)
    print("docs: published versions:", ", ".join(publish(options.site, options.folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
