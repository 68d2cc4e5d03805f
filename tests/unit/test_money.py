"""Money of two currencies never adds: it is shown side by side, and what would compare it is refused."""

import pytest

import fsdl_dev
from fsdl_dev.cards.card import card_text, make_card
from fsdl_dev.core.errors import FsdlError
from fsdl_dev.core.event_kinds import Accounting, Metric
from fsdl_dev.core.job import Job
from fsdl_dev.core.rundir import create_run_dir
from fsdl_dev.core.settings import find_project
from fsdl_dev.core.units import Money
from fsdl_dev.engines.sky.script import SkyFields
from fsdl_dev.engines.target import read_fields
from fsdl_dev.launcher.limits import add_costs
from fsdl_dev.records.find import lineage
from fsdl_dev.records.run import Run
from fsdl_dev.records.search.store import RunStore


@pytest.fixture
def root(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setenv("FSDL_STORE", str(tmp_path / "store"))
    return tmp_path


def ended(root, **charged) -> Run:
    job = Job("script", "train", script="train.py", params={"width": 8})
    made = create_run_dir(find_project(root).store, job)
    worker = made.writer("worker")
    for state in ("queued", "starting", "running"):
        made.set_state(worker, state, "example")
    made.writer("rank0", rank=0).write(Metric(step=1, values={"loss": 1.0}))
    made.writer("rank0", rank=0).write(Metric(step=2, values={"loss": 0.5}))
    worker.write(Accounting(elapsed=1800.0, **charged))
    made.set_state(worker, "succeeded", "example")
    return Run(made)


def refused(function, *args, **named) -> FsdlError:
    with pytest.raises(FsdlError) as error:
        function(*args, **named)
    return error.value


def test_what_a_sweep_spent_in_two_currencies(root):
    trials = [ended(root, cost=2.2, currency="USD"), ended(root, cost=1.1, currency="EUR"), ended(root)]
    trials.append(ended(root, cost=1.0, currency="USD"))
    spent = Accounting.from_event(add_costs([run.cost for run in trials]))
    assert spent.money == (Money(3.2, "USD"), Money(1.1, "EUR"))
    sweep = ended(root, **{name: value for name, value in spent.as_dict().items() if name != "elapsed"})
    side_by_side = "3.20 USD + 1.10 EUR"
    assert sweep.cost["costs"] == {"USD": 3.2, "EUR": 1.1} and "cost" not in sweep.cost
    assert f"{side_by_side} (its 4 trials)" in card_text(make_card(sweep))
    assert side_by_side in lineage(sweep.words, root).to_text()
    assert side_by_side in str(fsdl_dev.runs(folder=root, columns="cost"))
    assert side_by_side in fsdl_dev.compare(sweep, trials[0], folder=root).to_text()


def test_amounts_of_two_currencies_are_not_compared(root):
    dear, cheap = ended(root, cost=9.0, currency="USD"), ended(root, cost=8.0, currency="EUR")
    other = ended(root, cost=1.0, currency="USD")
    asked = lambda *words, **named: [row.id for row in fsdl_dev.runs(*words, folder=root, **named)]
    error = refused(asked, "cost > 5")
    assert "charged in EUR and USD" in error.what and error.fix == "cost > 5EUR"
    assert asked("cost > 5EUR") == [cheap.id] and asked('cost > "5 usd"') == [dear.id]
    assert asked("cost and currency = EUR") == [cheap.id]
    assert asked(sort="cost") == [cheap.id, other.id, dear.id], "each currency by itself"
    store = RunStore(find_project(root).store)
    error = refused(store.group, "param.width", ["cost"])
    assert "no mean" in error.what and 'currency = EUR"' in error.fix
    (group,) = store.group("param.width", ["cost"], "currency = USD")
    assert group["mean cost"] == 5.0
    error = refused(fsdl_dev.compare, dear, cheap, x="money", folder=root)
    assert "different currencies" in error.what and error.fix == "--x hours"
    assert fsdl_dev.compare(dear, other, x="money", folder=root).panels
    assert "9.00 USD" in fsdl_dev.compare(dear, cheap, folder=root).to_text()


def test_a_limit_in_another_currency_than_the_prices_is_refused():
    fields = {"storage": "s3://bucket/fsdl", "accelerator": "H100"}
    for given in (60.0, 60, "60 USD", "60usd"):
        assert read_fields(SkyFields, fields | {"max_price": given}, "cloud").most_an_hour == Money(
            60.0, "USD"
        )
    error = refused(read_fields, SkyFields, fields | {"max_price": "60 EUR"}, "cloud")
    assert "The limit is in EUR, and prices there are in USD" in error.what
    assert error.where == "[tool.fsdl_dev.targets.cloud] max_price" and 'max_price = "20 USD"' in error.fix
