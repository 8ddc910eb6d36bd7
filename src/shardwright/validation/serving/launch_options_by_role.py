"""Options of a serving engine's launch, for all workers or for the workers of one role.

For example ``token_budget=8192``, and ``decode.sequences=128`` for decode workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardwright.errors import RuntimeModelError
from shardwright.runtime.serving_engines.engine_options import engine_with_options
from shardwright.runtime.serving_engines.serving_engine import Engine
from shardwright.serving.deployments.worker_pools import Deployment, WorkerPool, WorkerRole
from shardwright.validation.tables.apply_facts_to_row import options_of_text, text_of_options

_PREFIXES = tuple(f"{role.value}." for role in WorkerRole)


def joined_options(facts: Mapping[str, str], row_options: str) -> str:
    """Join options of facts and of the row's text; for one name the row's value wins."""
    names = options_of_text(row_options)
    fact_options = {name: value for name, value in facts.items() if name not in names}
    return " ".join([text_of_options(fact_options), *row_options.split()]).strip()


def engine_options(options: str) -> str:
    """Text of the launch options for all workers, without those of a role (``decode.``)."""
    return " ".join(word for word in options.split() if not word.startswith(_PREFIXES))


def with_role_options(deployment: Deployment, *, engine: Engine, options: str) -> Deployment:
    """Set options that begin with a role on the role's workers; a worker's own options win.

    Raises:
        RuntimeModelError: the engine has no such option, or no workers have the role.
    """
    roles = {f"{pool.role.value}." for pool in deployment.pools}
    without_workers = [prefix for prefix in _PREFIXES if prefix not in roles]
    unused = [
        word for prefix in without_workers for word in options.split() if word.startswith(prefix)
    ]
    if unused:
        raise RuntimeModelError(
            f"{unused[0][:60]} is set for a role without workers", hint="leave the role out"
        )
    return Deployment(
        pools=tuple(
            _with_role_options(pool, engine=engine, options=options) for pool in deployment.pools
        )
    )


def _with_role_options(pool: WorkerPool, *, engine: Engine, options: str) -> WorkerPool:
    """Pool whose workers have the options for its role; a worker's own options win."""
    prefix = f"{pool.role.value}."
    of_role = {
        name.removeprefix(prefix): value
        for name, value in options_of_text(options).items()
        if name.startswith(prefix)
    }
    chosen = tuple(sorted((of_role | dict(pool.worker.options)).items()))
    engine_with_options(engine, chosen)
    return replace(pool, worker=replace(pool.worker, options=chosen))
