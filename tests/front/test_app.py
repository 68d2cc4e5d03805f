"""`fsdl app`: the app of a promoted model as a person uses it, without a browser (Streamlit's AppTest) and in one."""

import io
import signal
import time
import urllib.request

import psutil
import pytest
import torch
from PIL import Image
from playwright.sync_api import expect
from ports import free_port
from promoted import add_run, make_project, promote_digits, trained_net
from sklearn.datasets import load_digits
from streamlit.testing.v1 import AppTest

from fsdl_dev import CausalLM, FeedbackStore, FsdlError, SequenceClassifier, promote, rollback, write_app
from fsdl_dev.data.digits import DigitsData
from fsdl_dev.data.text import ChatInput, TextInput
from fsdl_dev.feedback.app import start_app

PATIENCE = 120


def picture_of(index: int, inverted: bool = False) -> bytes:
    """A digit of scikit-learn as a PNG file."""
    grey = load_digits().images[index] * 255 / 16
    file = io.BytesIO()
    Image.fromarray((255 - grey if inverted else grey).round().astype("uint8")).save(file, format="PNG")
    return file.getvalue()


def opened(app) -> AppTest:
    """The page of an app, as it is when it is opened."""
    page = AppTest.from_file(str(app.folder / "app.py"), default_timeout=PATIENCE).run()
    assert not page.exception, page.exception
    return page


