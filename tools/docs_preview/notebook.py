"""Turn a processed notebook (what Quarto would get) into one pandoc markdown document."""

import base64
import re
from collections.abc import Callable

import yaml

COLOUR_CODES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
SaveImage = Callable[[bytes, str], str]  # the image's bytes and extension -> the path to link to


def joined(text: str | list[str]) -> str:
    return "".join(text) if isinstance(text, list) else text


def split_options(source: str) -> tuple[dict, str]:
    """Split the leading `#|` lines of a code cell from its code."""
    lines, options = source.splitlines(keepends=True), []
    while lines and lines[0].startswith("#|"):
        options.append(lines.pop(0)[2:].removeprefix(" "))
    try:
        parsed = yaml.safe_load("".join(options)) or {}
    except yaml.YAMLError:
        parsed = {}
    return (parsed if isinstance(parsed, dict) else {}), "".join(lines).strip("\n")


def fence(text: str, attributes: str = "") -> str:
    """Fence text with more backticks than it holds itself."""
    ticks = 3
    while "`" * ticks in text:
        ticks += 1
    return f"{'`' * ticks}{attributes}\n{text.rstrip()}\n{'`' * ticks}"


def output_markdown(output: dict, as_is: bool, save_image: SaveImage) -> str:
    """One cell output as markdown, in the richest form that needs no kernel."""
    if output["output_type"] == "stream":
        text = COLOUR_CODES.sub("", joined(output["text"]))
        return text if as_is else fence(text, f" {{.output .{output.get('name', 'stdout')}}}")
    if output["output_type"] == "error":
        return fence(COLOUR_CODES.sub("", "\n".join(output["traceback"])), " {.output .error}")
    data = output.get("data", {})
    if "text/markdown" in data:
        return joined(data["text/markdown"])
    if "text/html" in data:
        return fence(joined(data["text/html"]), "{=html}")
    if "image/svg+xml" in data:
        return f"![]({save_image(joined(data['image/svg+xml']).encode(), 'svg')})"
    for mime, extension in (("image/png", "png"), ("image/jpeg", "jpg")):
        if mime in data:
            return f"![]({save_image(base64.b64decode(joined(data[mime])), extension)})"
    return fence(COLOUR_CODES.sub("", joined(data.get("text/plain", ""))), " {.output}")


def code_markdown(cell: dict, language: str, save_image: SaveImage) -> str:
    """A code cell with its outputs, obeying the `#|` options that nbdev leaves for Quarto."""
    options, code = split_options(joined(cell["source"]))
    if options.get("include") is False:
        return ""
    parts, show = [], options.get("output", True)
    if options.get("echo", True) and code:
        block = fence(code, f" {{.{language} .cell-code}}")
        if options.get("code-fold") in (True, "true", "show"):
            is_open = " open=1" if options["code-fold"] == "show" else ""
            block = (
                f'::: {{.code-fold summary="{options.get("code-summary", "Code")}"{is_open}}}\n{block}\n:::'
            )
        parts.append(block)
    if show is not False:
        outputs = [
            output_markdown(output, show == "asis", save_image)
            for output in cell.get("outputs", [])
            if not (output.get("name") == "stderr" and options.get("warning") is False)
        ]
        body = "\n\n".join(text for text in outputs if text.strip())
        label, caption = str(options.get("label", "")), options.get("fig-cap") or options.get("tbl-cap")
        if body and (label.startswith(("fig-", "tbl-")) or caption):
            identifier = f"#{label} " if label else ""
            body = f"::::: {{{identifier}.float}}\n{body}\n\n:::: caption\n{caption or ''}\n::::\n:::::"
        if body:
            parts.append(body)
    text = "\n\n".join(parts)
    return text if show == "asis" or not parts else f"::: cell\n{text}\n:::"


def notebook_markdown(notebook: dict, save_image: SaveImage, wrap_cells: bool = True) -> str:
    """The whole notebook, cell by cell; `wrap_cells` keeps the divs that a page's styles hang on."""
    language = notebook["metadata"].get("kernelspec", {}).get("language", "python")
    texts = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            text = code_markdown(cell, language, save_image)
            texts.append(text if wrap_cells else re.sub(r"(?s)\A::: cell\n(.*)\n:::\Z", r"\1", text))
        else:  # Quarto spells an executable fence ```{lang}; pandoc needs ```{.lang}
            texts.append(re.sub(r"(?m)^(\s*`{3,})\{(\w+)\}", r"\1{.\2}", joined(cell["source"])))
    return "\n\n".join(text for text in texts if text)
