"""Training commands that a shell script starts, as a bash finds them that reaches nothing of the machine (bashkit).

Every command that bash does not have itself is a program whose words are recorded and that prints nothing.
"""

import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.name_lookup import NameLookup
from ppsim.trainers.foreign import program_of, unread
from ppsim.trainers.launchers import Command, is_relevant, joined, slurm_headers, slurm_variables

LARGEST_SCRIPT = 2**16
"""Limit on the bytes of a script and of each file that it sources."""

_TIMEOUT_S = 2.0
_MOST_S = 8  # CPU seconds, for all runs of a script
_MOST_HINT_S = 1  # CPU seconds after which no name is sought that a script needs
_MOST_DOLLARS = 1000  # in one line, because bashkit checks its limits between commands
_MOST_FILES = 500  # files beside the script that it can source
_MOST_SHELLS = 200  # in a run
_MOST_NESTED = 64  # words in front of a shell command in a shell command
_MOST_UNKNOWN_ROUNDS = 8  # runs to learn the names of programs

_NAME = re.compile(r"\$(?:\{[#!]?(?=\w+))?([A-Za-z_]\w*|(?<=\{)[1-9]\d?|[1-9])")
_IN_ARITHMETIC = re.compile(r"\$\(\((.*?)\)\)", re.DOTALL)
_ASSIGNED = re.compile(
    r"(?:^|[;&|({]|\bthen\b|\bdo\b|\belse\b|\bin\b.*?\))[ \t]*"
    r"(?:(?:export|readonly|local|declare)[ \t]+(?:-\w+[ \t]+)*)?([A-Za-z_]\w*)\+?=.*"
    r"|\bfor[ \t]+([A-Za-z_]\w*)[ \t]+in\b|\bread[ \t]+(?:-\w+[ \t]+)*([A-Za-z_]\w*)",
    re.MULTILINE,
)
_TEST = re.compile(r"\[\[?[^\]]*\]|\btest\b.*|\(\(.*?\)\)")
_COMPARED = re.compile(r"(?:==?|!=|-(?:eq|ne|[gl][te]))\s*[\"']?([\w.+-]+)")
_PATTERN = re.compile(r"^\s*\(?[\"']?([\w.+-]+)[\"']?(?:\s*\|[^)\n]*)?\)", re.MULTILINE)
_MISSING = re.compile(r"line \d+: ([^\s-]\S*): (?:command not found|No such file or directory|Permission denied)")
_MISSING_FOLDER = re.compile(r"(?:cd|pushd): (.+?): No such file or directory")
_ERREXIT = re.compile(  # among the options of `set`, which end at "--" or at the first other word
    r"(?m)^([ \t]*set(?:[ \t]+[-+][A-Za-z]*o[ \t]+\w+|[ \t]+[-+][A-Za-z]+)*?[ \t]+)"
    r"(?:-o[ \t]+errexit\b|-([A-Za-z]*)e([A-Za-z]*)(?![^\s;&|]))"
)
_LOST_MESSAGES = (  # messages of bash that the script wrote into a file
    "grep -rhsE ': (command not found|No such file|Permission denied)' --exclude='*.sh' --exclude='*.bash' "
    "--exclude='*.env' {folder} /tmp"
)
_OF_BASH = frozenset(
    "HOME PWD OLDPWD PATH USER HOSTNAME RANDOM SECONDS BASH_SOURCE OSTYPE UID EUID SHELL LINENO IFS PIPESTATUS "  # noqa: SIM905
    "FUNCNAME OPTARG OPTIND REPLY BASH BASH_VERSION PPID DIRSTACK MACHTYPE HOSTTYPE".split()
)
_PROGRAMS = (
    "torchrun python python3 deepspeed srun mpirun mpiexec ray accelerate singularity apptainer docker ssh "  # noqa: SIM905
    "hostname nproc uname curl http whoami wget ps free id which sleep nohup".split()
)
"""Launchers, and commands for which bashkit would answer for its virtual machine, wait, or start no file."""

_ESCAPED = re.compile(r"\\([][*?()+,])")
"""bashkit 0.20 leaves the backslashes that it puts before characters of `A=${B:-"[0]*3"}` in the value."""

