"""PTX instructions as C++ statements. What is not listed here, down to the last modifier, raises ``Unsupported``."""

import re
from collections.abc import Callable


class Unsupported(NotImplementedError):
    """Something in PTX that the translator does not know."""


# PTX's types in C++, and the variable that holds a register of the type: its bits.
C_TYPES = {
    "pred": "bool",
    **{f"{kind}{bits}": f"{'i' if kind == 's' else 'u'}{bits}" for kind in "bus" for bits in (8, 16, 32, 64)},
    "f16": "f16",
    "f32": "float",
    "f64": "double",
}
REGISTER_TYPES = {name: "bool" if name == "pred" else f"u{name[1:]}" for name in C_TYPES}
_SPECIAL = {
    **{
        f"%{name}.{axis}": f"gpu_place->{name}[{k}]"
        for name in ("tid", "ntid", "ctaid", "nctaid")
        for k, axis in enumerate("xyz")
    },
    "%laneid": "gpu_place->lane",
    "%lanemask_eq": "(1u << gpu_place->lane)",
    "%lanemask_lt": "((1u << gpu_place->lane) - 1)",
    "%lanemask_le": "((2u << gpu_place->lane) - 1)",
    "%lanemask_ge": "~((1u << gpu_place->lane) - 1)",
    "%lanemask_gt": "~((2u << gpu_place->lane) - 1)",
    "WARP_SZ": "32u",
}


def split(operands: str) -> list[str]:
    """At the commas outside of brackets."""
    return [part.strip() for part in re.findall(r"(?:[^,{(\[]|\{[^}]*\}|\([^)]*\)|\[[^\]]*\])+", operands) if part.strip()]


class Operands:
    """How the operands of an instruction are written in C++. ``_ptx._Body`` knows the names."""

    site: int
    parameters: set[str]
    returns_anywhere: bool
    symbol: Callable[[str], str | None]
    jump: Callable[[str], str]
    call: Callable[[list[str]], str]

    def __init__(self) -> None:
        self.scopes: list[dict[str, str]] = [{}]  # register -> type

    @staticmethod
    def variable(register: str) -> str:
        return f"r_{register.removeprefix('%')}"

    def register_type(self, name: str) -> str | None:
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), None)

    def value(self, operand: str, kind: str) -> str:
        """An operand read as a value of this PTX type."""
        c_type = C_TYPES[kind]
        if operand.startswith("!"):
            return f"!{self.value(operand[1:], kind)}"
        if found := self.register_type(operand):
            variable = self.variable(operand)
            return variable if REGISTER_TYPES[found] == c_type else f"as<{c_type}>({variable})"
        if operand in _SPECIAL:
            return f"{c_type}({_SPECIAL[operand]})"
        if match := re.fullmatch(r"0[fF]([0-9A-Fa-f]{8})|0[dD]([0-9A-Fa-f]{16})", operand):
            return f"as<{c_type}>(u32(0x{match[1]}))" if match[1] else f"as<{c_type}>(u64(0x{match[2]}))"
        if re.fullmatch(r"-?(0x[0-9A-Fa-f]+|\d+)U?", operand):
            return f"{c_type}({int(operand.rstrip('U'), 0) % 2**64:#x}ull)"
        if (address := self.symbol(operand)) is not None:
            return f"{c_type}({address})"
        raise Unsupported(f"operand {operand}")

    def assign(self, register: str, expression: str) -> str:
        """``expression`` is of the instruction's type; a wider register is filled with the sign of a signed one."""
        if register == "_":
            return f"(void)({expression});"
        if self.register_type(register) is None:
            raise Unsupported(f"destination {register}")
        return f"{self.variable(register)} = bits({expression});"

    def address(self, operand: str, shared: bool) -> str:
        match = re.fullmatch(r"\[([^\]+]+?)(?:\+(-?\d+))?\]", operand.replace(" ", ""))
        if match is None:
            raise Unsupported(f"address {operand}")
        base, offset = match[1], int(match[2] or 0) % 2**64
        if shared:
            return f"(u64(gpu_shared) + u32({self.value(base, 'u32')} + {offset % 2**32}u))"
        return f"({self.value(base, 'u64')} + {offset}ull)"


