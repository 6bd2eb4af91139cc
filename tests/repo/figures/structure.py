"""Structure: import circles, types, writes into other objects, settings, tests of modules."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.repo.figures.measured import Function, Measured, counted, share
from tests.repo.sources import PACKAGES, Repository, Source, circles, folder_graph

RUNTIME = "EnvRuntime"
RUNTIME_VARIABLES = ("env", "runtime")
SETTINGS = "TrainingConfig"
# Objects that a library hands to a function to be written: the context of a function of
# torch.autograd and of a command of click, and the namespace of an action of argparse.
TO_BE_WRITTEN = {"ctx", "namespace"}
# FastAPI documents this assignment as the way to replace the OpenAPI document.
DOCUMENTED_WRITES = (["app", "openapi"],)


def file_circles(repository: Repository) -> Measured:
    """Groups of modules that import each other, function-level and type imports included."""
    return counted([" ".join(circle) for circle in circles(repository.graph)])


def folder_circles(repository: Repository) -> Measured:
    """Groups of folders whose modules import each other."""
    return counted([" ".join(circle) for circle in circles(folder_graph(repository))])


# --- types, runtime and settings


def packages_without_strict_types(repository: Repository) -> Measured:
    """Packages that are not in mypy's ``files`` under ``strict``."""
    section = repository.pyproject.partition("[tool.mypy]")[2].partition("\n[")[0]
    files = re.search(r"^files\s*=\s*\[(.*?)\]", section, re.DOTALL | re.MULTILINE)
    listed = re.findall(r"[\"']([^\"']+)[\"']", files[1]) if files else []
    strict = re.search(r"^strict\s*=\s*true", section, re.MULTILINE) is not None
    return counted([p for p in PACKAGES if not strict or p not in listed])


def targets_of(node: ast.AST) -> Iterator[ast.expr]:
    """Single targets of an assignment, tuples taken apart; annotated and augmented too."""
    pending: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        pending = list(node.targets)
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign)):
        pending = [node.target]
    while pending:
        target = pending.pop(0)
        if isinstance(target, (ast.Tuple, ast.List)):
            pending = [*target.elts, *pending]
        else:
            yield target.value if isinstance(target, ast.Starred) else target


def attribute_chain(target: ast.expr) -> list[str]:
    """``["env", "server", "x"]`` of ``env.server.x``; empty for anything else."""
    names: list[str] = []
    while isinstance(target, ast.Attribute):
        names.insert(0, target.attr)
        target = target.value
    return [target.id, *names] if isinstance(target, ast.Name) and names else []


def writes_into_others(repository: Repository) -> Measured:
    """Assignments to attributes of an object that a function of the two packages received.

    The object is a parameter, or a part of ``self``: ``policy.padded = True``,
    ``self.fleet.follow = True``. An object that the function made itself does not count, and
    neither does what a library expects to be written, see TO_BE_WRITTEN.
    """
    items: list[str] = []
    for source in repository.under(*PACKAGES):
        for node, parameters in with_parameters(source.tree, frozenset()):
            for target in targets_of(node):
                chain = attribute_chain(target)
                if is_of_another(chain, parameters):
                    items.append(f"{source.path}:{target.lineno}: {ast.unparse(target)}")
    return counted(items)


def is_of_another(chain: list[str], parameters: frozenset[str]) -> bool:
    """Whether ``chain`` names an attribute of a parameter or of a part of ``self``."""
    if chain[:1] in (["self"], ["cls"]):
        return len(chain) > 2
    if chain in DOCUMENTED_WRITES:
        return False
    return bool(chain) and chain[0] in parameters - TO_BE_WRITTEN