_PYTHON_FILE = re.compile(r"(?<![\w$/}.-])[\w/.-]+\.py\b")
_ELEMENTS = re.compile(r'\b(\w+)(\+?)=\(\s*"(\$\{\w+\[@\][^}"]+\})"\s*\)')


@dataclass(frozen=True)
class _Run:
    commands: tuple[Command, ...]
    problem: str
    is_stopped: bool


@dataclass(frozen=True)
class _Shell:
    """A shell to run; `before` are the words of the command that starts it."""

    text: str
    env: Mapping[str, str]
    folder: str
    before: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass
class LaunchScript:
    """A script and the values given for its variables (`1` to `9`: its arguments).

    `is_training` judges the options of a command.
    """

    text: str
    source: str
    is_training: Callable[[Mapping[str, Any]], bool]
    given: Mapping[str, str] = field(default_factory=dict)
    _programs: set[str] = field(default_factory=lambda: {*_PROGRAMS})
    _missing: set[str] = field(default_factory=set)
    _folders: set[str] = field(default_factory=set)
    _sourced: dict[str, str] = field(default_factory=dict)
    _begun_s: float = field(default_factory=time.process_time)
    _now: time.struct_time = field(default_factory=time.localtime)

    @cached_property
    def commands(self) -> list[Command]:
        """Training commands, without repeated ones. Raises `ConfigError` if there is none."""
        if len(self.text) > LARGEST_SCRIPT:
            raise ConfigError(
                f"{self.source} is larger than {LARGEST_SCRIPT // 1024} KiB: this is no launch script"
            )
        if crowded := [
            number for number, line in enumerate(self.text.split("\n"), 1) if line.count("$") > _MOST_DOLLARS
        ]:
            raise ConfigError(f"{self.source} has more than {_MOST_DOLLARS} '$' in line {crowded[0]}")
        run = self._learned_run()
        if unused := [name for name in self.given if name not in self._names]:
            hint = (
                NameLookup("variable", self._unknown).hint(unused[0]) if self._unknown else "nothing is left open"
            )
            raise ConfigError(f"{self.source} does not read {unused[0]} of --set: {hint}")
        commands = self._training(run)
        if not commands:
            raise self._starts_nothing(run)
        return commands

    def dependence(self, number: int) -> "Dependence":
        """Return how the options of a training command depend on what only the launch knows.

        Each run tries a value of every unknown name; if the command changes, further runs find the names that
        changed it.
        """
        dependence = Dependence(dict(self.commands[number].options))
        trials = {name: [_marker(name), *self._values_of(name)] for name in self._unknown}
        computed = {name for name in trials if self._is_computed(name)}
        for attempt in range(max(map(len, trials.values()), default=0)):
            names = [name for name in trials if name in computed or not dependence.is_affected_by(name)]
            self._compare(dependence, number, {n: trials[n][attempt] for n in names if attempt < len(trials[n])})
        for name in trials:
            dependence.settle(name, self._where(name), is_computed=name in computed)
        return dependence

    def _compare(self, dependence: "Dependence", number: int, changed: Mapping[str, str]) -> None:
        commands = self._training(self._run(changed))
        if [command.settings for command in commands] == [command.settings for command in self.commands]:
            return
        if len(changed) == 1:
            ((name, trial),) = changed.items()
            if len(commands) == len(self.commands):
                dependence.compare(self.commands[number].options, commands[number].options, name, trial)
            return
        text = " ".join(word for command in commands for word in command.words)
        shown = [name for name, trial in changed.items() if trial == _marker(name) and trial in text]
        others = [name for name in changed if name not in shown]
        middle = 0 if shown else len(others) // 2
        for names in ([name] for name in shown), (others[:middle], others[middle:]):
            for group in filter(None, names):
                self._compare(dependence, number, {name: changed[name] for name in group})

    def _learned_run(self) -> _Run:
        """Repeat the run until every program is known."""
        try:
            from bashkit import Bash, BashError
        except ImportError:
            raise ConfigError(
                f"{self.source} is a shell script, and bashkit, which reads these, has no wheel for this platform: "
                "give the options themselves"
            ) from None
        try:
            self._programs |= {
                name for name in Bash().analyze(self.text).command_names if name[0] != "-"
            } - _own_commands()
        except BashError as error:
            raise ConfigError(
                f"{self.source} is no script that bash can read: {self._quoted(str(error))}"
            ) from None
        for _ in range(_MOST_UNKNOWN_ROUNDS):
            run = self._run({})
            there = self._programs | self._files.keys()
            folders = {f"{folder}/.exists" for folder in self._folders}
            if run.is_stopped or self._missing | folders <= there:
                break
            self._programs |= self._missing
            self._files |= dict.fromkeys(folders, "")
        return run

    def _run(self, changed: Mapping[str, str]) -> _Run:
        values = slurm_variables(self._headers) | dict(self.given) | dict(changed)
        printed = {name[2:-1]: text for name, text in values.items() if name.startswith("$(")}
        last = max((int(name) for name in values if name.isdigit()), default=0)
        command = ["bash", str(self._path), *(values.get(str(number), "") for number in range(1, last + 1))]
        commands: list[Command] = []
        env = {name: text for name, text in values.items() if name.isidentifier()}
        pending = [_Shell(joined(command), env, str(self._path.parent), ())]
        said: list[str] = []
        is_stopped = False
        while pending and not is_stopped:
            if len(said) == _MOST_SHELLS or time.process_time() - self._begun_s > _MOST_S:
                raise ConfigError(
                    f"{self.source} takes too long to run: more than {_MOST_SHELLS} shells or {_MOST_S} s"
                )
            shell = pending.pop(0)
            ended = self._execute(shell, commands, pending, printed)
            said.append(str(ended.stderr or ended.error or "").replace(f"{self._path}: ", ""))
            is_stopped = ended.error is not None
        return _Run(tuple(commands), "".join(said), is_stopped)

    def _execute(
        self, shell: "_Shell", commands: list[Command], pending: list["_Shell"], printed: Mapping[str, str]
    ) -> Any:
        """Run a shell; programs add their words to `commands`, or the shell that they start to `pending`."""
        from bashkit import Bash

        def record(context: Any) -> str:
            plain = [_ESCAPED.sub(r"\1", word) for word in (context.name, *context.argv)]
            command = Command((*shell.before, *plain), self._headers)
            inner = command.nested(len(shell.before)) if len(shell.before) < _MOST_NESTED else None
            paths = [_path_of(word, context) for word in command.words if word.endswith(".sh")]
            files = {path: context.fs.read_file(path).decode() for path in paths if context.fs.exists(path)}
            submits_itself = context.name == "sbatch" and str(self._path) in paths  # for the time after this job
            if inner is None or submits_itself or (command.words[inner[0]].endswith(".sh") and not files):
                commands.append(command)
            else:
                text = f"printf %s {joined([context.stdin])} | {inner[1]}" if context.stdin else inner[1]
                pending.append(_Shell(text, context.env, context.cwd, command.words[: inner[0]], files))
            return printed.get(context.name, "")

        def cat(context: Any) -> str:
            paths = [_path_of(name, context) for name in context.argv if name[:1] != "-"]
            content = [context.fs.read_file(path).decode() for path in paths if context.fs.exists(path)]
            if len(content) < len(paths) or not (content or context.stdin):
                return printed.get("cat", "")
            return "".join(content) or context.stdin or ""

        def tee(context: Any) -> str:
            for path in [_path_of(name, context) for name in context.argv if name[:1] != "-"]:
                with suppress(RuntimeError):  # of a folder that is missing
                    context.fs.append_file(path, (context.stdin or "").encode())
            return context.stdin or ""

        def date(context: Any) -> str:
            return (
                time.strftime(next((word[1:] for word in context.argv if word[:1] == "+"), "%c"), self._now) + "\n"
            )

        bash = Bash(
            cwd=shell.folder, env=dict(shell.env), timeout_seconds=_TIMEOUT_S, files={**self._files, **shell.files},
            custom_builtins=dict.fromkeys(self._programs, record)
            | {"cat": cat, "tee": tee, "date": date, "expr": lambda context: _sum_of(context.argv)},
        )  # fmt: skip
        ended = bash.execute_sync(shell.text)
        lost = bash.execute_sync(_LOST_MESSAGES.format(folder=shell.folder)).stdout
        self._missing |= {*_MISSING.findall(f"{ended.stderr}\n{ended.stdout}\n{lost}")}
        named = _MISSING_FOLDER.findall(ended.stderr or "")
        self._folders |= {os.path.normpath(PurePosixPath(shell.folder, folder)) for folder in named}
        return ended

    def _training(self, run: _Run) -> list[Command]:
        by_settings: dict[frozenset[tuple[str, Any]], Command] = {}
        for command in run.commands:
            if command.trains and self.is_training(command.options):
                by_settings.setdefault(command.settings, command)
        return list(by_settings.values())

    def _starts_nothing(self, run: _Run) -> ConfigError:
        names = [name for command in run.commands for name in (*command.words[:1], command.program)]
        if program := program_of(names):
            return unread(program, self.source)
        if others := [command.program for command in run.commands if command.program and not command.trains]:
            return ConfigError(
                f"{self.source} starts {others[0]}, which does not train: ppsim reads training commands"
            )
        for name in [] if run.is_stopped else self._unknown:
            for trial in (*self._values_of(name), _marker(name)):
                if time.process_time() - self._begun_s > _MOST_HINT_S:
                    break
                if self._training(self._run({name: trial})):
                    example = "VALUE" if trial == _marker(name) else trial
                    return ConfigError(
                        f"{self.source} starts a training command only if {_called(name)} is given "
                        f"({self._where(name)}): give --set {name}={example}"
                    )
        if names := [] if run.is_stopped else self._needed_together():
            options = " ".join(f"--set {name}=VALUE" for name in names)
            return ConfigError(
                f"{self.source} starts a training command only if {', '.join(names)} are given: give {options}"
            )
        if programs := [command.program for command in run.commands if command.is_python]:
            return ConfigError(
                f"{self.source} starts {programs[0]}, whose options no trainer that ppsim reads has: "
                "give its configuration file, or the options of ppsim project"
            )
        said = (
            f"; bash says: {self._quoted(run.problem.strip().splitlines()[-1][:200])}"
            if run.problem.strip()
            else ""
        )
        return ConfigError(f"{self.source} is not a training configuration: it starts no training command{said}")

    def _needed_together(self) -> list[str]:
        """Return variables without which the script starts no training command, if it starts one with them."""
        names = [name for name in self._unknown if not name.startswith("$(")]
        if not self._training(self._run({name: _marker(name) for name in names})):
            return []
        for name in tuple(names):
            others = [other for other in names if other != name]
            if self._training(self._run({other: _marker(other) for other in others})):
                names = others
        return names

    def _quoted(self, message: str) -> str:
        """A message of bash, with the line of the script that it names."""
        number = re.match(r"(?:parse error at )?line (\d+)", message)
        lines = self.text.split("\n")[int(number[1]) - 1 :] if number else []
        return message + (f", in '{lines[0].strip()[:80]}'" if lines else "")

    @cached_property
    def _path(self) -> PurePosixPath:
        return PurePosixPath("/", *Path(self.source).absolute().parts[1:])

    @cached_property
    def _headers(self) -> dict[str, str]:
        return slurm_headers(self.text)

    @cached_property
    def _files(self) -> dict[str, Any]:
        """The script, and shell files that are read only if it asks for them: in its folder and below.

        A script that names a folder above it also finds the shell files of its Git checkout.
        """
        folder = Path(self.source).absolute().parent
        roots = [folder] if folder.is_dir() and Path(self.source).is_file() else []
        if roots and "../" in self.text:
            roots += [above for above in folder.parents if (above / ".git").exists()][:1]
        files = islice((path for root in roots for path in _shell_files(root)), _MOST_FILES)
        others = {str(PurePosixPath("/", *path.parts[1:])): self._reader(path) for path in files}
        programs = {str(self._path.parent / name): "" for name in _PYTHON_FILE.findall(self.text)}  # taken as there
        return programs | others | {str(self._path): _for_bashkit(self.text.replace("\r\n", "\n").rstrip("\\"))}

    def _reader(self, path: Path) -> Callable[[], str]:
        def read() -> str:
            content = path.read_text(encoding="utf-8", errors="replace")[:LARGEST_SCRIPT]
            self._sourced[str(path)] = content
            return _for_bashkit(content)

        return read

    @cached_property
    def _all_text(self) -> str:
        return "\n".join([self.text, *self._sourced.values()])

    @cached_property
    def _names(self) -> list[str]:
        """Variables that the script reads."""
        text = _without_comments(self._all_text)
        bare = re.findall(r"[A-Za-z_]\w*", " ".join(_IN_ARITHMETIC.findall(text)))
        return list(dict.fromkeys([*_NAME.findall(text), *bare]))

    @property
    def _unknown(self) -> list[str]:
        """What only the launch knows: variables not set before their first use, and outputs of programs."""
        text = _without_comments(self._all_text)
        settled = {*_OF_BASH, *self.given, *slurm_variables(self._headers)}
        for match in _ASSIGNED.finditer(text):
            name = match[1] or match[2] or match[3]
            used = re.search(rf"\$\{{?[#!]?{name}\b", text)
            if used is None or match.end() <= used.start():
                settled.add(name)
        asked = (name for name in (*self._programs, "cat") if re.search(rf"[$`]\(?\s*{re.escape(name)}\b", text))
        return [*(name for name in self._names if name not in settled), *(f"$({name})" for name in sorted(asked))]

    def _values_of(self, name: str) -> list[str]:
        """Values with which a branch may decide otherwise: the ones that the script compares the variable with."""
        if name.startswith("$("):
            return ["1\n", "8\n8\n8\n"]
        copies = re.findall(rf"(\w+)=[\"']?\$\{{?{name}\b", self._all_text)
        name = "|".join([name, *copies])
        tests = [test for test in _TEST.findall(self._all_text) if re.search(rf"\b(?:{name})\b", test)]
        compared = [word for test in tests for word in _COMPARED.findall(test)]
        for block in re.finditer(rf"case\s+\S*\b(?:{name})\b(.*?)\besac\b", self._all_text, re.DOTALL):
            compared += _PATTERN.findall(block[1].replace(" in ", "\n", 1))
        return list(dict.fromkeys([*compared, "1", "2", "true"]))[:12]

    def _where(self, name: str) -> str:
        """Return the line that reads a variable or a program's output."""
        pattern = re.escape(name[2:-1]) if name.startswith("$(") else rf"\$\{{?[#!]?{name}\b"
        for file, content in (("", self.text), *self._sourced.items()):
            text = _without_comments(content)
            used = re.search(pattern, text) or (
                not name[0].isdigit() and re.search(rf"\b{re.escape(name)}\b", text)
            )
            if used:
                return f"{Path(file).name} line {text.count(chr(10), 0, used.start()) + 1}".strip()
        return "nowhere"

    def _is_computed(self, name: str) -> bool:
        """Return whether a number that only the launch knows is part of arithmetic, without any default."""
        if name.startswith("$("):
            return True
        text = self._all_text
        has_default = re.search(rf"\$\{{{name}:?[-=]", text) or re.search(rf"(?m)(?:^|\s){name}=", text)
        return not has_default and any(re.search(rf"\b{name}\b", part) for part in _IN_ARITHMETIC.findall(text))


