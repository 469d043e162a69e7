"""Options: what is accepted, and that every refusal names the option, what was given and what is taken."""

import pytest

from flycc.options import OptionError, Options


def test_defaults():
    assert Options.parse() == Options.parse({}) == Options(target="gfx950", fallback="eager", strict=False)


def test_every_accepted_value():
    assert Options.parse({"mx": "mxfp8", "mx_keep": ["lm_head"]}).mx_keep == ("lm_head",)
    assert Options.parse({"mx": None}).mx is None
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
        ({"mx": "fp4"}, "option.mx", ["'mx'", "'fp4'", "None, 'mxfp8', 'mxfp4'"]),
        (
            {"mx": "mxfp4", "mx_keep": "lm_head"},
            "option.mx_keep",
            ["'mx_keep'", "'lm_head'", "a list of names"],
        ),
        ({"mx": "mxfp4", "mx_keep": [1]}, "option.mx_keep", ["[1]", "a list of names"]),
        ({"mx_keep": ["lm_head"]}, "option.mx_keep", ["'mx_keep'", "'mx', which is not given"]),
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
