"""settings → whether a run's step is compiled: settled before step 0, said, and kept with the run.

`torch.compile` takes half a minute to some minutes for the first step of a kind, and whether the compiled step is
faster depends on processor and model: a long run tries both, a short one is not worth the trial.
"""

import os
import shlex
import shutil
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import torch

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.files import cache_folder
from bertwright.recipes.pace import step_seconds
from bertwright.recipes.systems import task_of
from bertwright.training.machine import Numerics

if TYPE_CHECKING:
    from bertwright.recipes.pretrain import Pretraining

LONG: Final = 3600.0
"""Seconds that a run is to take before `auto` tries a compiled step."""
GAIN: Final = 1.05
"""`auto` takes it where it is at least this much faster."""
_USUAL_SHARE: Final = 0.3
"""Of the matrix rate, for telling how long a number of steps takes without measuring it."""
_SECONDS: Final = 5.0
"""Of steps on each side of the trial."""


def settle_compiled(trained: "Pretraining", numerics: Numerics) -> Numerics:
    """`numerics` with `compiled` as the settings say, as far as this machine can."""
    asked = trained.settings.compile
    if asked == "off" or (asked == "auto" and _expected_seconds(trained, numerics) < LONG):
        return _with(numerics, compiled=False)
    if not can_compile():
        say("there is no C++ compiler here (c++): the step is not compiled; the same run, perhaps slower")
        return _with(numerics, compiled=False)
    begin = time.perf_counter()
    try:
        fast = _step_seconds(trained, _with(numerics, compiled=True))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # torch's compiler fails in many ways, and a run must not end of it
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        say(f"the step is not compiled, torch.compile failed: {why[:200]}; the same run, perhaps slower")
        return _with(numerics, compiled=False)
    took = f"torch.compile took {max(0.0, time.perf_counter() - begin - _SECONDS):.0f} s (less where it is cached)"
    if asked == "on":
        say(f"{took}; a step takes {fast * 1e3:.0f} ms")
        return _with(numerics, compiled=True)
    plain = _step_seconds(trained, _with(numerics, compiled=False))
    chosen = plain >= GAIN * fast
    say(
        f"{took}; a step takes {fast * 1e3:.0f} ms compiled and {plain * 1e3:.0f} ms as it is: "
        f"{'compiled' if chosen else 'not compiled'}"
    )
    return _with(numerics, compiled=chosen)


def resumed(numerics: Numerics, *, allow_other: bool) -> Numerics:
    """What a run that was begun with `numerics` goes on with. InputError where it cannot be compiled here any more."""
    if not numerics.compiled or can_compile():
        return numerics
    if not allow_other:
        raise InputError(
            "this run was begun with a compiled step, and here is no C++ compiler (c++): its bits would differ from "
            "an undisturbed run's; --allow-other-numerics goes on all the same, uncompiled"
        )
    return _with(numerics, compiled=False)


def can_compile() -> bool:
    """Whether there is a compiler; what it makes is kept in the person's cache folder (torch's is not kept long)."""
    name = shlex.split(os.environ.get("CXX") or "c++")[0]
    if shutil.which(name) is None and ("CXX" in os.environ or shutil.which("g++") is None):
        return False
    with suppress(OSError):
        folder = cache_folder() / "inductor"
        folder.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))
    return True


def _expected_seconds(trained: "Pretraining", numerics: Numerics) -> float:
    """What was asked for, or what the steps take at the usual share of the machine's matrix rate."""
    settings = trained.settings
    if settings.minutes:
        return 60 * settings.minutes
    assert settings.steps
    flops = task_of(trained.model).flops
    work = sum(
        phase.share * sum(map(flops, trained.micro_batches(examples, 0)))
        for phase, examples in zip(settings.phases, trained.phases, strict=True)
    )
    return settings.steps * work / (_USUAL_SHARE * numerics.matrix_rate * trained.ranks.world)


def _step_seconds(trained: "Pretraining", numerics: Numerics) -> float:
    """Of the longest stretch of steps, in throw-away updates of this process alone."""
    phases = zip(trained.settings.phases, trained.phases, strict=True)
    _, examples = max(phases, key=lambda pair: pair[0].share)
    return step_seconds(trained, examples, numerics, seconds=_SECONDS)


def _with(numerics: Numerics, *, compiled: bool) -> Numerics:
    return numerics.model_copy(update={"compiled": compiled})