@dataclass
class Dependence:
    """Options of a command, and what was taken as not set; a value that only the launch knows is `$NAME`."""

    options: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    _texts: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    _branches: dict[str, dict[str, dict[str, Any]]] = field(default_factory=lambda: defaultdict(dict))

    def is_affected_by(self, name: str) -> bool:
        plain = (self._is_plain(option, text, name) for option, text in self._texts[name].items())
        return bool(self._branches[name]) or not all(plain)

    def _is_plain(self, option: str, text: str, name: str) -> bool:
        """Return whether an option has its value from a variable without a default."""
        before = self.options.get(option)
        return before in (None, True, "") or before == text.replace(_marker(name), "")

    def compare(self, before: Mapping[str, Any], after: Mapping[str, Any], name: str, trial: str) -> None:
        for option in dict.fromkeys([*before, *after]):
            changed = after.get(option)
            if before.get(option) == changed:
                continue
            if trial == _marker(name) and isinstance(changed, str) and trial in changed:
                self._texts[name][option] = changed
            else:
                self._branches[name].setdefault(trial, {})[option] = changed

    def settle(self, name: str, where: str, *, is_computed: bool) -> None:
        """Put `$NAME` where a value is needed, and note where the script tests the name or has a default."""
        taken = f"taken as not set: {_called(name)} ({where})"
        texts, branches = self._texts[name], self._branches[name]
        plain = {option for option, text in texts.items() if self._is_plain(option, text, name)}
        self.options |= {option: texts[option].replace("${" + name + "}", f"${name}") for option in plain}
        for option, text in [pair for changed in branches.values() for pair in changed.items()]:
            if is_computed or (self.options.get(option) is True and isinstance(text, str)):
                self.options[option] = name if name.startswith("$(") else f"${name}"
        if is_computed:
            return
        defaults = [option for option in texts if option not in plain and is_relevant(option)]
        if defaults:
            self.notes.append(f"{taken}, which would set {', '.join(defaults)}")
            return
        for trial, changed in branches.items():
            settings = [
                _in_words(option, text)
                for option, text in changed.items()
                if is_relevant(option) and option not in texts
            ]
            if settings:
                given = "if given," if trial == _marker(name) else f"with {name}={trial}"
                self.notes.append(f"{taken}; {given} it would set {', '.join(settings)}")
                return