def wait_for_health(process, port: int) -> None:
    """Until the server answers."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=5) as answer:
                assert answer.read() == b"ok"
                return
        except OSError:
            assert process.poll() is None, "the app ended"
            time.sleep(0.2)
    raise AssertionError("the app does not answer")


@pytest.fixture
def digits(tmp_path):
    """A project with a promoted model of digits."""
    root = make_project(tmp_path / "digits")
    promote_digits(root)
    return root


def test_a_picture_is_answered_corrected_and_reviewed(digits):
    app = write_app("digits@production", folder=digits)
    assert len((app.folder / "app.py").read_text().splitlines()) <= 150
    assert "gatherUsageStats = false" in (app.folder / ".streamlit" / "config.toml").read_text()
    page, store = opened(app), FeedbackStore("digits", digits)
    facts = " ".join(text.value for text in page.sidebar.text)
    assert "digits@production" in facts and "val_accuracy: 0.95" in facts and "data: DigitsData d1" in facts
    page.file_uploader[0].upload("three.png", picture_of(3), "image/png").run()
    assert page.code[0].value == "3" and page.metric[0].label == "confidence"
    assert store.entries() == [] and "agree" in page.info[0].value, "kept without consent"
    page.checkbox(key="consent").check().run()
    (kept,) = store.entries()
    assert (kept.prediction, kept.state, kept.data) == ("3", "kept", {"DigitsData": "d1"})
    page.selectbox[0].select("8")
    page.button[0].click().run()
    assert not page.exception and store.entry(kept.id).label == "8" and page.success
    page.sidebar.radio[0].set_value("Review").run()
    assert page.main.text[0].value == "1 waiting, 0 accepted, 0 rejected"
    assert [code.value for code in page.code] == ["3", "8"]
    assert page.button(key=f"Accept-{kept.id}").disabled and page.button(key=f"Reject-{kept.id}").disabled
    page.text_input(key="who").set_value("  ").run()
    assert page.button(key=f"Accept-{kept.id}").disabled, "spaces are no name"
    page.text_input(key="who").set_value("Ada").run()
    page.button(key=f"Accept-{kept.id}").click().run()
    assert (store.entry(kept.id).state, store.entry(kept.id).who) == ("accepted", "Ada")
    assert page.main.text[0].value == "0 waiting, 1 accepted, 0 rejected" and not page.code


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.png", b"<script>alert(1)</script>", "cannot be read as a picture"),
        ("../../b.png", b"GIF89a" + bytes(100), "cannot be read as a picture"),
        ("c.png", b"\x89PNG\r\n\x1a\n" + bytes(6_000_000), "are the most"),
    ],
)
def test_a_hostile_file_is_named_and_not_kept(digits, name, content, said):
    page, store = opened(write_app("digits", folder=digits)), FeedbackStore("digits", digits)
    page.checkbox(key="consent").check()
    page.file_uploader[0].upload(name, content, "image/png").run()
    assert not page.exception and said in page.error[0].value
    assert store.entries() == [] and not list(store.folder.glob("inputs/*"))


def test_another_holder_answers_and_is_named(digits):
    page = opened(write_app("digits@production", folder=digits))
    first = next(text.value for text in page.sidebar.text if text.value.startswith("run"))
    promote_digits(digits, seed=1, value=0.97)
    page.run()
    assert "another model since you opened this page" in page.warning[0].value
    assert first not in [text.value for text in page.sidebar.text]
    rollback("digits", folder=digits)
    page.run()
    assert first in [text.value for text in page.sidebar.text] and page.warning
    assert not page.run().warning


def test_an_app_without_a_model_says_so(digits, monkeypatch):
    app = write_app("digits@production", folder=digits)
    (digits / "models" / "digits.jsonl").unlink()
    page = opened(app)
    assert "No model is called" in page.error[0].value and "fsdl promote" in page.main.text[-1].value


def test_an_app_that_was_edited_is_kept(digits):
    app = write_app("digits@production", folder=digits)
    (app.folder / "app.py").write_text("# mine")
    kept = write_app("digits@production", folder=digits)
    assert kept.kept and "--again" in kept.to_text() and (app.folder / "app.py").read_text() == "# mine"
    write_app("digits@production", folder=digits, again=True)
    assert (app.folder / "app.py").read_text() != "# mine"


def test_a_model_of_an_unknown_kind_says_what_is_needed(digits):
    net = trained_net(digits, *DigitsData(batch_size=64, image_size=16).parts["train"].tensors, steps=1)
    promote(add_run(digits, net, "digit_net:Net", 0.5, None), "other", folder=digits)
    with pytest.raises(FsdlError) as refused:
        write_app("other@production", folder=digits)
    assert refused.value.code == "kind" and "digit_net:Net" in refused.value.what
    assert "--kind image" in refused.value.fix and "predict in app.py" in refused.value.fix
    app = write_app("other@production", kind="image", folder=digits)
    assert (
        app.guessed
        and "edit TAKES" in app.to_text()
        and "this is a guess" in (app.folder / "app.py").read_text()
    )
    page = opened(app)
    page.file_uploader[0].upload("three.png", picture_of(3), "image/png").run()
    assert "does not fit this app" in page.error[0].value


def test_a_text_is_answered_and_shown_without_markup(digits):
    torch.manual_seed(0)
    tiny = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = SequenceClassifier("bert", 2, {"config": {**tiny, "vocab_size": 258}})
    cls = "fsdl_dev.train.text:SequenceClassifier"
    promote(add_run(digits, model, cls, 0.9, TextInput(("bad", "good"))), "mood", folder=digits)
    page, store = opened(write_app("mood", folder=digits)), FeedbackStore("mood", digits)
    page.checkbox(key="consent").check()
    sent = "![x](http://127.0.0.1:9/x) <script>alert(1)</script> I like it"
    page.text_area[0].set_value(sent).run()
    assert page.code[0].value == sent and page.code[1].value in ("bad", "good")
    assert sent not in " ".join(one.value for one in page.markdown)
    (kept,) = store.entries()
    page.selectbox[0].select("good")
    page.button[0].click().run()
    assert store.entry(kept.id).label == "good" and store.path(kept).read_text() == sent
    page.text_area[0].set_value("my key is AKIA" + "Q3EGRCNXW6UJH7VT").run()
    assert "secret" in page.error[0].value and len(store.entries()) == 1


def test_a_question_is_answered(digits):
    torch.manual_seed(0)
    tiny = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = CausalLM("llama", {"config": {**tiny, "num_key_value_heads": 2, "vocab_size": 258}})
    cls = "fsdl_dev.train.text:CausalLM"
    promote(add_run(digits, model, cls, 0.9, ChatInput(max_new=5)), "talk", folder=digits)
    page, store = opened(write_app("talk", folder=digits)), FeedbackStore("talk", digits)
    page.checkbox(key="consent").check()
    page.text_area[0].set_value("The capital of France?").run()
    assert not page.exception and len(page.code) == 2
    (kept,) = store.entries()
    page.text_area[1].set_value("Paris")
    page.button[0].click().run()
    assert store.entry(kept.id).label == "Paris" and store.entry(kept.id).kind == "chat"


def test_the_app_is_served_on_this_machine_alone_and_ended(digits):
    app, port = write_app("digits@production", folder=digits), free_port()
    process = start_app(app, port)
    try:
        wait_for_health(process, port)
        with pytest.raises(FsdlError) as refused:
            start_app(app, port)
        assert refused.value.code == "port" and f"--port {port + 1}" in refused.value.fix
        heard = psutil.Process(process.pid).net_connections("inet")
        assert {one.laddr.ip for one in heard if one.status == "LISTEN"} == {"127.0.0.1"}
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) is not None


HOSTILE = (
    "<script>window.struck = 1</script><img src='http://127.0.0.1:9/' onerror='window.struck = 1'> **bold** "
    "[link](http://127.0.0.1:9/) ![picture](http://127.0.0.1:9/) $x^2$ :red[red]\n# it should be: 3"
)


def open_review(page) -> None:
    """Choose *Review* in the sidebar, which covers a narrow page until it is closed."""
    page.get_by_test_id("stExpandSidebarButton").click()
    page.get_by_text("Review", exact=True).click()
    page.get_by_text("makes a data set of what is accepted").wait_for()
    page.get_by_test_id("stSidebarCollapseButton").get_by_role("button").click()


def fits(page) -> bool:
    """Whether no part of the page is wider than it, so that it has to be scrolled."""
    parts = "[document.documentElement, document.querySelector('[data-testid=stMain]')]"
    return page.evaluate(f"{parts}.every(part => part.scrollWidth <= 420)")


@pytest.mark.browser
def test_in_a_browser_a_person_corrects_a_digit_and_another_reviews(digits, browser_page):
    """Light and narrow; the console says nothing, and nothing but this machine is asked."""
    app, port = write_app("digits@production", folder=digits), free_port()
    process = start_app(app, port)
    try:
        wait_for_health(process, port)
        page, store = browser_page, FeedbackStore("digits", digits)
        page.set_viewport_size({"width": 420, "height": 1100})
        page.goto(f"http://127.0.0.1:{port}/")
        page.get_by_text("I agree that what I send").click()
        page.locator("input[type=file]").set_input_files(
            {"name": "three.png", "mimeType": "image/png", "buffer": picture_of(3)}
        )
        page.get_by_text("The model says").wait_for()
        page.get_by_role("combobox", name="The right answer").click()
        page.keyboard.type("8")  # a list that is filtered has its one answer in sight
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Send the correction").click()
        page.get_by_text("It waits for a review").wait_for()
        (kept,) = store.entries()
        assert (kept.prediction, kept.label, kept.state) == ("3", "8", "waiting")
        assert fits(page) and not page.said, page.said

        other = store.keep("image", picture_of(5), HOSTILE, model=kept.model, run=kept.run)
        store.correct(other, HOSTILE)
        open_review(page)
        page.get_by_text("2 waiting, 0 accepted, 0 rejected", exact=True).wait_for()
        accept, reject = (page.get_by_role("button", name=name, exact=True) for name in ("Accept", "Reject"))
        expect(accept).to_have_count(2)
        for button in (*accept.all(), *reject.all()):
            expect(button).to_be_disabled()
        shown = page.get_by_test_id("stCode")
        expect(shown).to_have_text(["3", "8", HOSTILE, HOSTILE])
        obeyed = shown.locator("strong, a, h1, img, script, .katex")
        assert obeyed.count() == 0 and page.evaluate("window.struck") is None
        assert page.get_by_text("None", exact=True).count() == 0, "the value of an expression is on the page"
        assert fits(page)

        page.get_by_role("textbox", name="Your name").fill("Ada")
        page.keyboard.press("Enter")
        accept.first.click()  # waits until it is enabled
        page.get_by_text("1 waiting, 1 accepted, 0 rejected", exact=True).wait_for()
        expect(shown).to_have_text([HOSTILE, HOSTILE])
        reject.click()
        page.get_by_text("0 waiting, 1 accepted, 1 rejected", exact=True).wait_for()
        expect(accept).to_have_count(0)
        reviewed = {entry.id: (entry.state, entry.label, entry.who) for entry in store.entries()}
        assert reviewed == {kept.id: ("accepted", "8", "Ada"), other: ("rejected", HOSTILE, "Ada")}
        assert not page.said, page.said
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
