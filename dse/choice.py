"""Which explorer answers a study, and why that one."""

from __future__ import annotations

from dse import exhaustive, frontier, pruning, search
from dse.errors import MethodError
from dse.resolve import Study

AUTO_EXHAUSTIVE_DESIGNS = 1_000_000_000
"""`auto` enumerates spaces up to this size: some minutes on one core."""
AUTO_PRUNED_DESIGNS = 10_000_000_000_000
"""`auto` takes the grid up to this size where designs can be dropped unseen, and all pools have few settings."""


def choose_method(study: Study) -> tuple[str, str]:
    """The method and why it was chosen; MethodError where the study's own choice cannot answer it."""
    asked = study.envelope.search.method
    if asked != "auto":
        refused = {"exhaustive": exhaustive.refusal, "milp": frontier.refusal, "optuna": search.refusal}[asked](study)
        if refused:
            raise MethodError(refused)
        return asked, "asked for by the study"
    n = study.space.n_designs
    no_enumeration = exhaustive.refusal(study)
    if not no_enumeration and n <= AUTO_EXHAUSTIVE_DESIGNS:
        return "exhaustive", f"the grid has {n:,} designs, at most {AUTO_EXHAUSTIVE_DESIGNS:,} are enumerated"
    few = n <= AUTO_PRUNED_DESIGNS and study.space.n_options <= study.paradigm.most_options
    if not no_enumeration and few and pruning.prunes(study):
        return "exhaustive", f"of the grid's {n:,} designs those that cannot be on the frontier are dropped unseen"
    no_milp = frontier.refusal(study)
    n_options = study.space.n_options
    why = no_enumeration or f"the grid has {n:,} designs, too many to enumerate"
    if not no_milp and n_options <= study.paradigm.most_options:
        return "milp", f"{why}; {n_options:,} options of all pools fit an exact program"
    no_search = search.refusal(study)
    if no_search:
        if no_milp:
            raise MethodError(f"{no_search}; {no_milp}")
        return "milp", f"{no_search}; only an exact program can answer"
    return "optuna", f"{why}; {no_milp or f'{n_options:,} options are too many for an exact program'}"
