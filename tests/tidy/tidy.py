#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a machine can check of how gpulease is written: tidy.py [ROOT].

Prints one line a finding, "path:line: what is wrong and what to do", and exits 1 when there is one. It reads files and
changes none. Includes are held against ARROWS: an arrow that is missing there is a decision, not an oversight.
"""
import os
import re
import subprocess
import sys

# Who may include headers of whom, by the longest prefix that matches the file's path. "proto" are the generated headers
# gpulease/v1/*.pb.h, "api" the SDK's public headers gpulease/*.h. A room always knows itself.
ARROWS = {
    'base/': {'base'},
    'driver/': {'base', 'driver'},
    'driver/simulated/': {'base', 'driver', 'driver/simulated'},
    'client/sdk/': {'base', 'driver', 'api', 'client/sdk'},
    'client/ctl/': {'base', 'proto', 'client/ctl'},
    'client/python/': {'api', 'client/python'},
    'client/playground/': {'base', 'driver', 'api', 'client/playground'},
    'client/bench/': {'base', 'driver', 'api', 'client/playground', 'client/bench'},
    'client/examples/': {'api', 'client/examples'},
    'client/examples/demo/': {'base', 'driver', 'api', 'client/playground', 'client/examples'},
    'daemon/ledger/': {'base', 'daemon/ledger'},
    'daemon/ipc_host/': {'base', 'driver', 'daemon/ipc_host'},
    'daemon/memory/': {'base', 'driver', 'daemon/ipc_host', 'daemon/ledger', 'daemon/memory'},
    'daemon/peers/': {'base', 'daemon/ledger', 'daemon/peers'},
    'daemon/settings/': {'base', 'proto', 'daemon/ledger', 'daemon/settings'},
    'daemon/state/': {'base', 'proto', 'daemon/ledger', 'daemon/state'},
    'daemon/keeper/': {'base', 'daemon/state', 'daemon/keeper'},
    'daemon/broker/': {'base', 'driver', 'daemon/ledger', 'daemon/memory', 'daemon/peers', 'daemon/settings',
                       'daemon/state', 'daemon/broker'},
    'daemon/rpc/': {'base', 'proto', 'daemon/ledger', 'daemon/peers', 'daemon/broker', 'daemon/settings', 'daemon/rpc'},
    'daemon/startup/': {'base', 'driver', 'driver/simulated', 'daemon/ledger', 'daemon/memory', 'daemon/peers',
                        'daemon/settings', 'daemon/state', 'daemon/broker', 'daemon/rpc', 'daemon/startup'},
    'daemon/': {'base', 'driver', 'proto', 'daemon', 'daemon/ledger', 'daemon/memory', 'daemon/peers',
                'daemon/settings', 'daemon/startup', 'daemon/state', 'daemon/broker', 'daemon/rpc'},
    'tests/': None,  # whatever they test
}

# Headers of others, and the only places that may include them.
OUTSIDERS = [
    (r'(cuda|nvml|cuda_runtime\w*)\.h$', 'CUDA and NVML', ('driver/', 'tests/')),
    (r'(grpc|grpcpp)/', 'gRPC', ('daemon/rpc/', 'daemon/main.cc', 'client/ctl/', 'client/bench/grpc_floor', 'tests/')),
    (r'google/protobuf/', 'Protocol Buffers',
     ('daemon/rpc/', 'daemon/settings/', 'daemon/main.cc', 'client/ctl/', 'client/bench/', 'client/sdk/codec/',
      'tests/')),
    (r'nghttp2/', 'nghttp2', ('client/sdk/src/transport', 'tests/')),
    (r'protozero/', 'protozero', ('client/sdk/', 'tests/')),
    (r'absl/', 'Abseil', ('daemon/', 'client/ctl/', 'client/bench/', 'tests/')),
    (r'spdlog/', 'spdlog', ('daemon/', 'tests/')),
    (r'CLI/', 'CLI11', ('daemon/startup/', 'client/ctl/', 'client/bench/', 'client/examples/')),
    (r'(gtest|gmock)/', 'GoogleTest', ('tests/',)),
]

CODE = ('.cc', '.h', '.c', '.inc', '.cu')
WITH_LICENCE = CODE + ('.proto', '.py', '.sh', '.cmake', '.textproto', '.service', '.socket', '.conf', 'CMakeLists.txt')
NOT_OURS_TO_FORMAT = ('.png', '.svg', '.json', 'LICENSE')
FUZZED = 'tests/fuzz/corpus/'  # what a fuzzer made up
FORBIDDEN_WORDS = re.compile(r'\b(' + '|'.join(('TO' + 'DO', 'FIX' + 'ME', 'XX' + 'X', 'HA' + 'CK')) + r')\b')
VAGUE_NAMES = re.compile(r'(^|_)(manager|helpers?|utils?|misc|common|stuff|data|info)(_|\.|$)')
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]')
CODE_COLUMNS = 100
TEXT_COLUMNS = 120
MOST_LINES = 600


def tree(root):
    """Paths of all files that belong to the project, relative to root."""
    listing = subprocess.run(
        ['git', '-c', 'safe.directory=*', '-C', root, 'ls-files', '-z', '--cached', '--others', '--exclude-standard'],
        capture_output=True, check=False) if os.path.exists(os.path.join(root, '.git')) else None
    if listing and listing.returncode == 0:
        paths = [path for path in listing.stdout.decode().split('\0') if path]
    else:
        paths = []
        for folder, folders, names in os.walk(root):
            folders[:] = [name for name in folders if name not in ('build', '.git', '__pycache__', 'dist')]
            paths += [os.path.relpath(os.path.join(folder, name), root) for name in names]
    return sorted({path for path in paths if os.path.isfile(os.path.join(root, path))})


def room_of(header):
    """The room that an include in quotes reaches, or None when it is not one of ours."""
    if re.match(r'gpulease/v1/\w+(\.grpc)?\.pb\.h$', header):
        return 'proto'
    if header.startswith('gpulease/'):
        return 'api'
    parts = header.split('/')
    if parts[0] in ('base', 'tests'):
        return parts[0]
    if parts[0] == 'driver':
        return 'driver/simulated' if parts[1:2] == ['simulated'] else 'driver'
    if parts[0] in ('daemon', 'client'):
        return '/'.join(parts[:2]) if len(parts) > 2 else parts[0]
    return None


def longest_prefix(path, prefixes):
    matching = [prefix for prefix in prefixes if path.startswith(prefix)]
    return max(matching, key=len) if matching else None


def check_includes(path, lines):
    prefix = longest_prefix(path, ARROWS)
    allowed = ARROWS[prefix] if prefix else set()
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        header = match.group(2)
        for pattern, name, places in OUTSIDERS:
            if re.match(pattern, header) and not path.startswith(places):
                yield number, f'{name} is included in {", ".join(places)} alone'
        room = room_of(header)
        if room and prefix and allowed is not None and room not in allowed:
            yield number, f'no arrow leads from {prefix} to {room} (see ARROWS in tests/tidy/tidy.py)'
        if room is None and match.group(1) == '"' and header.startswith('..'):
            yield number, 'includes start at the root of the repository'


def too_long(line, columns):
    """Whether the line is longer than that and could be broken."""
    return len(line) > columns and max(map(len, line.split())) < columns - 20


def check_file(path, text):
    """(line, what is wrong) of one file."""
    lines = text.split('\n')
    name = os.path.basename(path)
    code = path.endswith(CODE)
    golden = path.startswith(('tests/golden/', 'docs/man/')) and not code
    if path.endswith(WITH_LICENCE) or lines[0].startswith('#!'):
        at = 1 if lines[0].startswith('#!') else 0
        if len(lines) <= at or 'SPDX-License-Identifier: Apache-2.0' not in lines[at]:
            yield at + 1, 'begins with the line "SPDX-License-Identifier: Apache-2.0" as a comment'
    if path.endswith('.h') and '#pragma once' not in lines:
        yield 1, 'headers say #pragma once'
    if code and VAGUE_NAMES.search(os.path.splitext(name)[0]):
        yield 1, 'is named for its main class, a noun of the domain'
    if code and len(lines) - 1 > MOST_LINES:
        yield MOST_LINES + 1, f'has {len(lines) - 1} lines: at most {MOST_LINES}; look for the second noun in it'
    if text and not text.endswith('\n'):
        yield len(lines), 'ends without a newline'
    columns = CODE_COLUMNS if code and not path.endswith(('.inc', '.cu')) else TEXT_COLUMNS
    for number, line in enumerate(lines, 1):
        if '\t' in line:
            yield number, 'has a tab'
        if golden:
            continue
        if line != line.rstrip():
            yield number, 'has space at its end'
        if FORBIDDEN_WORDS.search(line):
            yield number, 'leaves work behind: do it, or open an issue'
        if too_long(line, columns) and not (path.endswith('.md') and line.startswith('|')):
            yield number, f'has {len(line)} columns: at most {columns}'
    if code:
        yield from check_includes(path, lines)


def check_map(paths, readme):
    """The README's map has one line for each folder, two levels deep, and for none that is not there."""
    section = re.search(r'^## The map\n(.*?)(?=^## |\Z)', readme, re.S | re.M)
    listed = {}
    if section:
        first = readme[:section.start(1)].count('\n') + 1
        for number, line in enumerate(section.group(1).split('\n'), first):
            match = re.match(r'([a-z0-9_./]+)/\s+\S', line)
            if match:
                listed[match.group(1)] = number
    folders = {os.path.dirname(path) for path in paths}
    folders = {folder for folder in folders if folder and folder.count('/') < 2 and not folder.startswith('.')}
    for folder in sorted(folders - set(listed)):
        yield 1, f'the map has no line for {folder}/'
    for folder, number in listed.items():
        if not any(path.startswith(folder + '/') for path in paths):
            yield number, f'the map names {folder}/, which is not there'


def check_links(path, text, exists):
    """Relative links of a page lead somewhere."""
    for number, line in enumerate(text.split('\n'), 1):
        for target in re.findall(r'\]\(([^)#]+)[^)]*\)', line):
            if '://' not in target and not exists(os.path.normpath(os.path.join(os.path.dirname(path), target))):
                yield number, f'links to {target}, which is not there'


def findings(root):
    """All that is wrong below root, as lines to print."""
    paths = tree(root)
    for path in paths:
        if path.endswith(NOT_OURS_TO_FORMAT) or path.startswith(FUZZED):
            continue
        with open(os.path.join(root, path), 'rb') as file:
            content = file.read()
        if b'\0' in content:
            continue
        text = content.decode(errors='replace')
        found = list(check_file(path, text))
        if path.endswith('.md'):
            found += check_links(path, text, lambda target: os.path.exists(os.path.join(root, target)))
        if path == 'README.md':
            found += check_map(paths, text)
        yield from (f'{path}:{number}: {what}' for number, what in found)


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), '..', '..')
    found = list(findings(root))
    for line in found:
        print(line)
    if found:
        print(f'{len(found)} findings')
    return 1 if found else 0


if __name__ == '__main__':
    sys.exit(main())