_KNOWN: dict[str, Callable[[Operands, str, list[str]], str]] = {}
_Statement = Callable[[Operands, str, list[str]], str]


def statement(f: Operands, opcode: str, operands: list[str]) -> str:
    name = opcode.partition(".")[0]
    if name not in _KNOWN:
        raise Unsupported(opcode)
    return _KNOWN[name](f, opcode, operands)


def _translates(*names: str) -> Callable[[_Statement], _Statement]:
    def add(function: _Statement) -> _Statement:
        _KNOWN.update(dict.fromkeys(names, function))
        return function

    return add


def _modifiers(parts: list[str], *allowed: str) -> set[str]:
    if strange := set(parts) - set(allowed):
        raise Unsupported(f"modifier .{strange.pop()}")
    return set(parts)


# ---- arithmetic: one function of instructions.h each

_INTEGERS = {f"{kind}{bits}" for kind in "bus" for bits in (16, 32, 64)}
_FLOATS = {"f32", "f64"}
# The operands' types (t: the instruction's own, u: u32, p: predicate); the types it is known for; its modifiers.
_SIMPLE: dict[str, tuple[str, set[str], tuple[str, ...]]] = {
    "add": ("tt", _INTEGERS | _FLOATS, ("rn", "ftz", "sat")),
    "sub": ("tt", _INTEGERS | _FLOATS, ("rn", "ftz", "sat")),
    "fma": ("ttt", _FLOATS, ("rn", "ftz", "sat")),
    "sqrt": ("t", _FLOATS, ("rn", "ftz", "approx")),
    "rcp": ("t", _FLOATS, ("rn", "ftz", "approx")),
    "rsqrt": ("t", _FLOATS, ("approx", "ftz")),
    "ex2": ("t", {"f32"}, ("approx", "ftz")),
    "lg2": ("t", {"f32"}, ("approx", "ftz")),
    "copysign": ("tt", _FLOATS, ()),
    "min": ("tt", _INTEGERS | _FLOATS, ("ftz",)),
    "max": ("tt", _INTEGERS | _FLOATS, ("ftz",)),
    "abs": ("t", _INTEGERS | _FLOATS, ("ftz",)),
    "neg": ("t", _INTEGERS | _FLOATS, ("ftz",)),
    "and": ("tt", _INTEGERS | {"pred"}, ()),
    "or": ("tt", _INTEGERS | {"pred"}, ()),
    "xor": ("tt", _INTEGERS | {"pred"}, ()),
    "not": ("t", _INTEGERS | {"pred"}, ()),
    "shl": ("tu", _INTEGERS, ()),
    "shr": ("tu", _INTEGERS, ()),
    "popc": ("t", _INTEGERS, ()),
    "clz": ("t", _INTEGERS, ()),
    "bfind": ("t", _INTEGERS, ()),
    "brev": ("t", _INTEGERS, ()),
    "bfe": ("tuu", _INTEGERS, ()),
    "bfi": ("ttuu", _INTEGERS, ()),
    "prmt": ("ttt", {"b32"}, ()),
    "lop3": ("tttt", {"b32"}, ()),
}


def _float(f: Operands, operand: str, kind: str, ftz: bool) -> str:
    return f"flush({f.value(operand, kind)})" if ftz and kind == "f32" else f.value(operand, kind)


def _rounded(expression: str, kind: str, modifiers: set[str]) -> str:
    if "ftz" in modifiers:
        expression = f"flush({expression})"
    if "sat" in modifiers:
        if kind != "f32":
            raise Unsupported("saturation of integers")
        expression = f"saturate({expression})"
    return expression


