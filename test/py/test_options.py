"""Options: what is accepted, and that every refusal names the option, what was given and what is taken."""

import pytest

from flycc.options import OptionError, Options


def test_defaults():
    assert Options.parse() == Options.parse({}) == Options(target="gfx950", fallback="eager", strict=False)


def test_every_accepted_value():
    for autotune in ("table", "model", "measure"):
        assert Options.parse({"autotune": autotune}).autotune == autotune
    for fallback in ("eager", "inductor"):
        for strict in (True, False):
            options = Options.parse(
                {"fallback": fallback, "strict": strict, "target": "gfx950"}, mode="default"
            )
            assert (options.fallback, options.strict) == (fallback, strict)


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (
            {"fallbak": "eager"},
            "option.unknown",
            ["'fallbak'", "did you mean 'fallback'", "target, fallback, strict"],
        ),
        ({"zzz": 1}, "option.unknown", ["'zzz'", "known: target, fallback, strict"]),
        ({"fallback": "fast"}, "option.fallback", ["'fallback'", "'fast'", "'eager', 'inductor'"]),
        ({"target": "gfx942"}, "option.target", ["'gfx942'", "'gfx950'"]),
        ({"strict": 1}, "option.strict", ["'strict'", "1", "True, False"]),
        ({"strict": "yes"}, "option.strict", ["'yes'", "True, False"]),
        ({3: 1}, "option.unknown", ["3"]),
        ({"autotune": True}, "option.autotune", ["'autotune'", "True", "'table', 'model', 'measure'"]),
        (["strict"], "option.type", ["dict", "list"]),
    ],
)
def test_refusals(options, code, words):
    with pytest.raises(OptionError) as caught:
        Options.parse(options)
    assert caught.value.reason.code == code
    for word in words:
        assert word in str(caught.value)


def test_unknown_mode():
    with pytest.raises(OptionError, match=r"max-autotune.*accepted: None, 'default'"):
        Options.parse(None, mode="max-autotune")
