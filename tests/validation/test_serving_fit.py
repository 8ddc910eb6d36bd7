"""The fit of serving's constants: it finds what made the rows, leaves alone what they do not tell,
and holds out what it is told to."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shardwright.errors import DataError, InfeasibleError
from shardwright.hardware.catalog.fitted_serving_constants import (
    DECLARED_SERVING,
    SERVING,
    ServingConstants,
    serving_constant_names,
)
from shardwright.validation.serving.fit_constants import (
    is_fitted_to,
    linear_fit,
    read_slopes,
    slopes_of,
    slopes_text,
)
from shardwright.validation.serving.measured_deployment import ServingRun, ServingValues
from shardwright.validation.serving.predict_deployment import predict_serving
from shardwright.validation.serving.serving_table_columns import ServingMetric
from shardwright.validation.table_reader_and_fold_validation import Fitted
from tests.validation.serving_tables import FOLDER, case_of, published_cases

PRIOR_SERVING = ServingConstants(**{one.name: one.prior for one in DECLARED_SERVING})
TRUE = replace(PRIOR_SERVING, products_hopper=1.06, host_iteration_s=3e-3)


def predict(case: ServingRun, constants: ServingConstants) -> ServingValues:
    """A made-up engine: a token takes its products and a host; nothing else is in it."""
    size, hosts = case.measurement.isl, case.measurement.concurrency
    tpot = constants.products_hopper * size * 1e-5 + constants.host_iteration_s * hosts
    return ServingValues(tpot_s=tpot, ttft_s=tpot + constants.request_s, tokens_per_s=1 / tpot)


def cases(**cells: str) -> list[ServingRun]:
    """Rows that were made with `TRUE`; each has a line of its own."""
    found = []
    for number, (isl, concurrency) in enumerate(
        (i, c) for i in (256, 1024, 4096) for c in (1, 4, 16)
    ):
        case = case_of(isl=str(isl), concurrency=str(concurrency), **cells)
        case = replace(case, measurement=replace(case.measurement, line=number + 2))
        seen = predict(case, TRUE)
        found.append(replace(case, values=seen))
    return found


def test_what_made_the_rows_is_found_and_what_they_do_not_tell_stays() -> None:
    at = PRIOR_SERVING
    for _ in range(4):
        at = linear_fit(slopes_of(cases(), evaluate=predict, at=at), cases())
    assert at.products_hopper == pytest.approx(1.06, rel=0.02)
    assert at.host_iteration_s == pytest.approx(3e-3, rel=0.05)
    for name in set(serving_constant_names()) - {
        "products_hopper",
        "host_iteration_s",
        "request_s",
    }:
        assert getattr(at, name) == pytest.approx(getattr(PRIOR_SERVING, name), rel=1e-4), name


def test_rows_that_are_held_out_do_not_bend_a_constant() -> None:
    wrong = [
        replace(
            c,
            measurement=replace(c.measurement, line=c.measurement.line + 100),
            values=replace(c.values, tpot_s=9.0, ttft_s=9.0),
        )
        for c in cases()
    ]
    slopes = slopes_of([*cases(), *wrong], evaluate=predict)
    alone = linear_fit(slopes_of(cases(), evaluate=predict), cases())
    assert linear_fit(slopes, cases()) == alone
    assert linear_fit(slopes, [*cases(), *wrong]) != alone
    assert linear_fit(slopes, []) == PRIOR_SERVING


def test_rows_with_an_open_question_and_those_without_a_prediction_are_left_out() -> None:
    def refuse(case: ServingRun, constants: ServingConstants) -> ServingValues:
        if case.measurement.isl == 256:
            raise InfeasibleError("too large")
        return predict(case, constants)

    slopes = slopes_of([*cases()[:4], *cases(spec_decoding="unknown")], evaluate=refuse)
    assert slopes.rows == (("lab", 5, ServingMetric.TPOT), ("lab", 5, ServingMetric.TTFT))


def test_slopes_are_kept_in_a_file(tmp_path: Path) -> None:
    slopes, path = slopes_of(cases(), evaluate=predict), tmp_path / "slopes.json"
    path.write_text(slopes_text(Fitted(report=slopes)), encoding="utf-8")
    again = read_slopes(path)
    assert (again.at, again.rows) == (SERVING, slopes.rows)
    assert np.allclose(again.slope, slopes.slope, atol=1e-4)
    assert np.allclose(again.residual, slopes.residual, atol=1e-5)
    for text in ("", "[]", "{}", json.dumps({"at": {}, "rows": [[1]]}), '{"at": 1, "rows": 2}'):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(DataError, match="not a file of slopes"):
            read_slopes(path)


def test_there_are_at_most_twenty_constants_and_each_is_declared() -> None:
    assert tuple(one.name for one in DECLARED_SERVING) == serving_constant_names()
    assert len(DECLARED_SERVING) <= 20
    for one in DECLARED_SERVING:
        assert one.low <= getattr(SERVING, one.name) <= one.high
        assert one.low <= one.prior <= one.high


def test_a_factor_is_of_a_family_of_accelerators_or_of_all() -> None:
    some = replace(SERVING, experts_hopper=1.3, sums=1.4)
    assert some.in_place("experts", "h200-sxm") == 1.3
    assert some.in_place("experts", "l40s") == 1.0
    assert some.in_place("sums", "l40s") == some.in_place("sums", "h200-sxm") == 1.4
    assert some.in_place("elements", "h200-sxm") == 1.0


STORED = read_slopes(FOLDER / "slopes.json")


def test_the_shipped_constants_are_the_fit_to_the_stored_slopes() -> None:
    known = [case for case in published_cases() if isinstance(case, ServingRun)]
    fitted = linear_fit(STORED, known)
    for name in serving_constant_names():
        assert getattr(SERVING, name) == pytest.approx(getattr(fitted, name), rel=0.01), name


def test_stored_slopes_are_of_rows_that_the_fit_takes() -> None:
    known = {
        (c.measurement.source_id, c.measurement.line): c
        for c in published_cases()
        if isinstance(c, ServingRun)
    }
    assert len(STORED.rows) >= 400
    for source, line, metric in STORED.rows:
        case = known[source, line]
        assert is_fitted_to(case)
        assert case.measured(metric)


@pytest.mark.proof
def test_stored_residuals_are_what_is_predicted() -> None:
    """Of every fortieth row; a model that has moved since by more is to be fitted anew (`make
    accuracy`)."""
    known = {
        (c.measurement.source_id, c.measurement.line): c
        for c in published_cases()
        if isinstance(c, ServingRun)
    }
    away = []
    for (source, line, metric), residual in list(zip(STORED.rows, STORED.residual, strict=True))[
        ::40
    ]:
        case = known[source, line]
        found = predict_serving(case, STORED.at).of(metric, outputs=case.mean_outputs)
        assert found
        away.append(abs(np.log(found / (case.measured(metric) or np.nan)) - residual))
    assert np.median(away) <= 0.01