@_translates(*_SIMPLE)
def _simple(f: Operands, opcode: str, operands: list[str]) -> str:
    name, *rest, kind = opcode.split(".")
    kinds, known, allowed = _SIMPLE[name]
    if kind not in known:
        raise Unsupported(f"type .{kind}")
    modifiers = _modifiers(rest, *allowed)
    types = {"t": kind, "u": "u32"}
    values = [_float(f, operand, types[k], "ftz" in modifiers) for operand, k in zip(operands[1:], kinds, strict=True)]
    return f.assign(operands[0], _rounded(f"op_{name}({', '.join(values)})", kind, modifiers))


@_translates("mul", "mad")
def _multiply(f: Operands, opcode: str, operands: list[str]) -> str:
    name, *rest, kind = opcode.split(".")
    modifiers = _modifiers(rest, *(("rn", "ftz", "sat") if kind in _FLOATS else ("lo", "hi", "wide")))
    function = "op_mul" + next((f"_{m}" for m in ("hi", "wide") if m in modifiers), "")
    a, b = (_float(f, o, kind, "ftz" in modifiers) for o in operands[1:3])
    product = f"{function}({a}, {b})"
    if name == "mul":
        return f.assign(operands[0], _rounded(product, kind, modifiers))
    if kind in _FLOATS:
        return _simple(f, opcode.replace("mad", "fma"), operands)
    sum_kind = f"{kind[0]}{2 * int(kind[1:])}" if "wide" in modifiers else kind
    return f.assign(operands[0], f"op_add({product}, {f.value(operands[3], sum_kind)})")


@_translates("div", "rem")
def _divide(f: Operands, opcode: str, operands: list[str]) -> str:
    name, *rest, kind = opcode.split(".")
    modifiers = _modifiers(rest, *(("rn", "ftz", "approx", "full") if kind in _FLOATS else ()))
    a, b = (_float(f, o, kind, "ftz" in modifiers) for o in operands[1:])
    return f.assign(operands[0], _rounded(f"op_{name}({a}, {b}, {f.site})", kind, modifiers))


@_translates("shf")
def _funnel_shift(f: Operands, opcode: str, operands: list[str]) -> str:
    _, direction, mode, _ = opcode.split(".")
    a, b, n = (f.value(o, "u32") for o in operands[1:])
    n = f"({n} & 31)" if mode == "wrap" else f"op_min({n}, 32u)"
    return f.assign(operands[0], f"op_shf_{direction}({a}, {b}, {n})")


# ---- comparisons

_ORDERED = {"eq": "{a} == {b}", "lt": "{a} < {b}", "le": "{a} <= {b}", "gt": "{a} > {b}", "ge": "{a} >= {b}"}
_COMPARE_INTEGERS = _ORDERED | {"ne": "{a} != {b}", "lo": "{a} < {b}", "ls": "{a} <= {b}", "hi": "{a} > {b}", "hs": "{a} >= {b}"}
_COMPARE_FLOATS = _ORDERED | {
    "ne": "({a} < {b} || {a} > {b})",
    "equ": "!({a} < {b} || {a} > {b})",
    "neu": "{a} != {b}",
    "ltu": "!({a} >= {b})",
    "leu": "!({a} > {b})",
    "gtu": "!({a} <= {b})",
    "geu": "!({a} < {b})",
    "num": "({a} == {a} && {b} == {b})",
    "nan": "({a} != {a} || {b} != {b})",
}


