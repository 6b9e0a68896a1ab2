"""One override at a time: grammar, keys, +, groups and types."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, strategies as st

from src.config.schema import OPTIONS, Config
from src.errors import ConfigError
from src.sweep.overrides import check_choice, check_new_key, check_twice, check_value, is_choice, is_hydra, parse, quote, value_keys

NAMES = {
    "model": "digits_cnn",
    "data": "digits",
    "optim": "adamw",
    "schedule": "cosine",
    "precision": "amp",
    "parallel": "single",
    "tracking": "mlflow",
}
PARSER = OverridesParser.create()


def listed(group: str) -> str:
    return ", ".join(sorted(OPTIONS[group]))


def judge(text: str, **names: str) -> None:
    (override,) = parse([text], PARSER)
    if is_choice(override):
        check_choice(override, groups=(*OPTIONS, "experiment"), options=lambda group: list(OPTIONS.get(group, [])))
    else:
        check_value(override, kind=Config, names=NAMES | names)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("optim.lrr=0.1", "optim.lrr is not an option; did you mean optim.lr?"),
        ("+optim.lrr=0.1", "optim.lrr is not an option; did you mean optim.lr?"),
        ("++train.epoch=1", "train.epoch is not an option; did you mean train.epochs?"),
        ("+foo=1", "foo is not an option; --help lists them all"),
        ("+optim.lr=0.1", "+optim.lr=0.1: + adds new keys, under tags only; write optim.lr=VALUE"),
        ("++optim.lr=0.1", "++optim.lr=0.1: + adds new keys, under tags only; write optim.lr=VALUE"),
        ("+optim=sgd", "+optim=sgd: write optim=sgd without +"),
        ("~optim", "~optim: options can't be deleted; set them, to null where they allow it"),
        ("optim@x=sgd", "optim@x=sgd: packages (@) are not accepted on the command line"),
        ("optim.momentum=0.8", "optim.momentum belongs to optim=sgd; optim=adamw has no such option"),
        ("optim.name=sgd", "optim.name=sgd: choose the group option instead: optim=sgd"),
        ("optim={name:sgd}", "optim.name=sgd: choose the group option instead: optim=sgd"),
        ("optim={lrr:1}", "optim.lrr is not an option; did you mean optim.lr?"),
        ("train=5", "train=5: train is a section; set one of its options, such as train.epochs"),
        ("objective=val/loss", "objective=val/loss: objective is a section; set one of its options, such as objective.name"),
        ("optim.betas.0=0.8", "optim.betas.0 is not an option: optim.betas is a single value; write optim.betas=VALUE"),
        ("+hydra.foo=1", "+hydra.foo=1: + adds keys under hydra.job.env_set only"),
        ("hydra=x", "hydra=x: set options of Hydra one by one, as in hydra.run.dir=DIR"),
        ("model=huge", "model=huge is not an option of model; use one of " + listed("model")),
        ("precision=fp17", "precision=fp17 is not an option of precision; did you mean precision=fp32? Options: " + listed("precision")),
        ("parallel=dpp", "parallel=dpp is not an option of parallel; did you mean parallel=dp? Options: ddp, dp, fsdp, single"),
        ("model=[alexnet,resnet18]", "model=[alexnet,resnet18]: model takes one option; add -m and write model=A,B to sweep over several"),
        ("model=null", "model=null is not an option of model; use one of " + listed("model")),
        ("experiment=x", "experiment=x is not an option of experiment: there are none"),
        ("model=", "model= is empty; use one of " + listed("model")),
        (
            "+model.kwargs.width=16",
            "model.kwargs.width belongs to model=torchvision or model=timm or model=custom; model=digits_cnn has no such option",
        ),
        ("data.kwargs.width=16", "data.kwargs.width belongs to data=custom; data=digits has no such option"),
        ("+experiment=x", "+experiment=x: write experiment=x without +"),
        ("optim.lr=abc", "optim.lr=abc is not a float (above 0)"),
        ("optim={lr:abc}", "optim.lr=abc is not a float (above 0)"),
        ("optim.lr=", "optim.lr= is not a float (above 0)"),
        ("train.epochs=1.5", "train.epochs=1.5 is not an integer (at least 1 and at most 1000000)"),
        ("precision.dtype=float17", "precision.dtype=float17 is not auto, float16 or bfloat16"),
        ("model.num_classes=1.5", "model.num_classes=1.5 is not an integer (at least 2) or auto"),
        ("tags=[a,b]", "tags=[a,b] is not a mapping"),
        ("optim", "optim is not an override; write KEY=VALUE"),
        ("=3", "=3 is not an override; write KEY=VALUE"),
    ],
)
def test_mistakes_are_answered_in_one_line(text: str, answer: str) -> None:
    """C08, C09, H01"""
    with pytest.raises(ConfigError) as caught:
        judge(text)
    assert str(caught.value) == answer


@pytest.mark.parametrize("text", ["tags=[a,b", "name={a", 'name="a', "name=é|b", "data.root=/a(b)", "x=nope(1)"])
def test_broken_grammar_is_one_line_with_the_override_and_quotes(text: str) -> None:
    """H01"""
    with pytest.raises(ConfigError) as caught:
        judge(text)
    message = str(caught.value)
    assert message.startswith(f"{text} can't be read: ")
    assert "quote it" in message
    assert "\n" not in message
    hint = message.rsplit(': "', 1)[1].removesuffix('"')  # what the hint proposes does parse
    (override,) = parse([hint], PARSER)
    assert override.value() == text.partition("=")[2].strip('"')


@pytest.mark.parametrize(
    "text",
    [
        "+tags.a=1",
        "++tags.a.b=1",
        "+tags={a: 1}",
        "tags.a=1",
        "optim.lr=0.1",
        "optim={lr: 0.1}",
        "optim=sgd",
        "hydra.run.dir=x",
        "hydra/launcher=basic",
        "+hydra.job.env_set.A=b",
        "train.max_steps=null",
        "name='a b, c=d | é'",
        "optim.lr=${train.epochs}",
    ],
)
def test_what_is_right_passes(text: str) -> None:
    judge(text)


def test_the_chosen_option_decides_which_keys_exist() -> None:
    judge("optim.momentum=0.8", optim="sgd")
    with pytest.raises(ConfigError, match=r"optim\.betas belongs to optim=adamw"):
        judge("optim.betas=[0.9,0.9]", optim="sgd")


@pytest.mark.parametrize("group", ["model", "data"])
def test_free_arguments_go_to_an_option_that_takes_them(group: str) -> None:
    for text in (f"+{group}.kwargs.width=16", f"++{group}.kwargs.width=16", f"+{group}.kwargs={{a: 1}}"):
        judge(text, **{group: "custom"})
    with pytest.raises(ConfigError, match=rf"under tags and {group}.kwargs only"):
        judge("+optim.lr=1", **{group: "custom"})


@pytest.mark.parametrize(
    ("text", "reason"),
    [("a=[1,2", "a [ is not closed"), ("a={b:1", "a { is not closed"), ("a=1]", "a ] closes nothing"), ("a='x", "a ' is not closed")],
)
def test_what_is_unbalanced_is_named(text: str, reason: str) -> None:
    """H01"""
    with pytest.raises(ConfigError) as caught:
        parse([text], PARSER)
    assert f"can't be read: {reason}; if" in str(caught.value)


@pytest.mark.parametrize(
    ("texts", "answer"),
    [
        (["optim.lr=1", "optim.lr=2,3"], "optim.lr is given twice, as optim.lr=1 and optim.lr=2,3; keep one"),
        (["optim=sgd,adamw", "seed=1", "optim=sgd"], "optim is given twice, as optim=sgd,adamw and optim=sgd; keep one"),
        (["seed=1,2", "seed=range(3)"], "seed is given twice, as seed=1,2 and seed=range(3); keep one"),
    ],
)
def test_a_swept_key_is_given_once(texts: list[str], answer: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_twice(parse(texts, PARSER))
    assert str(caught.value) == answer
    check_twice(parse(["seed=1", "seed=2", "optim.lr=1,2"], PARSER))  # without a sweep the last one counts, as ever


def test_a_new_key_of_the_users_own_needs_plus() -> None:
    (override,) = parse(["tags.a=1"], PARSER)
    with pytest.raises(ConfigError, match=r"write \+tags.a=1 to add it"):
        check_new_key(override, kind=Config, names=NAMES)
    (override,) = parse(["+tags.a=1"], PARSER)
    check_new_key(override, kind=Config, names=NAMES)


def test_a_mapping_sets_several_keys() -> None:
    (override,) = parse(["precision={dtype: float16, scaler: {enabled: true}}"], PARSER)
    assert value_keys(override) == ["precision.dtype", "precision.scaler.enabled"]
    assert not is_choice(override)
    assert not is_hydra(override)


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1))
def test_a_quoted_text_is_read_back_exactly(text: str) -> None:
    """C06"""
    (override,) = parse([f"name={quote(text)}"], PARSER)
    assert override.value() == text.replace("${", "\\${")  # the escape is OmegaConf's and goes when the value is resolved


def test_a_list_of_texts_that_lost_its_quotes_to_the_shell_gets_them_back() -> None:
    """What bash leaves of precision.overrides=['conv2=float32']."""
    with pytest.raises(ConfigError) as caught:
        parse(["precision.overrides=[conv2=float32]"], PARSER)
    assert str(caught.value).endswith("""and the whole for the shell: "precision.overrides=['a=b','c']\"""")
