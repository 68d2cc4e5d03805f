"""How many of a thousand flipped bytes `fsdl verify` names, and what it takes beyond reading the files.

    python bench/bench_certificate.py [--flips 1000] [--megabytes 200]

The aims: 1,000 of 1,000, and 2 s beyond reading.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
import flipped

from fsdl_dev.core.files import file_sha256
from fsdl_dev.records.certificate.verify import verify


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--flips", type=int, default=1000)
    options.add_argument("--megabytes", type=int, default=200)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        os.environ |= {"HOME": place, "GIT_CONFIG_GLOBAL": f"{place}/none", "GIT_CONFIG_NOSYSTEM": "1"}
        os.environ.pop("SSH_AUTH_SOCK", None)
        flipped.make_key(home / ".ssh" / "id_ed25519")
        listed = flipped.allowed(home / "allowed", home / ".ssh" / "id_ed25519.pub")
        folder = flipped.certified(home / "model")
        assert verify(folder, listed).ok
        missed = [one for one in flipped.flips(folder, given.flips, random.Random(1), listed) if one]
        print(f"{given.flips - len(missed)} of {given.flips} flipped bytes named")
        print(*missed, sep="\n")

        large = flipped.certified(home / "large", os.urandom(1 << 20) * given.megabytes)
        began = time.perf_counter()
        file_sha256(large / "weights" / "part.bin")
        reading = time.perf_counter() - began
        began = time.perf_counter()
        program = "import sys; from fsdl_dev.cli.start import main; sys.exit(main())"
        command = [sys.executable, "-c", program, "verify", str(large), "--allowed", str(listed)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        print(
            f"{time.perf_counter() - began:.2f} s, of which reading {reading:.2f} s: exit status {done.returncode}"
        )
        print(done.stdout)


if __name__ == "__main__":
    main()