@_translates("setp")
def _compare(f: Operands, opcode: str, operands: list[str]) -> str:
    _, comparison, *rest, kind = opcode.split(".")
    modifiers = _modifiers(rest, "ftz", "and", "or", "xor")
    a, b = (_float(f, o, kind, "ftz" in modifiers) for o in operands[1:3])
    result = (_COMPARE_FLOATS if kind in _FLOATS else _COMPARE_INTEGERS)[comparison].format(a=a, b=b)
    positive, _, negative = operands[0].partition("|")
    results = [f"({result})", f"!({result})"]
    for join, sign in {"and": "&", "or": "|", "xor": "^"}.items():
        if join in modifiers:
            results = [f"bool({r} {sign} {f.value(operands[3], 'pred')})" for r in results]
    if not negative:
        return f.assign(positive, results[0])
    # Both are computed before either is assigned: an operand may be among the destinations.
    return f"{{ const bool p = {results[0]}, q = {results[1]}; {f.assign(positive, 'p')} {f.assign(negative, 'q')} }}"


@_translates("selp")
def _select(f: Operands, opcode: str, operands: list[str]) -> str:
    _, kind = opcode.split(".")
    return f.assign(operands[0], f"{f.value(operands[3], 'pred')} ? {f.value(operands[1], kind)} : {f.value(operands[2], kind)}")


# ---- moves and conversions


@_translates("mov")
def _move(f: Operands, opcode: str, operands: list[str]) -> str:
    _, kind = opcode.split(".")
    to, source = operands
    if to.startswith("{"):  # the lowest part first
        parts = split(to[1:-1])
        width = int(kind[1:]) // len(parts)
        moves = " ".join(f.assign(part, f"u{width}(whole >> {width * k})") for k, part in enumerate(parts))
        return f"{{ const u64 whole = {f.value(source, f'u{kind[1:]}')}; {moves} }}"
    if source.startswith("{"):
        parts = split(source[1:-1])
        width = int(kind[1:]) // len(parts)
        return f.assign(to, " | ".join(f"u64({f.value(part, f'u{width}')}) << {width * k}" for k, part in enumerate(parts)))
    return f.assign(to, f.value(source, kind))


_TO_INTEGRAL = {"rni": "__builtin_rint", "rzi": "__builtin_trunc", "rmi": "__builtin_floor", "rpi": "__builtin_ceil"}


@_translates("cvt")
def _convert(f: Operands, opcode: str, operands: list[str]) -> str:
    _, *rest, to, source = opcode.split(".")
    modifiers = _modifiers(rest, "rn", "ftz", "sat", *_TO_INTEGRAL)
    ftz, integral = "ftz" in modifiers, next((function for m, function in _TO_INTEGRAL.items() if m in modifiers), None)
    value = _float(f, operands[1], source, ftz)
    to_float, from_float = to[0] == "f", source[0] == "f"
    if source == "f16":
        value = f"from_half({value})"
    if integral and source == "f32":
        value = f"{integral}f({value})"
    elif integral and source == "f64":
        value = f"{integral}({value})"
    elif integral:
        raise Unsupported(opcode)
    if from_float and not to_float:
        if not integral:
            raise Unsupported(opcode)
        return f.assign(operands[0], f"to_integer<{C_TYPES[to]}>({value})")
    if "sat" in modifiers and to != "f32":
        raise Unsupported(opcode)
    if not to_float:
        return f.assign(operands[0], f"{C_TYPES[to]}({value})")
    if to == "f16":
        if not from_float:
            raise Unsupported(opcode)
        return f.assign(operands[0], f"to_half({value})")
    value = f"canonical({C_TYPES[to]}({value}))"
    return f.assign(operands[0], _rounded(value, to, modifiers - {"ftz"} if to == "f64" else modifiers))


@_translates("cvta")
def _convert_address(f: Operands, opcode: str, operands: list[str]) -> str:
    _, *rest, kind = opcode.split(".")
    value = f.value(operands[1], kind)
    if "shared" in rest:
        value = f"{value} - u64(gpu_shared)" if "to" in rest else f"u64(gpu_shared) + {value}"
    return f.assign(operands[0], value)


@_translates("isspacep")
def _is_in_space(f: Operands, opcode: str, operands: list[str]) -> str:
    _, space = opcode.split(".")
    if space not in ("shared", "global"):
        raise Unsupported(opcode)
    sign = "<" if space == "shared" else ">="
    return f.assign(operands[0], f"({f.value(operands[1], 'u64')} - u64(gpu_shared) {sign} sizeof gpu_shared)")


