"""A notebook is a launch pad: what the kernel ran, what the file says and what the GPUs run are the same code.

This module is written by hand; nbdev generates the others. A public name is imported on first use (PEP 562), so
that `import fsdl_dev` takes milliseconds and does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.2.0"

# name -> module below fsdl_dev that defines it; the imports at the end of this file show the same to IDEs
_WHERE = {
    "FsdlError": "core.errors",
    "DigitsData": "data.digits",
    "ImageFolderData": "data.images",
    "TextData": "data.text",
    "ImageInput": "data.inputs",
    "TextInput": "data.text",
    "ChatInput": "data.text",
    "with_feedback": "data.corrections",
    "feedback_version": "data.corrections",
    "load_timm": "models.timm",
    "load_transformer": "models.transformers",
    "ImageClassifier": "train.vision",
    "CausalLM": "train.text",
    "SequenceClassifier": "train.text",
    "Trainer": "train.trainer",
    "log": "train.loggers",
    "log_checkpoint": "train.own_checkpoints",
    "launch": "api",
    "check": "api",
    "plan": "api",
    "runs": "api",
    "load_run": "api",
    "import_runs": "importers.write",
    "compare": "records.compare",
    "diff": "records.diff",
    "reproduce": "share.reproduce",
    "lineage": "records.find",
    "mirror": "share.mirror",
    "sweep_pictures": "sweep.pictures",
    "promote": "share.promote",
    "rollback": "share.promote",
    "promotions": "share.promote",
    "share_run": "cards.share_page",
    "load_model": "share.promote",
    "verify": "records.certificate.verify",
    "FeedbackStore": "feedback.store",
    "write_app": "feedback.app",
    "holder": "feedback.served",
    "serve": "feedback.served",
    "drift": "feedback.drift",
    "retrain": "feedback.retrain",
    "targets": "api",
    "consent": "api",
    "Run": "api",
}
__all__ = ["__version__", *_WHERE]


def __getattr__(name: str):
    "Import a public name from the module that defines it, once."
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})


def load_ipython_extension(shell) -> None:
    "`%load_ext fsdl_dev`: register the magics and print the target of launches."
    from fsdl_dev.notebook.extension import load_ipython_extension as load

    load(shell)


def unload_ipython_extension(shell) -> None:
    "`%unload_ext fsdl_dev`: remove the magics and the hooks."
    from fsdl_dev.notebook.extension import unload_ipython_extension as unload

    unload(shell)


if TYPE_CHECKING:
    from fsdl_dev.core.errors import FsdlError
    from fsdl_dev.cards.share_page import share_run
    from fsdl_dev.data.corrections import feedback_version, with_feedback
    from fsdl_dev.data.digits import DigitsData
    from fsdl_dev.data.images import ImageFolderData
    from fsdl_dev.data.inputs import ImageInput
    from fsdl_dev.data.text import ChatInput, TextData, TextInput
    from fsdl_dev.feedback.app import write_app
    from fsdl_dev.feedback.drift import drift
    from fsdl_dev.feedback.retrain import retrain
    from fsdl_dev.feedback.served import holder, serve
    from fsdl_dev.feedback.store import FeedbackStore
    from fsdl_dev.models.timm import load_timm
    from fsdl_dev.models.transformers import load_transformer
    from fsdl_dev.share.mirror import mirror
    from fsdl_dev.share.promote import load_model, promote, promotions, rollback
    from fsdl_dev.api import Run, check, consent, launch, load_run, plan, runs, targets
    from fsdl_dev.records.certificate.verify import verify
    from fsdl_dev.importers.write import import_runs
    from fsdl_dev.records.compare import compare
    from fsdl_dev.records.diff import diff
    from fsdl_dev.records.find import lineage
    from fsdl_dev.share.reproduce import reproduce
    from fsdl_dev.sweep.pictures import sweep_pictures
    from fsdl_dev.train.loggers import log
    from fsdl_dev.train.own_checkpoints import log_checkpoint
    from fsdl_dev.train.text import CausalLM, SequenceClassifier
    from fsdl_dev.train.trainer import Trainer
    from fsdl_dev.train.vision import ImageClassifier
