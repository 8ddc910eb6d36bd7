"""Processes that answer questions: a few run, further questions wait, cancelling kills one."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shutil
import tempfile
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any, Final

from shardwright.errors import OutOfTimeError, ResourceError
from shardwright.web.answer_event_types import (
    Event,
    Events,
    FailedQuestion,
    LastEvent,
    TooManyQuestionsError,
    failed,
)
from shardwright.web.answer_one_question_in_process import run_search_process
from shardwright.web.server_limits import ServerLimits

_PRELOADED: Final = "shardwright.web.preload_search_in_fork_server"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchProcess:
    """A process that waits for a question, its end of the connection, and its private folder."""

    process: Any
    connection: Connection
    folder: Path


class SearchProcesses:
    """Processes of searches: each answers one question, and a spare one is always ready."""

    def __init__(self, limits: ServerLimits) -> None:
        self.limits = limits
        self.waiting = 0
        self._running = asyncio.Semaphore(limits.workers or os.cpu_count() or 1)
        self._spare: list[SearchProcess] = []
        self._starting: set[asyncio.Task[None]] = set()
        self._folder: Path
        forks = "forkserver" in multiprocessing.get_all_start_methods()
        self._context: Any = multiprocessing.get_context("forkserver" if forks else "spawn")
        if forks:
            self._context.set_forkserver_preload([_PRELOADED])

    async def start(self) -> None:
        """Make the folder of the processes and start the spare one."""
        self._folder = Path(tempfile.mkdtemp(prefix="shardwright-web-"))
        self._spare.append(await asyncio.to_thread(self._new_process))

    async def close(self) -> None:
        """End all processes and remove their folders."""
        for task in tuple(self._starting):
            await asyncio.wait({task})
        for process in self._spare:
            await asyncio.to_thread(_end, process)
        self._spare.clear()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def events(self, verb: str, body: Any) -> Events:
        """Yield events of a question's answer once a process is free; raise if too many wait.

        The process is killed when the iteration ends early.

        Raises:
            TooManyQuestionsError: too many questions wait.
        """
        if self.waiting >= self.limits.waiting:
            raise TooManyQuestionsError(
                f"{self.waiting} questions wait for this server already",
                hint="try again in some seconds",
            )
        self.waiting += 1
        try:
            await self._running.acquire()
        finally:
            self.waiting -= 1
        try:
            process = await self._take()
            try:
                async for event in self._events_of(process, verb, body):
                    yield event
            finally:
                await asyncio.shield(asyncio.to_thread(_end, process))
        finally:
            self._running.release()

    async def _events_of(self, process: SearchProcess, verb: str, body: Any) -> Events:
        """Yield a process's events of a question up to its answer, or an error after a limit."""
        received: asyncio.Queue[Event | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        Thread(
            target=_receive, args=(process.connection, verb, body, received, loop), daemon=True
        ).start()
        limit_s = self.limits.question_s + self.limits.grace_s
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    event = await received.get()
                    if event is None:
                        event = _ended_from_outside()
                    yield event
                    if isinstance(event, LastEvent):
                        return
        except TimeoutError:
            yield failed(
                OutOfTimeError(
                    f"the answer takes longer than the {limit_s:.0f} s that this server gives to a"
                    " question",
                    hint="a smaller space (standard, or pins), or the command line",
                )
            )

    async def _take(self) -> SearchProcess:
        """Take a live spare process and start another in its place; else start a new process."""
        while self._spare:
            process = self._spare.pop()
            self._start_spare()
            if process.process.is_alive():
                return process
            await asyncio.to_thread(_end, process)
        return await asyncio.to_thread(self._new_process)

    def _start_spare(self) -> None:
        """Start a spare process in the background, beside the questions that run."""

        async def start() -> None:
            """Start one process and keep it."""
            self._spare.append(await asyncio.to_thread(self._new_process))

        task = asyncio.create_task(start())
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    def _new_process(self) -> SearchProcess:
        """Start a process that waits for a question.

        Raises:
            ResourceError: the system has no more processes, files or space.
        """
        try:
            folder = Path(tempfile.mkdtemp(dir=self._folder))
            here, there = self._context.Pipe()
            process = self._context.Process(
                target=run_search_process, args=(there, str(folder), self.limits), daemon=True
            )
            process.start()
        except OSError as error:
            raise ResourceError(
                f"this server cannot start a process for the answer: {error}",
                hint="try again in some seconds",
            ) from error
        there.close()
        return SearchProcess(process=process, connection=here, folder=folder)


def _receive(
    connection: Connection,
    verb: str,
    body: Any,
    received: asyncio.Queue[Event | None],
    loop: asyncio.AbstractEventLoop,
) -> None:
    """Send a question, then queue its events, and None once the process closes the connection."""
    try:
        connection.send((verb, body))
        while True:
            loop.call_soon_threadsafe(received.put_nowait, connection.recv())
    except (EOFError, OSError):
        connection.close()
    try:
        loop.call_soon_threadsafe(received.put_nowait, None)
    except RuntimeError:  # the loop is closed
        return


def _end(process: SearchProcess) -> None:
    """Kill a process, wait for its end, and remove its folder."""
    process.process.kill()
    process.process.join()
    shutil.rmtree(process.folder, ignore_errors=True)


def _ended_from_outside() -> FailedQuestion:
    """The error of a question whose process was killed."""
    return failed(
        ResourceError(
            "the process that searched for this answer was ended from outside",
            hint="ask again; if it happens again, the machine may be short of memory",
        )
    )
