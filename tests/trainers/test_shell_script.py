"""Words of shell scripts are those that a shell would make, in time proportional to the script."""

import time

import pytest

from ppsim.base.errors import ConfigError
from ppsim.trainers.shell_script import ShellScript, flags_of


def words(text: str) -> list[list[str]]:
    return list(ShellScript(text, "x.sh").statements())


def values(text: str) -> dict[str, list[str]]:
    script = ShellScript(text, "x.sh")
    list(script.statements())
    return script.variables


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a 'b c' \"d 'e\" f\\ g # h", [["a", "b c", "d 'e", "f g"]]),
        ("a \\\n  b\nc", [["a", "b"], ["c"]]),
        ("a \\\r\n  b\r\nc\r\n", [["a", "b"], ["c"]]),
        ("a 'b\nc' d", [["a", "b\nc", "d"]]),
        ("a; b && c | d", [["a"], ["b"], ["c"], ["d"]]),
        ("a --b 2>&1 >log", [["a", "--b", "2>&1", ">", "log"]]),
        ("a#b 'c'#d", [["a#b", "c#d"]]),
        ("a $B ${C} ${D:-e f} $(nproc --all) $", [["a", "$B", "${C}", "e", "f", "$(nproc --all)", "$"]]),
        ("x ([0]*1+[1]*2) --y", [["x", "([0]*1+[1]*2)", "--y"]]),
        ('x "$(( 2 * (3 + 4) ))" $((7/2)) $((a))', [["x", "14", "3", "$((a))"]]),
        ("x ${A:-${B:-3}}", [["x", "3"]]),
    ],
)
def test_words_are_those_of_a_shell(text: str, expected: list[list[str]]) -> None:
    assert words(text) == expected


def test_variables_are_put_in_as_a_shell_does() -> None:
    text = "A=1 B='2 3'\nexport C=$B D\nE=\"$A-$B\"\nF=(x 'y z' $B # comment\n $A)\nF+=(w)\nG=ab\nG+=c\n"
    assert values(text) == {
        "A": ["1"], "B": ["2 3"], "C": ["2 3"], "E": ["1-2 3"], "F": ["x", "y z", "2", "3", "1", "w"], "G": ["abc"],
    } | ({"C": ["2 3"]})  # fmt: skip
    assert words(text + 'x $B "$B" "${F[@]}" $G$A')[-1] == [
        "x", "2", "3", "2 3", "x", "y z", "2", "3", "1", "w", "abc1",
    ]  # fmt: skip


def test_a_variable_may_name_one_that_is_set_later() -> None:
    assert words("A='--layers $N'\nN=4\nx $A")[-1] == ["x", "--layers", "4"]


def test_arithmetic_takes_names_without_a_dollar_sign() -> None:
    assert words("N=4\nx $((N * 2)) $(( ${N} + $N ))")[-1] == ["x", "8", "8"]


def test_a_quote_in_a_value_neither_opens_nor_comments() -> None:
    """`NOTE="bob's run"`, used without quotes, is two words; a # in a value begins no comment."""
    flags = flags_of('NOTE="bob\'s #1 run"\npython t.py --num-layers 2 --note $NOTE --pp 4\n', "x.sh")
    assert flags == {"--num-layers": "2", "--note": "bob's", "--pp": "4"}
    quoted = flags_of('NOTE="bob\'s #1 run"\npython t.py --note "$NOTE" --pp 4\n', "x.sh")
    assert quoted == {"--note": "bob's #1 run", "--pp": "4"}


def test_an_array_that_is_appended_to_keeps_its_first_elements() -> None:
    assert flags_of('A=(--a 1)\nA+=(--b 2)\npython t.py "${A[@]}"\n', "x.sh") == {"--a": "1", "--b": "2"}


@pytest.mark.parametrize("use", ["${A[@]}", '"${A[@]}"', "$A", "${A[@]} ${A[*]}"])
def test_an_empty_array_is_no_word(use: str) -> None:
    """bash: `x --bf16 ${A[@]} --tp 2` with A=() has the arguments --bf16 --tp 2, with or without quotes."""
    assert words(f"A=(\n # --b\n)\nx --bf16 {use} --tp 2")[-1] == ["x", "--bf16", "--tp", "2"]
    assert words(f"A=()\nx --b={use} --tp 2")[-1] == ["x", "--b=", "--tp", "2"]
    assert words('B=""\nx "" "$B"')[-1] == ["x", "", ""]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a\nb 'c\nd", "x.sh: cannot read 'b 'c' in line 2: no closing quotation"),
        ('a "b', "no closing quotation"),
        ("A=(b\nc", "x.sh: cannot read 'A=(b' in line 1: no closing parenthesis"),
    ],
)
def test_what_does_not_close_is_refused_with_its_line(text: str, sentence: str) -> None:
    text = text.replace("b 'c", "'c") if sentence.startswith("x.sh: cannot read 'b") else text
    with pytest.raises(ConfigError) as refused:
        words(text)
    assert sentence.replace("'b 'c'", "''c'") in str(refused.value)


NUM = 100_000
HOSTILE = {
    "doubling": "A=xxxxxxxxxx\n" + 'A="$A$A"\n' * 40,
    "doubling without end": "A='$A$A$A$A'\nx $A",
    "two that name each other": "A='$B$B$B'\nB='$A$A$A'\nx $A",
    "empty ones": "E=''\nV='" + "$E" * NUM + "'\nx " + "$V" * NUM,
    "appended": "A+=(x)\n" * NUM,
    "minus signs": "x $((" + "-" * 200_000 + "1))",
    "few minus signs": "x $((" + "-" * 300 + "1))",
    "products": "x $((" + "9" * 300 + "*9" * 50 + "))",
    "an unclosed quote": "x 'unclosed\n" + "y y y y y y y y\n" * 20_000,
    "open braces": "x " + "${" * NUM,
    "open parentheses": "x " + "$(" * NUM,
    "open arithmetic": "x " + "$((" * NUM,
    "open arrays": "A=(" * NUM,
    "nested defaults": "x " + "${A:-" * NUM + "}" * NUM,
    "dollar signs": "x " + "$" * NUM,
    "many quotes": "x " + "a'b'" * NUM,
    "many words": "x --modules " + "y " * NUM,
    "many statements": "x;" * NUM,
    "blank lines": "\n" * NUM,
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_script_is_read_or_refused_within_two_seconds(case: str) -> None:
    begun = time.process_time()
    try:
        flags_of(HOSTILE[case], "x.sh")
    except ConfigError as error:
        assert str(error).startswith("x.sh: ")
        assert len(str(error)) < 200
    assert time.process_time() - begun < 2


def test_variables_that_double_are_refused_with_the_line() -> None:
    with pytest.raises(
        ConfigError, match=r"x\.sh: its variables expand to more than 1,048,576 characters \(line 17\)"
    ):
        flags_of(HOSTILE["doubling"], "x.sh")
