"""Options of an engine's launch: for all workers, ``token_budget=8192``, or for the workers of one
role, ``decode.sequences=128``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardwright.errors import RuntimeModelError
from shardwright.runtime.engines.engine import Engine
from shardwright.runtime.engines.engine_options import with_options
from shardwright.serving.deployments.workers import Deployment, WorkerPool, WorkerRole
from shardwright.validation.tables.facts_of_row import options_of_text, text_of_options

_PREFIXES = tuple(f"{role.value}." for role in WorkerRole)


def joined_options(facts: Mapping[str, str], own: str) -> str:
    """Options of facts and of the row itself, which win."""
    names = options_of_text(own)
    kept = {name: value for name, value in facts.items() if name not in names}
    return " ".join([text_of_options(kept), *own.split()]).strip()


def engine_options(options: str) -> str:
    """The options that are not for the workers of one role."""
    return " ".join(word for word in options.split() if not word.startswith(_PREFIXES))


def with_role_options(deployment: Deployment, *, engine: Engine, options: str) -> Deployment:
    """The deployment whose workers have the options of their roles, unless they set others.

    Raises:
        RuntimeModelError: the engine has no such option, or no workers have the role.
    """
    roles = {f"{pool.role.value}." for pool in deployment.pools}
    without_workers = [prefix for prefix in _PREFIXES if prefix not in roles]
    lost = [
        word for prefix in without_workers for word in options.split() if word.startswith(prefix)
    ]
    if lost:
        raise RuntimeModelError(
            f"{lost[0][:60]} is said of workers that there are none of", hint="leave the role out"
        )
    return Deployment(
        pools=tuple(
            _with_options(pool, engine=engine, options=options) for pool in deployment.pools
        )
    )


def _with_options(pool: WorkerPool, *, engine: Engine, options: str) -> WorkerPool:
    prefix = f"{pool.role.value}."
    of_role = {
        name.removeprefix(prefix): value
        for name, value in options_of_text(options).items()
        if name.startswith(prefix)
    }
    chosen = tuple(sorted((of_role | dict(pool.worker.options)).items()))
    with_options(engine, chosen)
    return replace(pool, worker=replace(pool.worker, options=chosen))
