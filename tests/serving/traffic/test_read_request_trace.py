from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardwright.errors import DataError
from shardwright.serving.traffic import read_request_trace as request_trace
from shardwright.serving.traffic.read_request_trace import parse_trace, read_trace

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16"
    " 18:15:50.9951690,396,109\n"
)
OWN = "arrival_s,input_tokens,output_tokens\n0,4808,10\n0.052,3180,8\n"
MOONCAKE = (
    '{"timestamp": 0, "input_length": 1100, "output_length": 500, "hash_ids": [46, 47, 48]}\n'
    '{"timestamp": 3000, "input_length": 1024, "output_length": 0, "hash_ids": [46, 49]}\n'
)


def test_azure() -> None:
    trace = parse_trace(AZURE.encode(), source="conv.csv")
    assert trace.arrival_s.tolist() == pytest.approx([0.0, 4.314579])
    assert trace.inputs.tolist() == [374, 396]
    assert trace.outputs.tolist() == [44, 109]
    assert trace.blocks == ()


def test_own() -> None:
    trace = parse_trace(OWN.encode(), source="own.csv")
    assert trace.arrival_s.tolist() == [0.0, 0.052]
    assert trace.inputs.tolist() == [4808, 3180]


def test_mooncake() -> None:
    trace = parse_trace(MOONCAKE.encode(), source="mooncake.jsonl")
    assert trace.arrival_s.tolist() == [0.0, 3.0]
    assert trace.blocks == ((46, 47, 48), (46, 49))
    assert trace.block_tokens == 512
    assert trace.outputs.tolist() == [500, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: not a trace"),
        (
            "arrival,input_tokens,output_tokens\n",
            "did you mean arrival_s,input_tokens,output_tokens",
        ),
        ("arrival_s,input_tokens,output_tokens\n", "no request"),
        (OWN + "\n1,2\n", "line 5: 2 cells"),
        (OWN + "x,2,3\n", "line 4: 'x' is no time"),
        (OWN + "nan,2,3\n", "line 4: 'nan' is no time"),
        (OWN + "0.01,2,3\n", "line 4: earlier than the line before"),
        (OWN + "1,0,3\n", "line 4: a prompt of 0 tokens"),
        (OWN + "1,-5,3\n", "line 4: '-5' is no number of tokens"),
        (OWN + "1,99999999999,3\n", "line 4: a prompt of 99999999999 tokens"),
        (AZURE + "yesterday,2,3\n", "line 4: 'yesterday' is no time"),
        (AZURE + "2023-11-16 18:15:51.x,2,3\n", "line 4: '2023-11-16 18:15:51.x' is no time"),
        (MOONCAKE + "{\n", "line 3: not JSON"),
        (MOONCAKE + "[1]\n", "line 3: not an object"),
        (MOONCAKE + '{"timestamp": 4000, "input_length": 3}\n', "line 3: no output_length"),
        (
            MOONCAKE + '{"timestamp": 4000, "input_length": 3.5, "output_length": 1}\n',
            "line 3: lengths are no whole numbers",
        ),
        (
            MOONCAKE + '{"timestamp": NaN, "input_length": 3, "output_length": 1}\n',
            "line 3: 'NaN' is no time",
        ),
        (
            MOONCAKE
            + '{"timestamp": 4000, "input_length": 3, "output_length": 1, "hash_ids": [1, 2]}\n',
            "line 3: 2 hashes for 3 tokens",
        ),
        (
            MOONCAKE
            + '{"timestamp": 4000, "input_length": 3, "output_length": 1, "hash_ids": "a"}\n',
            "line 3: hash_ids are no list",
        ),
    ],
)
def test_wrong_lines_are_named(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message.replace("[", r"\[")) as raised:
        parse_trace(text.encode(), source="t")
    assert raised.value.hint
    assert raised.value.exit_code == 7


def test_not_utf8() -> None:
    with pytest.raises(DataError, match="line 2: not UTF-8"):
        parse_trace(b"arrival_s,input_tokens,output_tokens\n\xff,1,1\n", source="t")


def test_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(request_trace, "MAX_REQUESTS", 1)
    with pytest.raises(DataError, match="line 3: more than 1 requests"):
        parse_trace(OWN.encode(), source="t")
    monkeypatch.setattr(request_trace, "MAX_FILE_BYTES", 5)
    path = tmp_path / "t.csv"
    path.write_text(OWN)
    with pytest.raises(DataError, match=r"t.csv has \d+ bytes"):
        read_trace(path)
    with pytest.raises(DataError, match="cannot be read"):
        read_trace(tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("name", "requests"), [("azure_llm_2023_code.csv", 8819), ("azure_llm_2023_conv.csv", 19366)]
)
def test_real_lengths(name: str, requests: int) -> None:
    """Figures of the Azure traces, whose columns are named otherwise here."""
    path = Path(__file__).resolve().parents[4] / "shared" / "traces" / "serving" / name
    if not path.exists():
        pytest.skip(f"{name} is not here")
    text = path.read_text().replace("t_s,input_tokens", "arrival_s,input_tokens", 1)
    trace = parse_trace(text.encode(), source=name)
    assert len(trace.inputs) == requests
    assert np.all(np.diff(trace.arrival_s) >= 0)
