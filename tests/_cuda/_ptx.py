"""PTX to C++: a kernel as NVRTC compiled it becomes a function that runs on the CPU, one call of it a CUDA thread.

Registers become variables, labels and jumps stay what they are, and each instruction becomes a statement (``_opcodes.py``).
Shared memory is an arena of the runtime's, a shared array an offset into it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from _cuda._opcodes import C_TYPES, REGISTER_TYPES, Operands, Unsupported, split, statement

_GAP = 256  # bytes between shared arrays, so that an access past the end of one is out of bounds


@dataclass
class Kernel:
    """The C++ text, and what a launch has to know."""

    text: str = ""
    parameters: list[tuple[int, bool]] = field(default_factory=list)  # bytes, whether it is a float
    shared: list[tuple[int, int]] = field(default_factory=list)  # offset and bytes of each array
    dynamic_shared: int | None = None  # offset of the array whose size the launch gives
    sites: list[tuple[tuple[str, int], ...]] = field(default_factory=list)  # file and line, then where that was inlined


class _Parameter(NamedTuple):
    name: str
    size: int
    is_float: bool


class _Function(NamedTuple):
    name: str
    is_entry: bool
    returned: list[_Parameter]
    parameters: list[_Parameter]
    body: str

    @property
    def signature(self) -> str:
        """Parameters and the result are passed by the address of their bytes, as PTX sees them."""
        return f"static void f_{self.name}({', '.join(f'u8* m_{p.name}' for p in self.returned + self.parameters)})"


def translate(ptx: str, entry: str) -> Kernel:
    """The kernel of this (mangled) name, with the functions that it calls and the variables that it uses."""
    return _Module(ptx).translate(entry)


class _Module:
    def __init__(self, ptx: str):
        self.files = {m[1]: m[2] for m in re.finditer(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', ptx, re.MULTILINE)}
        ptx = re.split(r"^\s*\.section\b", ptx, maxsplit=1, flags=re.MULTILINE)[0]
        ptx = re.sub(r"//[^\n]*|^\s*\.file[^\n]*", "", ptx, flags=re.MULTILINE)
        self.functions = {function.name: function for function in _functions(ptx)}
        self.variables = {m["name"]: m for m in _VARIABLE.finditer(ptx)}
        self.offsets: dict[str, int] = {}  # of the shared arrays in use
        self.uses_dynamic_shared = False
        self.declared: dict[str, str] = {}  # global variables in use
        self.in_use: list[str] = []  # functions
        self.site_numbers: dict[tuple[tuple[str, int], ...], int] = {}
        self.kernel = Kernel()

    def translate(self, entry: str) -> Kernel:
        self.in_use.append(entry)
        texts = [_Body(self, self.functions[name]).translate() for name in self.in_use]  # which grows meanwhile
        parameters = self.functions[entry].parameters
        spans = "".join(f"{{u64(m_{name}), u64(m_{name}) + sizeof m_{name}}}, " for name in self.declared)
        end_of_shared = self._end_of_shared()
        args = ", ".join(f"args[{k}]" for k in range(len(parameters)))
        self.kernel.text = "\n".join(
            (
                '#include "instructions.h"',
                f"static const u64 dynamic_shared = {end_of_shared};",
                *self.declared.values(),
                f'extern "C" const u64 gpu_variables[][2] = {{{spans}{{0, 0}}}};',
                *(f"{self.functions[name].signature};" for name in self.in_use),
                *texts,
                f'extern "C" void gpu_kernel(u8** args) {{ f_{entry}({args}); }}',
                "",
            )
        )
        self.kernel.parameters = [(p.size, p.is_float) for p in parameters]
        self.kernel.dynamic_shared = end_of_shared if self.uses_dynamic_shared else None
        self.kernel.sites = list(self.site_numbers)
        return self.kernel

    def site(self, lines: tuple[tuple[str, int], ...]) -> int:
        return self.site_numbers.setdefault(lines, len(self.site_numbers))

    def _end_of_shared(self) -> int:
        return max((-(-(offset + size + _GAP) // _GAP) * _GAP for offset, size in self.kernel.shared), default=0)

    def address(self, name: str) -> str | None:
        """Of a variable of the module; that of a shared array is its offset."""
        variable = self.variables.get(name)
        if variable is None:
            return None
        if variable["space"] != "shared":
            self.declared.setdefault(name, _declaration(variable))
            return f"u64(m_{name})"
        if variable["array"] == "[]":
            self.uses_dynamic_shared = True
            return "dynamic_shared"
        if name not in self.offsets:
            self.offsets[name] = self._end_of_shared()
            self.kernel.shared.append((self.offsets[name], _size(variable)))
        return f"u64({self.offsets[name]})"

    def call(self, name: str) -> None:
        if name not in self.functions:
            raise Unsupported(f"call of {name}")
        if name not in self.in_use:
            self.in_use.append(name)


_VARIABLE = re.compile(
    r"\.(?P<space>shared|global|const)\s+(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<type>\w+)\s+(?P<name>[\w$]+)\s*(?P<array>\[\d*\])?"
    r"\s*(?:=\s*(?P<value>\{[^}]*\}|[^;]+))?;"
)
_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)(?:\s+\.ptr[^,]*?)?\s+([\w$]+)(?:\[(\d+)\])?\s*(?:,|$)")
_HEADER = re.compile(r"\.(entry|func)\s+(?:\(([^()]*)\)\s*)?([\w$]+)\s*(?:\(([^()]*)\))?[^{;()]*\{")


def _bytes(kind: str) -> int:
    return int(re.sub(r"\D", "", kind)) // 8


def _size(variable: re.Match[str]) -> int:
    return _bytes(variable["type"]) * int((variable["array"] or "[1]")[1:-1])


def _declaration(variable: re.Match[str]) -> str:
    value = variable["value"] or "0"
    if re.search(r"[A-Za-z_$]{2}", value):
        raise Unsupported(f"the initial value of {variable['name']}")  # an address
    value = re.sub(r"0[fFdD]([0-9A-Fa-f]+)", r"0x\1", value.strip("{}"))
    kind = REGISTER_TYPES[variable["type"]]
    items = _size(variable) // _bytes(variable["type"])
    return f"alignas({variable['align'] or 16}) static {kind} m_{variable['name']}[{items}] = {{{value}}};"


def _parameters(text: str | None) -> list[_Parameter]:
    found = _PARAMETER.finditer(text or "")
    return [_Parameter(m[2], int(m[3]) if m[3] else _bytes(m[1]), m[1][0] == "f") for m in found]


def _functions(ptx: str) -> Iterator[_Function]:
    for header in _HEADER.finditer(ptx):
        depth, end = 1, header.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(ptx[end], 0)
            end += 1
        body = ptx[header.end() : end - 1]
        yield _Function(header[3], header[1] == "entry", _parameters(header[2]), _parameters(header[4]), body)


_TOKEN = re.compile(
    r"\s*(?:(?P<loc>\.loc\s[^\n]*)\n|(?P<label>[\w$]+):|(?P<brace>[{}])|(?P<statement>[^;{}]*(?:\{[^{};]*\}[^;{}]*)*);)"
)


class _Body(Operands):
    """The statements of one function."""

    def __init__(self, module: _Module, function: _Function):
        super().__init__()
        self.module, self.function = module, function
        self.parameters = {p.name for p in function.returned + function.parameters}
        self.local: set[str] = set()
        self.labels: set[str] = set()  # that were passed
        self.inlined: dict[str, str] = {}  # place -> the place where it was inlined
        self.place = "1 0 0"
        self.returns_anywhere = function.is_entry

    def translate(self) -> str:
        lines = []
        at, end = 0, len(self.function.body.rstrip())
        while at < end:
            token = _TOKEN.match(self.function.body, at)
            if token is None:
                raise Unsupported(self.function.body[at : at + 80].strip())
            at = token.end()
            if token["loc"]:
                self._locate(token["loc"])
            elif token["label"]:
                self.labels.add(token["label"])
                lines.append(f"L_{token['label']}:;")
            elif token["brace"]:
                (self.scopes.append({}) if token["brace"] == "{" else self.scopes.pop())
                lines.append(token["brace"])
            else:
                lines.append(self._statement(" ".join(token["statement"].split())))
        return "\n".join((f"{self.function.signature} {{", *lines, "}"))

    def _locate(self, loc: str) -> None:
        place, _, outer = loc.removeprefix(".loc").partition(", function_name")
        place = " ".join(place.split()[:3])
        if outer:
            self.inlined[place] = " ".join(outer.partition("inlined_at")[2].split()[:3])
        if place.split()[1] != "0":
            self.place = place

    @property
    def site(self) -> int:
        """The number of the present source line."""
        lines, place = [], self.place
        while place and len(lines) < 8:
            file, line, _ = place.split()
            lines.append((self.module.files.get(file, ""), int(line)))
            place = self.inlined.get(place, "")
        return self.module.site(tuple(lines))

    def _statement(self, text: str) -> str:
        if text.startswith(".reg"):
            return self._registers(text)
        if text.startswith((".local", ".param")):
            return self._bytes(text)
        if text.startswith((".shared", ".pragma")):
            return ""  # the module has read it
        try:
            return self._instruction(text)
        except (KeyError, StopIteration, ValueError) as error:
            raise Unsupported(f"{text} ({error!r})") from error
        except Unsupported as error:
            raise Unsupported(f"{text} ({error})") from None

    def _registers(self, text: str) -> str:
        match = re.fullmatch(r"\.reg\s+\.(\w+)\s+(.*)", text)
        if match is None or match[1] not in REGISTER_TYPES:
            raise Unsupported(text)
        names = []
        for item in split(match[2]):
            many = re.fullmatch(r"(%?[\w$]+)<(\d+)>", item)
            names += [f"{many[1]}{k}" for k in range(int(many[2]))] if many else [item]
        self.scopes[-1].update(dict.fromkeys(names, match[1]))
        # A jump may not pass an initial value: registers of an inner scope go without.
        value = " = 0" if len(self.scopes) == 1 else ""
        return f"{REGISTER_TYPES[match[1]]} {', '.join(self.variable(name) + value for name in names)};" if names else ""

    def _bytes(self, text: str) -> str:
        match = re.fullmatch(r"\.(local|param)\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+([\w$]+)(?:\[(\d+)\])?", text)
        if match is None:
            raise Unsupported(text)
        size = _bytes(match[2]) * int(match[4] or 1)
        if match[1] == "param":
            self.parameters.add(match[3])
            return f"alignas(16) u8 m_{match[3]}[{size}];"
        self.local.add(match[3])
        return f"alignas(16) u8 m_{match[3]}[{size}]; __builtin_memset(m_{match[3]}, 0xcd, {size});"

    def _instruction(self, text: str) -> str:
        match = re.fullmatch(r"(?:@(!?%?[\w$]+) )?([a-z][\w.:]*) ?(.*)", text)
        if match is None:
            raise Unsupported(text)
        predicate, opcode, operands = match.groups()
        done = statement(self, opcode, split(operands))
        return f"if ({self.value(predicate, 'pred')}) {{ {done} }}" if predicate else done

    def symbol(self, name: str) -> str | None:
        if name in self.local:
            return f"u64(m_{name})"
        return self.module.address(name)

    def jump(self, label: str) -> str:
        back = f"jump_back({self.site}); " if label in self.labels else ""
        return f"{back}goto L_{label};"

    def call(self, operands: list[str]) -> str:
        """``call (result), name, (arguments)``, where result and arguments may be missing."""
        lists = [split(o[1:-1]) if o.startswith("(") else o for o in operands]
        (name,) = (o for o in lists if isinstance(o, str))
        passed = [o for group in lists if isinstance(group, list) for o in group]
        if name == "vprintf":
            return ""
        if name == "__assertfail":
            return f'gpu_fail("an assertion failed", {self.site});'
        self.module.call(name)
        return f"f_{name}({', '.join(f'm_{p}' for p in passed)});"


__all__ = ["C_TYPES", "Kernel", "Unsupported", "translate"]