def _path_of(name: str, context: Any) -> str:
    return str(PurePosixPath(context.cwd, name))


def _sum_of(terms: Sequence[str]) -> str:
    """The output of `expr`, of which bashkit 0.20 reads three words only."""
    text = " ".join(term.lstrip("0") or "0" for term in terms).replace("/", "//")
    if "**" in text or not re.fullmatch(r"[-+*/%() \d]+", text):
        return ""
    with suppress(ArithmeticError, SyntaxError, TypeError, ValueError, MemoryError, RecursionError):
        return str(eval(text, {"__builtins__": {}}))
    return ""


def _in_words(option: str, setting: Any) -> str:
    return f"no {option}" if setting is None else option if setting is True else f"{option} {setting}"


def _called(name: str) -> str:
    return f"its argument {name}" if name.isdigit() else name


def _marker(name: str) -> str:
    return name if name.startswith("$(") else f"${{{name}}}" if name[1:].isdigit() else f"${name}"


@cache
def _own_commands() -> frozenset[str]:
    from bashkit import Bash

    return frozenset(Bash().execute_sync("compgen -c").stdout.split())


def _for_bashkit(text: str) -> str:
    """Return a script that goes on after errors, because commands fail here that do not on the cluster.

    bashkit 0.20 joins the elements of `A=("${B[@]/x/y}")`, but not elements from a loop.

    >>> _for_bashkit("set -euo pipefail"), _for_bashkit("set -e"), _for_bashkit("set -o errexit -u")
    ('set -uo pipefail', 'set +e', 'set +e -u')
    >>> _for_bashkit('set -u -- --size 2 -e')
    'set -u -- --size 2 -e'
    """
    loop = r'__each=(); for __one in "\3"; do __each+=("$__one"); done; \1\2=("${__each[@]}")'
    return _ELEMENTS.sub(loop, _ERREXIT.sub(_without_errexit, text))


def _without_errexit(match: re.Match[str]) -> str:
    others = f"{match[2] or ''}{match[3] or ''}"
    return f"{match[1]}-{others}" if others else f"{match[1]}+e"


def _without_comments(text: str) -> str:
    return re.sub(r"(?m)(^|\s)#.*$", r"\1", text)


def _shell_files(folder: Path) -> Iterator[Path]:
    for above, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (path for name in names if (path := Path(above, name)).suffix in (".sh", ".env", ".bash"))
