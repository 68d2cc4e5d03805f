"""A number without its unit is refused with both spellings, at whatever door it comes in, and before a run begins."""

import pytest

import fsdl_dev
from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.job import Resources
from fsdl_dev.engines.kubernetes.fields import KubernetesFields
from fsdl_dev.engines.slurm.script import SlurmFields
from fsdl_dev.engines.target import read_fields


@pytest.mark.parametrize(
    ("cls", "field", "number", "fix"),
    [
        (SlurmFields, "time", 90, 'time = "90m" (minutes) or time = "90s" (seconds)'),
        (SlurmFields, "mem", 64, 'mem = "64GB" (counts by 1000) or mem = "64GiB" (by 1024)'),
        (
            SlurmFields,
            "copy_limit",
            5,
            'copy_limit = "5GB" (counts by 1000) or copy_limit = "5GiB" (by 1024)',
        ),
        (KubernetesFields, "keep", 7, 'keep = "7m" (minutes) or keep = "7s" (seconds)'),
        (KubernetesFields, "give_up", 1.5, 'give_up = "1.5m" (minutes) or give_up = "1.5s" (seconds)'),
    ],
)
def test_a_number_in_toml(cls, field, number, fix):
    for given in (number, str(number)):
        with pytest.raises(FsdlError) as error:
            read_fields(cls, {field: given}, "lab")
        assert error.value.fix == fix and error.value.where == f"[tool.fsdl_dev.targets.lab] {field}"
    with pytest.raises(FsdlError, match="has to be a text in quotes"):
        read_fields(cls, {"storage": 5}, "lab")


def test_a_time_from_python():
    with pytest.raises(FsdlError, match="90 has no unit") as error:
        Resources(time=90)
    assert error.value.fix == "--time 90m (minutes) or --time 90s (seconds)"


def test_how_often_to_save_is_read_before_the_launch(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "pyproject.toml").write_text("[tool.fsdl_dev.checkpoints]\nrestart = 300\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FsdlError, match="300 has no unit") as error:
        fsdl_dev.check("train.py", no_test=True)
    assert error.value.fix == 'restart = "300m" (minutes) or restart = "300s" (seconds)'
