"""What a launch sets, as text: of all its workers, ``token_budget=8192``, or of those of one role,
``decode.sequences=128``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardwright.errors import RuntimeModelError
from shardwright.runtime.engines.engine import Engine
from shardwright.runtime.engines.options import with_options
from shardwright.serving.deployments.workers import Deployment, Pool, Role


def joined(facts: Mapping[str, str], own: str) -> str:
    """Options that facts give and those of the row itself, which win."""
    said = {word.partition("=")[0] for word in own.split()}
    return " ".join(
        [*(f"{name}={value}" for name, value in facts.items() if name not in said), *own.split()]
    )


def of_all(options: str) -> str:
    """Those of the engine, whoever's workers they are."""
    return " ".join(
        word
        for word in options.split()
        if not any(word.startswith(f"{role.value}.") for role in Role)
    )


def told_workers(deployment: Deployment, *, engine: Engine, options: str) -> Deployment:
    """`deployment` whose workers have the options of their roles, besides those that they have.

    Raises:
        RuntimeModelError: they are none of the engine's, or no workers have that role.
    """
    roles = {pool.role for pool in deployment.pools}
    lost = next(
        (
            word
            for role in Role
            if role not in roles
            for word in options.split()
            if word.startswith(f"{role.value}.")
        ),
        "",
    )
    if lost:
        raise RuntimeModelError(
            f"{lost[:60]} is said of workers that there are none of", hint="leave the role out"
        )
    return Deployment(
        pools=tuple(_told(pool, engine=engine, options=options) for pool in deployment.pools)
    )


def _told(pool: Pool, *, engine: Engine, options: str) -> Pool:
    role = f"{pool.role.value}."
    own = {
        name.removeprefix(role): value
        for name, _, value in (word.partition("=") for word in options.split())
        if name.startswith(role)
    }
    chosen = tuple(sorted((own | dict(pool.worker.options)).items()))
    with_options(engine, chosen)
    return replace(pool, worker=replace(pool.worker, options=chosen))
