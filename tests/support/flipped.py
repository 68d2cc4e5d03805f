"""A small certified folder, keys of SSH, and single bytes of it that are changed: for tests and measurements."""

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

from fsdl_dev.records.certificate import sign, statement
from fsdl_dev.records.certificate.verify import verify


def make_key(path: Path, passphrase: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "test", "-f", str(path)], check=True
    )
    return path


def allowed(path: Path, *keys: Path, name: str = "ada@lab.org") -> Path:
    """A list of allowed signers."""
    lines = [f'{name} namespaces="fsdl" {" ".join(key.read_text().split()[:2])}\n' for key in keys]
    path.write_text("".join(lines))
    return path


def certified(folder: Path, weights: bytes = b"weights" * 100) -> Path:
    """A folder of two files with a certificate; signed where the user has a key."""
    (folder / "weights").mkdir(parents=True)
    (folder / "weights" / "part.bin").write_bytes(weights)
    (folder / "config.json").write_text("{}")
    subject = [
        {"name": name, "digest": {"sha256": digest}}
        for name, digest in statement.folder_digests(folder).items()
    ]
    seal = {"name": "sealed metrics", "annotations": {"seal": "3f9c21ab", "values": {"accuracy": 0.91}}}
    cost = {"name": "cost", "annotations": {"hours": 1.5, "money": "unknown"}}
    told = {
        "_type": statement.TYPE,
        "subject": subject,
        "predicateType": statement.PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": "https://example.org/v1",
                "externalParameters": {"model": "digits", "status": "production", "who": "Ada"},
            },
            "runDetails": {
                "builder": {"id": "https://example.org/worker"},
                "metadata": {"invocationId": "20261126-080000000-brave-otter"},
                "byproducts": [seal, cost],
            },
        },
    }
    statement.write_certificate(folder, told, sign.sign_file)
    return folder


def flips(folder: Path, count: int, chance: random.Random, listed: Path | None) -> Iterator[str]:
    """Change single random bytes of a folder, one at a time: what was not noticed each time, empty where it was."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    sizes = [path.stat().st_size for path in files]
    for _ in range(count):
        path = chance.choices(files, weights=sizes)[0]
        data = path.read_bytes()
        at, bit = chance.randrange(len(data)), 1 << chance.randrange(8)
        path.chmod(0o644)
        path.write_bytes(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
        found = verify(folder, listed)
        noticed = not found.ok and path.name in str(found)
        yield "" if noticed else f"byte {at} of {path.name} ^ {bit}: {found}"
        path.write_bytes(data)
