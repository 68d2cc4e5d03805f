"""The certificate of a model: what is changed is named, and who signed it is known, or said to be unknown."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import flipped

from fsdl_dev.core.errors import FsdlError
from fsdl_dev.records.certificate import sign, statement
from fsdl_dev.records.certificate.verify import verify

FLIPS = 30  # bench/bench_certificate.py makes a thousand


@pytest.fixture
def home(tmp_path, monkeypatch):
    "A person with a key and nothing else: no settings of git, no agent."
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / ".gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    flipped.make_key(tmp_path / ".ssh" / "id_ed25519")
    return tmp_path


@pytest.fixture
def model(home):
    "A signed folder, and the list that has its key."
    return flipped.certified(home / "model"), flipped.allowed(
        home / "allowed", home / ".ssh" / "id_ed25519.pub"
    )


def said(folder, *arguments) -> str:
    found = verify(folder, *arguments)
    assert not found.ok
    return str(found)


def test_a_folder_as_it_was_written(model):
    folder, listed = model
    found = verify(folder, listed)
    assert found.ok and found.signed_by == "ada@lab.org" and found.key.startswith("SHA256:")
    assert "signed by ada@lab.org" in str(found) and "accuracy@3f9c21ab 0.91" in str(found)
    assert json.loads(json.dumps(found.to_dict()))["ok"]


def test_each_flipped_byte_is_named(model):
    folder, listed = model
    for problem in flipped.flips(folder, FLIPS, random.Random(7), listed):
        assert not problem, problem


def test_a_file_that_is_missing_or_was_added(model):
    folder, listed = model
    (folder / "weights" / "part.bin").rename(folder / "part.bin")
    text = said(folder, listed)
    assert "weights/part.bin is missing" in text and "part.bin is not in the certificate" in text
    assert f"fix: rm {folder / 'part.bin'}" in re.sub("fix: +", "fix: ", text)


def test_a_signature_that_was_taken_away_or_is_of_another_certificate(model, home):
    folder, listed = model
    other = flipped.certified(home / "other", b"other weights")
    shutil.copy(other / statement.SIGNATURE, folder / statement.SIGNATURE)
    assert "the signature is not one of this" in said(folder, listed)
    (folder / statement.SIGNATURE).unlink()
    text = said(folder, listed)
    assert "the certificate is not signed" in text and "was changed" in text


def test_an_unknown_key_says_whose_list_and_how_to_add_it(model, home):
    folder, _ = model
    flipped.make_key(home / "stranger")
    listed = flipped.allowed(home / "others", home / "stranger.pub")
    text = said(folder, listed)
    assert (
        "signed by an unknown key: SHA256:" in text and f">> {listed}" in text and "ssh-ed25519 AAAA" in text
    )
    alone = verify(folder)
    assert alone.ok and "whose key that is, is not known here" in str(alone)
    with pytest.raises(FsdlError, match="no such list"):
        verify(folder, home / "nowhere")


def test_the_key_of_git_comes_first(home):
    flipped.make_key(home / "work")
    for name, value in (("gpg.format", "ssh"), ("user.signingkey", str(home / "work.pub"))):
        subprocess.run(["git", "config", "--global", name, value], check=True)
    assert sign.signing_key() == home / "work.pub"
    folder = flipped.certified(home / "model")
    assert verify(folder, flipped.allowed(home / "allowed", home / "work.pub")).ok


def test_without_a_key_it_is_written_and_says_so(home):
    shutil.rmtree(home / ".ssh")
    folder = flipped.certified(home / "model")
    found = verify(folder)
    assert found.ok and "the certificate is not signed" in str(found)
    for problem in flipped.flips(folder, 20, random.Random(3), None):
        assert not problem, problem
    assert sign.sign_file(folder / statement.STATEMENT).fix == "ssh-keygen -t ed25519"


def test_a_passphrase_without_an_agent_asks_nobody(home):
    shutil.rmtree(home / ".ssh")
    flipped.make_key(home / ".ssh" / "id_ed25519", "secret words")
    told = sign.sign_file(flipped.certified(home / "model") / statement.STATEMENT)
    assert not told.signed and "has a passphrase, and no agent holds it" in told.why
    assert told.fix == f"ssh-add {home / '.ssh' / 'id_ed25519'}"


def test_without_ssh_keygen(model, monkeypatch):
    folder, listed = model
    monkeypatch.setenv("PATH", str(folder))
    told = sign.sign_file(folder / "weights" / "part.bin")
    assert told.why == "ssh-keygen is not installed" and "openssh" in told.fix
    assert "ssh-keygen is not installed, so that the signature is not checked" in said(folder, listed)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"_type": 1}', "not json"])
def test_what_is_no_certificate(model, text):
    folder, _ = model
    (folder / statement.STATEMENT).write_text(text)
    assert f"✗ certificate: {statement.STATEMENT}" in said(folder)


def test_a_folder_without_a_certificate_names_the_command(tmp_path):
    with pytest.raises(FsdlError, match="has no certificate") as refused:
        verify(tmp_path)
    assert refused.value.exit_code == 4 and "fsdl promote" in refused.value.fix


# ---- of a real promotion


def test_a_promotion_writes_one_that_the_published_schemas_take(home, monkeypatch):
    "Neither secrets nor the home of the person are in it; verify needs no store and no project."
    import sealed_project as made
    from google.protobuf.json_format import ParseDict
    from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
    from in_toto_attestation.v1 import statement_pb2
    from in_toto_attestation.v1.statement import Statement

    from fsdl_dev.core.settings import find_project
    from fsdl_dev.records.run import Run
    from fsdl_dev.share.promote import promote

    monkeypatch.setenv("FSDL_STATE", str(home / "state"))
    monkeypatch.setenv("WANDB_API_KEY", "0123456789" * 4)
    root = made.make_project(home / "project")
    run = made.sealed_run(root)
    entry = promote(Run(run), "digits", folder=root, why=f"as in {home}/notes")
    assert any(line.startswith("✓ certificate: signed with SHA256:") for line in entry.checks)
    folder = home / "elsewhere"
    shutil.copytree(find_project(root).store / entry.certificate, folder)
    shutil.rmtree(root)
    assert verify(folder, flipped.allowed(home / "allowed", home / ".ssh" / "id_ed25519.pub")).ok

    text = (folder / statement.STATEMENT).read_text()
    assert str(home) not in text and os.environ["WANDB_API_KEY"] not in text
    told = json.loads(text)
    parsed = ParseDict(told, statement_pb2.Statement())
    Statement.copy_from_pb(parsed).validate()
    ParseDict(told["predicate"], provenance_pb2.Provenance())
    seal, reported, cost = told["predicate"]["runDetails"]["byproducts"]
    assert seal["annotations"]["values"] == {"accuracy": pytest.approx(0.8)}
    assert reported["annotations"]["metric"] == "accuracy" and cost["annotations"]["money"] == "unknown"
    names = [one["name"] for one in told["predicate"]["buildDefinition"]["resolvedDependencies"]]
    assert {"snapshot", "environment lock", "data digits"} <= {*names}
    assert any(name.startswith("nbs/00_digits.ipynb, cell 6") for name in names)