def with_parameters(
    node: ast.AST, parameters: frozenset[str]
) -> Iterator[tuple[ast.AST, frozenset[str]]]:
    """Nodes below ``node``, each with the parameters of the functions around it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            signature = child.args
            named = [*signature.posonlyargs, *signature.args, *signature.kwonlyargs]
            yield from with_parameters(child, parameters | {arg.arg for arg in named})
        else:
            yield child, parameters
            yield from with_parameters(child, parameters)


def classes_called(name: str, sources: list[Source]) -> list[tuple[Source, ast.ClassDef]]:
    return [
        (source, node)
        for source in sources
        for node in source.tree.body
        if isinstance(node, ast.ClassDef) and node.name == name
    ]


def writes_into_runtime(repository: Repository) -> Measured:
    """Assignments to attributes of a runtime, or of its parts, outside its own module.

    A runtime is a variable ``env`` or ``runtime`` (a parameter or a local name of one), or an
    attribute of ``self`` with that name, with or without an underscore.
    """
    sources = repository.under("atroposlib")
    own = {source.name for source, _ in classes_called(RUNTIME, sources)}
    items = []
    for source in sources:
        for node in source.nodes if source.name not in own else ():
            for target in targets_of(node):
                chain = attribute_chain(target)
                if chain[:1] == ["self"]:
                    chain = chain[1:]
                # Two names at least: self.env = env hands the runtime over, no more.
                if len(chain) > 1 and chain[0].lstrip("_") in RUNTIME_VARIABLES:
                    items.append(f"{source.path}:{target.lineno}: {ast.unparse(target)}")
    return counted(items)


def runtime_attributes(repository: Repository) -> Measured:
    """Attributes that the runtime and its bases in atroposlib set on ``self``."""
    sources = repository.under("atroposlib")
    names: set[str] = set()
    pending, seen = [RUNTIME], set()
    while pending:
        name = pending.pop()
        seen.add(name)
        for _, definition in classes_called(name, sources):
            bases = [
                b.attr if isinstance(b, ast.Attribute) else ast.unparse(b)
                for b in definition.bases
            ]
            pending += [base for base in bases if base not in seen]
            for node in ast.walk(definition):
                chains = [attribute_chain(target) for target in targets_of(node)]
                names |= {c[1] for c in chains if len(c) == 2 and c[0] == "self"}
    return counted(sorted(names))


def settings_parameters(repository: Repository) -> Measured:
    """Parameters annotated with the settings of the whole trainer, in example_trainer."""
    word = re.compile(rf"\b{SETTINGS}\b")
    items = []
    for source in repository.under("example_trainer"):
        for node in source.nodes:
            if isinstance(node, ast.arg) and node.annotation is not None:
                if word.search(ast.unparse(node.annotation)):
                    items.append(f"{source.path}:{node.lineno}")
    return counted(sorted(items))


def settings_files(repository: Repository) -> Measured:
    """Files of example_trainer with such a parameter."""
    places = settings_parameters(repository).items
    return counted(sorted({place.rpartition(":")[0] for place in places}))


# --- tests


def is_stub(function: ast.AST) -> bool:
    """Whether the body is a docstring, ``pass``, ``...`` or ``raise NotImplementedError``."""
    assert isinstance(function, Function)
    return all(
        isinstance(step, ast.Pass)
        or (isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant))
        or (isinstance(step, ast.Raise) and "NotImplementedError" in ast.unparse(step))
        for step in function.body
    )


def untested_modules(repository: Repository) -> Measured:
    """Percentage of modules with behaviour that no test file is named after.

    Behaviour: a function that is more than a stub. A test of module ``m`` in folder ``f`` is
    test_m.py, test_f_m.py or test_m_<something>.py; ``__main__`` goes by its folder's name.
    """
    stems = {s.path.stem for s in repository.under("tests")}
    live, items = 0, []
    for source in repository.under(*PACKAGES):
        functions = [node for node in source.nodes if isinstance(node, Function)]
        if source.is_init or all(is_stub(function) for function in functions):
            continue
        live += 1
        folder, name = source.path.parent.name, source.path.stem
        if name == "__main__":
            name = folder
        exact = {f"test_{name}", f"test_{folder}_{name}"}
        if not exact & stems and not any(s.startswith(f"test_{name}_") for s in stems):
            items.append(str(source.path))
    return share(items, live, 100)
