"""Answers of joint searches, for tests."""

from __future__ import annotations

from shardwright.search.answer import GeneralAnswer
from shardwright.search.certificate import JointPart
from shardwright.search.joint.find import JointDetail

JointAnswer = GeneralAnswer[JointDetail]


def part_of(answer: JointAnswer) -> JointPart:
    """The joint part of the answer's certificate."""
    assert answer.certificate.joint is not None
    return answer.certificate.joint