# ---- memory

_SCOPES = ("cta", "gpu", "sys", "cluster")
_CACHING = ("weak", "volatile", "ca", "cg", "cs", "lu", "cv", "wb", "wt")
_SPACES = ("global", "shared", "shared::cta", "const", "local", "param")
_ORDERS = ("relaxed", "acquire", "release")


@_translates("ld", "st")
def _load_or_store(f: Operands, opcode: str, operands: list[str]) -> str:
    name, *rest, kind = opcode.split(".")
    rest = [m for m in rest if not m.startswith(("L1::", "L2::"))]
    modifiers = _modifiers(rest, "nc", "v2", "v4", *_SPACES, *_ORDERS, *_SCOPES, *_CACHING)
    target, place = operands if name == "ld" else reversed(operands)
    registers = split(target[1:-1]) if target.startswith("{") else [target]
    c_type, count = C_TYPES[kind], len(registers)
    if "param" in modifiers:
        base, _, offset = place.strip("[]").partition("+")
        if base not in f.parameters:
            raise Unsupported(f"parameter {base}")
        pointer = f"({c_type}*)(m_{base} + {int(offset or 0)})"
    else:
        address = f.address(place, "shared" in modifiers or "shared::cta" in modifiers)
        how = "READ" if name == "ld" else "WRITE"
        if modifiers & set(_ORDERS):
            how = f"ATOMIC_{how}"
        elif "nc" in modifiers:
            how = "READ_ONLY"
        function = "read" if name == "ld" else "write"
        pointer = f"{function}<{c_type}>({address}, {count}, {how}, {f.site})"
        if "local" in modifiers:
            pointer = f"local<{c_type}>({address}, {count}, {f.site})"
    if name == "ld" and count == 1:
        return f.assign(registers[0], f"*{pointer}")
    if name == "ld":  # the address may be among the registers that are loaded
        moves = " ".join(f.assign(register, f"p[{k}]") for k, register in enumerate(registers))
        return f"{{ const {c_type}* p = {pointer}; {moves} }}"
    moves = " ".join(f"p[{k}] = {f.value(register, kind)};" for k, register in enumerate(registers))
    return f"{{ {c_type}* p = {pointer}; {moves} }}"


_ATOMICS = {
    "add": "op_add(old, {0})",
    "min": "op_min(old, {0})",
    "max": "op_max(old, {0})",
    "and": "op_and(old, {0})",
    "or": "op_or(old, {0})",
    "xor": "op_xor(old, {0})",
    "exch": "{0}",
    "cas": "(old == {0} ? {1} : old)",
    "inc": "(old >= {0} ? 0 : old + 1)",
    "dec": "(old == 0 || old > {0} ? {0} : old - 1)",
}


@_translates("atom", "red")
def _atomic(f: Operands, opcode: str, operands: list[str]) -> str:
    name, *rest, kind = opcode.split(".")
    modifiers = _modifiers(rest, *_ATOMICS, *_SPACES, *_ORDERS, *_SCOPES)
    (operation,) = modifiers & set(_ATOMICS)
    to, place, *given = operands if name == "atom" else ["_", *operands]
    c_type, shared = C_TYPES[kind], bool(modifiers & {"shared", "shared::cta"})
    new = _ATOMICS[operation].format(*(f.value(o, kind) for o in given))
    if operation == "add" and kind == "f32" and not shared:
        new = f"flush({new})"  # as the hardware's atomics in global memory do
    return f.assign(
        to, f"op_atom<{c_type}>({f.address(place, shared)}, [&]({c_type} old) {{ return {c_type}({new}); }}, {f.site})"
    )


# ---- threads


