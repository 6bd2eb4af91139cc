"""The same form of ``apply_chat_template`` for every tokenizer: ids, in each release.

transformers 5 returns a mapping by default, where release 4 and the plain tokenizer return ids.
The tokenizers of the library keep the class of transformers as a base: they are pickled, copied
and saved like it, and differ in this default alone.
"""

from __future__ import annotations

import inspect
from functools import lru_cache, wraps
from typing import Any, TypeVar, cast

METHOD, OPTION = "apply_chat_template", "return_dict"
T = TypeVar("T")


def with_ids(tokenizer: T) -> T:
    """``tokenizer``, with a chat template that gives ids unless ``return_dict=True``."""
    own: Any = type(tokenizer)
    if issubclass(own, IdsByDefault) or not hasattr(own, METHOD):
        return tokenizer
    wrapped = ids_class(own)
    if wrapped is own:
        return tokenizer
    copy: Any = own.__new__(wrapped)
    vars(copy).update(vars(tokenizer))
    return cast(T, copy)


@lru_cache(maxsize=64)
def ids_class(base: type[Any]) -> type[Any]:
    """A subclass of ``base``, under its names, that returns ids by default."""
    rendering = getattr(base, METHOD)
    signature = inspect.signature(rendering)
    place = [*signature.parameters].index(OPTION) if OPTION in signature.parameters else None
    if place is None:
        return base

    @wraps(rendering)
    def apply_chat_template(self: Any, *args: Any, **options: Any) -> Any:
        if len(args) < place:  # ``self`` counts among the parameters
            # A mask has no place in ids: transformers requires the mapping with it.
            wants_mapping = bool(options.get("return_assistant_tokens_mask"))
            options.setdefault(OPTION, wants_mapping)
        return rendering(self, *args, **options)

    parameters = [
        p.replace(default=False) if p.name == OPTION else p
        for p in signature.parameters.values()
    ]
    apply_chat_template.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=parameters
    )
    members = {
        METHOD: apply_chat_template,
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
    }
    return type(base.__name__, (IdsByDefault, base), members)


class IdsByDefault:
    """Mark of the classes of :func:`ids_class`; an instance is pickled by its base class."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        form: Any = super().__reduce_ex__(max(2, protocol))
        _, (_, *args), *state = form
        base = type(self).__mro__[2]
        return (new_instance, (base, *args), *state)


def new_instance(base: type[Any], *args: Any) -> Any:
    """An instance without its state, while an object is copied or unpickled."""
    own: Any = base
    return base.__new__(ids_class(own), *args)
