"""Launch scripts as a shell would read them, without running anything."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from random import Random

import pytest

from shardwright.errors import DataError
from shardwright.launch_files.shell import read_script
from tests.tiers import in_both, numbers

SCRIPT = """#!/bin/bash
# where it runs
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS=8 ; NODES=${NODES:-16}
WORLD=$(($GPUS*$NODES))
TP=8
if [ "$TP" -gt 1 ] && [ -n "$NODES" ]; then
  SPLIT="--sequence-parallel"
else
  SPLIT=""
fi
LAUNCH=(
    --nproc_per_node $GPUS # each
    --nnodes $NODES
)
MORE=" \\
    --beta 0.9 \\
    $SPLIT \\
    "
[ $WORLD -eq 128 ] && MORE+=" --whole" || MORE+=" --part"
torchrun ${LAUNCH[@]} train.py --tp $TP "${LAUNCH[@]}" $MORE --name "a b" 2>&1 | tee log
"""


def commands(text: str, **given: str) -> tuple[tuple[str, ...], ...]:
    return read_script(text, given=given).commands


def test_a_script_is_the_command_that_it_starts() -> None:
    first, second = commands(SCRIPT)
    assert shlex.join(first) == (
        "torchrun --nproc_per_node 8 --nnodes 16 train.py --tp 8 --nproc_per_node 8 --nnodes 16 --beta 0.9 --sequence-parallel --whole "
        "--name 'a b' '2>&1'"
    )
    assert second == ("tee", "log")
    assert "--part" in commands(SCRIPT, NODES="2")[0]


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("A=1\nx $A ${A} \"$A\" '$A' ${B:-2} ${B-3}", "x 1 1 1 '$A' 2 3"),
        ("A=(a 'b c')\nA+=(d)\nx ${A[@]}", "x a b c d"),
        ("A=(a 'b c')\nx \"${A[@]}\"", "x a 'b c'"),
        ('A="a b"\nx $A "$A" --y=$A', "x a b 'a b' --y=a b"),
        ("A=3\nx $((A * 2 + 1)) $(( $A / 2 ))", "x 7 1"),
        ("A=1; B=2 && x $A$B", "x 12"),
        ("if [[ $A == b ]]; then\nx 1\nfi\ny", "y"),
        ("A=b\nif [[ $A == b ]]; then\nx 1\nelif [ 1 -eq 1 ]; then\nx 2\nelse\nx 3\nfi", "x 1"),
        ("A=c\nif [[ $A == b ]]; then x 1; elif [ $A = c ]; then x 2; else x 3; fi", "x 2"),
        ("A=d\nif [[ $A == b ]]; then x 1; elif [ $A = c ]; then x 2; else x 3; fi", "x 3"),
        ('if [ -z "$A" ]; then A=7; fi\nx $A', "x 7"),
        ("f() {\n  y\n}\nfor i in 1 2; do\n  y $i\ndone\nx", "x"),
        ("A=1 B=2 x $C", "x '$C'"),
        ("x a\\\n  b # c\n", "x a b"),
        ("x '--a \"b\"' #c", "x '--a \"b\"'"),
        ("x $(date) `date`", "x '$(date)' '`date`'"),
    ],
)
def test_words_are_those_of_a_shell(text: str, command: str) -> None:
    assert [shlex.join(one) for one in commands(text)] == [command]


@in_both
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_random_assignments_are_as_in_bash() -> None:
    """Values that quotation marks, joined pieces and arrays make; what bash prints of them."""
    for number in numbers(12, 300):
        random = Random(number)
        names = ("A", "B", "C")
        pieces = ["-a", ".1", "'q r'", '"s t"', "--u", "${A}", '"$B"', "${C}", "${C:-v}", '"${A}w"', "=y", "\\ "]
        lines = [f"{random.choice(names)}{random.choice(('=', '=', '+='))}{''.join(random.choices(pieces, k=2))}" for _ in range(5)]
        lines = ["A=", "B=", "C=", *lines]
        words = " ".join(random.choice(pieces) for _ in range(6))
        script = "\n".join(lines)
        ran = subprocess.run(["bash", "-c", f"{script}\nprintf '%s\\n' x {words}"], capture_output=True, text=True, check=True)
        assert list(commands(f"{script}\nx {words}")[0]) == ran.stdout.split("\n")[:-1], f"{script}\n{words}"


def test_a_here_document_is_a_file() -> None:
    script = 'STAGE=1\nNAME=./ds.json\ncat <<EOT > $NAME\n{"zero": {"stage": $STAGE}, "on": "a b"}\nEOT\nx $NAME\n'
    found = read_script(script, given={})
    assert (found.files, found.commands) == ((("./ds.json", '{"zero": {"stage": 1}, "on": "a b"}\n'),), (("x", "./ds.json"),))


def test_what_is_not_followed_is_told() -> None:
    found = read_script("if [ -f $X ]; then A=1; fi\n[ -d y ] && B=2\nwhile true; do C=3; done\nx $A $B $C", given={})
    assert found.commands == (("x", "$A", "$B", "$C"),)
    assert [line.partition(":")[0] for line in found.left_out] == ["if [ -f $X ]", "B=2", "while true"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x 'a", "a quotation does not end"),
        ("A=(a\nb", "a bracket does not end"),
        ("if [ 1 -eq 1 ]; then\nx", "does not end"),
        ("fi", "belongs to no `if`"),
        ("cat <<EOF > a\nb", "here-document EOF"),
        ("x\n" * 30_000, "statements"),
        ("x" * 2_000_000, "characters"),
        ("A=aaaaaaaaaaaaaaaa\n" + "A=$A$A$A$A$A$A$A$A\n" * 20, "characters"),
    ],
)
def test_what_cannot_be_read_is_an_error(text: str, said: str) -> None:
    with pytest.raises(DataError, match=said) as raised:
        commands(text)
    assert raised.value.hint


@in_both
def test_any_text_is_a_script_or_an_error() -> None:
    parts = [
        *SCRIPT.split(),
        *["$", "${", "$((", "))", "(", ")", "{", "}", "[", "]]", '"'],
        "'",
        "`",
        "\\",
        "\n",
        ";",
        "&&",
        "||",
        "<<E",
        "then",
        "fi",
        "\x00",
        "é",
    ]
    for number in numbers(200, 5000):
        random = Random(number)
        text = random.choice(("", " ")).join(random.choices(parts, k=random.randrange(40)))
        try:
            read_script(text, given={})
        except DataError:
            continue
