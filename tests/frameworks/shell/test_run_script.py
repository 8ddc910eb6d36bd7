"""Launch scripts as a shell would read them, without running anything."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from random import Random

import pytest

from shardwright.errors import DataError
from shardwright.frameworks.shell.run_script import read_script
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
    assert (
        shlex.join(first)
        == "torchrun --nproc_per_node 8 --nnodes 16 train.py --tp 8 --nproc_per_node 8 --nnodes 16"
        " --beta 0.9 --sequence-parallel --whole --name 'a b' '2>&1'"
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
        ("f() {\n  x $1 $#\n}\nf a", "x a 1"),
        ("for i in 1 2; do A+=$i; done\nx $A", "x 12"),
        (': "${TP:=4}"\n: ${MBS:=1}\nTP2=${TP:-2}\nx $TP $MBS $TP2', "x 4 1 4"),
        ("TP=2\n: ${TP:=4}\nx $TP", "x 2"),
        ("x ${10} $1 $# $*", "x '$10' '$1' '$#' '$*'"),
        ("shift 2\nx $1 ${8}", "x '$3' '$10'"),
        ('set -- a \'b c\'\nshift\nx "$1" $# "$@"', "x 'b c' 1 'b c'"),
        ('A=1\nx ${A:+--on} ${B:+--off} ${A:+"$A"}', "x --on 1"),
        ("M=8b\ncase $M in\n  8b|7b) L=32 ;;\n  70b) L=80 ;;\n  *) L=0 ;;\nesac\nx $L", "x 32"),
        ("M=70b; case $M in 8b) L=32;; 70*) L=80;; esac; x $L", "x 80"),
        ("A=(a b)\nx ${A[1]} ${#A[@]} $A", "x b 2 a"),
        ("declare -A M=([7b]=32 [70b]=80)\nS=70b\nx ${M[$S]}", "x 80"),
        ("P=/a/b.json\nx ${P##*/} ${P%.json} ${P/a/c} ${P:1:1}", "x b.json /a/b /c/b.json a"),
        ("N=1\nwhile [ $N -lt 4 ]; do N=$((N+1)); done\nx $N", "x 4"),
        ("(A=1; B=2)\nA=3\nx $A $B", "x 3 '$B'"),
        ("A='-x 1'\nbash -c 'y $A'\n", "y -x 1"),
        ("#SBATCH --nodes=4\nx $((SLURM_NNODES * 8))", "x 32"),
        ("[[ $A == b && -n $C ]] || x 1", "x 1"),
        ("A=bc\n[[ $A == b* && -n $A ]] && x 1", "x 1"),
        ("if [ 1 -eq 2 -o 1 -eq 1 ]; then x 1; fi\nexit\nx 2", "x 1"),
        ("if [ 1 -eq 2 ]; then A=--on; fi\ncase b in a) B=--off;; esac\nx $A $B c", "x c"),
        ("x $(y --name=z | w -l) d", "x '$(y --name=z | w -l)' d"),
        ("let A=1+2; ((A++)); ((A*=2)); x $A", "x 8"),
        ("A=1 B=2 x $C", "x '$C'"),
        ("x a\\\n  b # c\n", "x a b"),
        ("x '--a \"b\"' #c", "x '--a \"b\"'"),
        ("x $(date) `date`", "x '$(date)' '`date`'"),
        ('set -- alpha beta gamma\nx "${@:2}" ${*:1:1} ${@: -1}', "x beta gamma alpha gamma"),
        ("A=(alpha beta gamma)\nx ${A[@]:1} ${A[@]: -2:1} ${A[@]:5} z", "x beta gamma beta z"),
        ("P=abcdef\nx ${P: -3:3} ${P: -3:-1} ${P:2:0}z ${P:9}y", "x def de z y"),
        ("A=(a b)\nA[0]+=c\nA[2]+=d\nx ${A[0]} ${A[1]} ${A[2]}", "x ac b d"),
        ("A=0\nuntil true; do A=1; done\nx $A", "x 0"),
        ("false && for i in 1 2; do x $i; done\nfalse || while true; do x 3; break; done", "x 3"),
        ("true || case a in a) x 1;; esac\nfalse || case a in a) x 2;; esac", "x 2"),
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
        pieces = [
            "-a",
            ".1",
            "'q r'",
            '"s t"',
            "--u",
            "${A}",
            '"$B"',
            "${C}",
            "${C:-v}",
            '"${A}w"',
            "=y",
            "\\ ",
        ]
        lines = [
            f"{random.choice(names)}{random.choice(('=', '=', '+='))}"
            f"{''.join(random.choices(pieces, k=2))}"
            for _ in range(5)
        ]
        lines = ["A=", "B=", "C=", *lines]
        words = " ".join(random.choice(pieces) for _ in range(6))
        script = "\n".join(lines)
        ran = subprocess.run(
            ["bash", "-c", f"{script}\nprintf '%s\\n' x {words}"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert list(commands(f"{script}\nx {words}")[0]) == ran.stdout.split("\n")[:-1], (
            f"{script}\n{words}"
        )


def test_a_here_document_is_a_file() -> None:
    script = (
        'STAGE=1\nNAME=./ds.json\ncat <<EOT > $NAME\n{"zero": {"stage": $STAGE}, "on": "a'
        ' b"}\nEOT\nx $NAME\n'
    )
    found = read_script(script, given={})
    assert (found.files, found.commands) == (
        (("./ds.json", '{"zero": {"stage": 1}, "on": "a b"}\n'),),
        (("x", "./ds.json"),),
    )


def test_what_is_not_followed_is_told_with_its_line() -> None:
    script = (
        "if [ -f $X ]; then A=1; fi\n[ -d y ] && B=2\nfor i in $(ls); do C=3; done\ncase $Y in\na)"
        " D=1;;\nesac\nread E\nx $A $B $C $D"
    )
    found = read_script(script, given={})
    assert found.commands == (("x", "$A", "$B", "$C", "$D"),)
    assert [line.partition(": ")[0] for line in found.left_out] == [
        "line 1",
        "line 2",
        "line 3",
        "line 4",
        "line 7",
    ]
    assert [line.rpartition("it sets ")[2] for line in found.left_out if "it sets" in line] == [
        "A",
        "C",
        "D",
    ]


def test_a_block_that_may_be_skipped_says_what_it_sets() -> None:
    script = read_script("[ $X = 1 ] && until [ $Y = 2 ]; do A=1; done", given={})
    (left, *_) = script.left_out
    assert "until" in left
    assert "what decides about it is not known here; it sets A" in left


def test_arguments_of_a_script_can_be_given() -> None:
    """Any of them; where none is missing before the last, they are all."""
    assert commands("x $1 ${10}", **{"10": "2"}) == (("x", "$1", "2"),)
    assert commands('x "$@" $#', **{"1": "a", "2": "b c"}) == (("x", "a", "b c", "2"),)
    loop = "while [ $# -gt 0 ]; do case $1 in --tp) TP=$2; shift 2;; *) shift;; esac; done\nx $TP"
    assert commands(loop, **{"1": "--pp", "2": "--tp", "3": "4"}) == (("x", "4"),)


def test_scripts_that_a_script_reads_are_found_or_told() -> None:
    sources = {"env.sh": "TP=4\n", "run.sh": "x --tp $TP --pp $1\n"}.get
    found = read_script(
        "source env.sh\nexport TP\nbash run.sh 2\n. other.sh\n", given={}, sources=sources
    )
    assert (found.commands, found.missing) == ((("x", "--tp", "4", "--pp", "2"),), {"other.sh": 4})


def test_files_that_commands_write() -> None:
    found = read_script(
        "echo '{\"a\": 1}' > a.json\nsed s/A/B/ t.json > b.json\ncat <<E | tee c.json\n{}\nE\n",
        given={},
    )
    assert found.files == (("a.json", '{"a": 1}\n'), ("c.json", "{}\n"))
    assert found.written == {"b.json": "sed"}


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


EXPRESSIONS = (
    *(
        "$A",
        "${B}",
        '"$A"',
        '"${C[@]}"',
        "${C[@]}",
        "${#C[@]}",
        "${#A}",
        "${A:-x}",
        '"${D:-y z}"',
        "${A:+w}",
        "${D:+w}",
        "${C[1]}",
    ),
    *(
        "${A%b}",
        "${A#a}",
        "${A%%.*}",
        "${A##*/}",
        "${A/a/q}",
        "${A//b/q}",
        "${A^^}",
        "${A:1}",
        "${A:0:2}",
        "'q $A'",
        "$((2*3))",
    ),
    *(
        "$(( N + 1 ))",
        "$((N/2*2))",
        "$1",
        "${2}",
        "$#",
        '"$@"',
        "$@",
        '"a$A"',
        "--x=$A",
        "pre${B}post",
        "${10}",
        "${E:=set}",
    ),
)
CONDITIONS = (
    '[ "$A" = ab ]',
    "[[ $A == a* ]]",
    "[ $N -gt 3 ]",
    "(( N > 3 ))",
    "[[ -n $B || $N -lt 5 ]]",
    '[ -z "$B" ]',
)
STATEMENTS = (
    *(
        "A=ab",
        "A=a.b/c",
        "B=7",
        "B=${A}x",
        "A=$((3+4))",
        "N=5",
        "C=(a b 'c d')",
        "C+=(e)",
        "C=($A $B)",
        "C=()",
        "shift",
        "set -- p q r",
    ),
    *(
        'set -- "$@" z',
        "((N++))",
        "((N+=2))",
        "let N=N+1",
        ': "${E:=five}"',
        ": ${F:=6}",
        "unset B",
        "A+=z",
        'B+="q"',
        "( A=sub; x $A )",
    ),
)


def _drawn(random: Random, depth: int = 0) -> str:
    """A statement of a script."""

    def body() -> str:
        return "\n".join(_drawn(random, depth + 1) for _ in range(random.randrange(1, 3)))

    condition = random.choice(CONDITIONS)
    compound = (
        lambda: f"if {condition}; then\n{body()}\nelse\n{body()}\nfi",
        lambda: f"for i in 1 {random.choice(('2', '$A', '${C[@]}'))}; do\nx $i\n{body()}\ndone",
        lambda: f'case "$A" in\n ab|q) {body()} ;;\n a*)\n{body()}\n;;\n *) x other;;\nesac',
        lambda: f'f() {{\nlocal Z=$1\nx f $1 $#\n{body()}\n}}\nf "$A" 2',
        lambda: "while [ $N -lt 4 ]; do\nN=$((N+1))\nx w $N\ndone",
    )
    kind = random.randrange(6 if depth < 2 else 4)
    if kind < 2:
        return random.choice(STATEMENTS)
    if kind == 2:
        return "x " + " ".join(random.choices(EXPRESSIONS, k=random.randrange(1, 4)))
    return (
        f"{condition} {random.choice(('&&', '||'))} x t" if kind == 3 else random.choice(compound)()
    )


@in_both
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_random_scripts_start_what_bash_starts() -> None:
    """Conditions, loops, cases, functions, subshells, arrays and positional parameters, in each
    other."""
    for number in numbers(40, 1500):
        random = Random(number)
        lines = [
            *("A=ab", "B=b", "E=", "N=2", "C=(k l)", "set -- one two"),
            *(_drawn(random) for _ in range(random.randrange(2, 8))),
        ]
        script = "\n".join((*lines, 'x end "$A" "$N" "$#"'))
        printed = "unset D; x() { printf '<%s>' \"$@\"; echo; }\n" + script.replace("unset B", "B=")
        ran = subprocess.run(["bash", "-c", printed], capture_output=True, text=True, check=False)
        found = commands(script.replace("unset B", "B="))
        assert [
            "".join(f"<{word}>" for word in one[1:] or ("",)) for one in found
        ] == ran.stdout.split("\n")[:-1], script


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
