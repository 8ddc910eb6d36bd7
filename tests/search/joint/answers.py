"""Answers of joint searches, for tests."""

from __future__ import annotations

from shardwright.search.joint.find_joint import JointDetail
from shardwright.search.optimality_certificate import JointPart
from shardwright.search.search_answer import GeneralAnswer

JointAnswer = GeneralAnswer[JointDetail]


def part_of(answer: JointAnswer) -> JointPart:
    """The joint part of the answer's certificate."""
    assert answer.certificate.joint is not None
    return answer.certificate.joint