@_translates("bar", "barrier")
def _barrier(f: Operands, opcode: str, operands: list[str]) -> str:
    opcode = opcode.replace("barrier", "bar").replace(".cta", "").replace(".aligned", "")
    if opcode == "bar.warp.sync":
        return f"gpu_syncwarp({f.value(operands[0], 'u32')}, {f.site});"
    if opcode == "bar.sync" and operands == ["0"]:
        return f"gpu_barrier(COUNT, false, {f.site});"
    reductions = {"bar.red.popc.u32": "COUNT", "bar.red.and.pred": "ALL", "bar.red.or.pred": "ANY"}
    if opcode in reductions and operands[1] == "0" and len(operands) == 3:
        result = f"gpu_barrier({reductions[opcode]}, {f.value(operands[2], 'pred')}, {f.site})"
        return f.assign(operands[0], result)
    raise Unsupported("a barrier of some of the threads")


@_translates("shfl")
def _shuffle(f: Operands, opcode: str, operands: list[str]) -> str:
    _, sync, mode, kind = opcode.split(".")
    if sync != "sync" or kind != "b32":
        raise Unsupported(opcode)
    to, _, in_range = operands[0].partition("|")
    values = ", ".join(f.value(o, "u32") for o in operands[1:])
    flag = f.assign(in_range, "s.in_range") if in_range else ""
    return f"{{ const Shuffled s = op_shfl(SHFL_{mode.upper()}, {values}, {f.site}); {f.assign(to, 's.value')} {flag} }}"


@_translates("vote", "match")
def _vote(f: Operands, opcode: str, operands: list[str]) -> str:
    known = {
        "vote.sync.ballot.b32": ("vote_ballot", "pred"),
        "vote.sync.any.pred": ("vote_any", "pred"),
        "vote.sync.all.pred": ("vote_all", "pred"),
        "match.any.sync.b32": ("match_any", "b32"),
        "match.any.sync.b64": ("match_any", "b64"),
    }
    function, kind = known[opcode]
    return f.assign(operands[0], f"op_{function}({f.value(operands[1], kind)}, {f.value(operands[2], 'u32')}, {f.site})")


@_translates("redux")
def _warp_reduction(f: Operands, opcode: str, operands: list[str]) -> str:
    _, _sync, operation, kind = opcode.split(".")
    c_type, value, mask = C_TYPES[kind], f.value(operands[1], kind), f.value(operands[2], "u32")
    combine = f"[]({c_type} a, {c_type} b) {{ return op_{operation}(a, b); }}"
    return f.assign(operands[0], f"op_redux<{c_type}>({value}, {mask}, {combine}, {f.site})")


@_translates("bra")
def _branch(f: Operands, opcode: str, operands: list[str]) -> str:
    _modifiers(opcode.split(".")[1:], "uni")
    return f.jump(operands[0])


@_translates("ret", "exit")
def _return(f: Operands, opcode: str, operands: list[str]) -> str:
    if opcode == "exit" and not f.returns_anywhere:
        raise Unsupported("exit within a function")
    return "return;"


@_translates("call")
def _call(f: Operands, opcode: str, operands: list[str]) -> str:
    _modifiers(opcode.split(".")[1:], "uni")
    return f.call(operands)


@_translates("membar", "fence")
def _fence(f: Operands, opcode: str, operands: list[str]) -> str:
    return "gpu_fence();"


@_translates("activemask")
def _active_mask(f: Operands, opcode: str, operands: list[str]) -> str:
    return f.assign(operands[0], "gpu_activemask()")


@_translates("nanosleep")
def _sleep(f: Operands, opcode: str, operands: list[str]) -> str:
    return "gpu_yield();"


@_translates("trap")
def _trap(f: Operands, opcode: str, operands: list[str]) -> str:
    return f'gpu_fail("__trap", {f.site});'


@_translates("prefetch", "prefetchu")
def _nothing(f: Operands, opcode: str, operands: list[str]) -> str:
    return ""
