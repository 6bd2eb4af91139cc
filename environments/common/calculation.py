"""Arithmetic of whole numbers in a text that a model wrote. Pure and bounded."""

import ast
import operator

OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
MAX_CHARS, MAX_BITS = 200, 512


def calculate_text(text):
    """Result of an expression of whole numbers with + - * // %, or the reason of the failure."""

    def number(node):
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -number(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
            a, b = number(node.left), number(node.right)
            if a.bit_length() + b.bit_length() > MAX_BITS:
                raise ValueError("the numbers are too large")
            return OPERATIONS[type(node.op)](a, b)
        raise ValueError("only whole numbers with + - * // % and parentheses")

    try:
        if len(text) > MAX_CHARS:
            raise ValueError("the expression is too long")
        return str(number(ast.parse(text.strip(), mode="eval").body))
    except (ValueError, SyntaxError, ZeroDivisionError, RecursionError, MemoryError) as error:
        return f"error: {error}"
