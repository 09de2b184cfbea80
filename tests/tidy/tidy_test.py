#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tidy.py finds what it is there to find, and nothing in a tree that is as it should be."""
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tidy  # noqa: E402

LICENCE = '// SPDX-License-Identifier: Apache-2.0\n'


def found(files):
    """Findings in a tree of these files; every header and source gets its first lines unless it has them."""
    with tempfile.TemporaryDirectory() as root:
        for path, text in files.items():
            os.makedirs(os.path.dirname(os.path.join(root, path)) or root, exist_ok=True)
            with open(os.path.join(root, path), 'w', encoding='utf-8') as file:
                file.write(text)
        return list(tidy.findings(root))


class TidyTest(unittest.TestCase):
    def assert_one(self, files, part):
        lines = found(files)
        self.assertEqual(len(lines), 1, lines)
        self.assertIn(part, lines[0])

    def test_accepts_includes_that_follow_an_arrow(self):
        self.assertEqual(found({
            'daemon/ledger/queue.cc': LICENCE + '#include "base/bytes.h"\n#include "daemon/ledger/ids.h"\n',
            'daemon/rpc/lease_service.cc': LICENCE + '#include <grpcpp/server.h>\n#include "daemon/ledger/ledger.h"\n',
            'client/sdk/src/transport/a.cc': LICENCE + '#include <nghttp2/nghttp2.h>\n#include "gpulease/client.h"\n',
            'tests/unit/any_test.cc': LICENCE + '#include "daemon/rpc/peers.h"\n#include "client/sdk/src/a.h"\n',
        }), [])

    def test_finds_includes_against_the_arrows(self):
        for path, include in [
                ('base/bytes.cc', '"driver/cuda_driver.h"'),
                ('driver/cuda_driver.cc', '"daemon/ledger/ids.h"'),
                ('daemon/ledger/ledger.cc', '"daemon/memory/chunk.h"'),
                ('daemon/ledger/ledger.cc', '"gpulease/v1/lease.pb.h"'),
                ('daemon/main.cc', '"client/sdk/src/session.h"'),
                ('client/sdk/src/session.cc', '"daemon/ledger/ids.h"'),
                ('client/sdk/src/session.cc', '"gpulease/v1/lease.pb.h"'),
                ('client/ctl/main.cc', '"gpulease/gpulease.h"')]:
            self.assert_one({path: f'{LICENCE}#include {include}\n'}, f'{path}:2: no arrow leads from')

    def test_finds_headers_of_others_out_of_place(self):
        for path, include in [
                ('client/sdk/src/mapping.cc', '<cuda.h>'),
                ('daemon/memory/device_memory.cc', '<cuda.h>'),
                ('daemon/peers/acceptor.cc', '<grpcpp/server.h>'),
                ('client/sdk/src/client.cc', '<google/protobuf/message.h>'),
                ('client/sdk/src/client.cc', '<nghttp2/nghttp2.h>'),
                ('base/bytes.cc', '<absl/strings/str_cat.h>'),
                ('driver/gpu_probe.cc', '<spdlog/spdlog.h>')]:
            self.assert_one({path: f'{LICENCE}#include {include}\n'}, 'alone')

    def test_finds_faults_of_form(self):
        long_line = '// ' + 'word ' * 20 + 'end'
        for path, text, part in [
                ('base/a.cc', '#include <vector>\n', 'SPDX'),
                ('a.sh', '#!/bin/sh\nexit 0\n', 'SPDX'),
                ('base/a.h', LICENCE, '#pragma once'),
                ('base/lease_manager.cc', LICENCE, 'a noun of the domain'),
                ('base/a.cc', LICENCE + 'int a;\n' * 600, 'at most 600'),
                ('base/a.cc', LICENCE + '\tint a;\n', 'tab'),
                ('base/a.cc', LICENCE + 'int a; \n', 'space at its end'),
                ('base/a.cc', LICENCE + 'int a;', 'newline'),
                ('base/a.cc', LICENCE + long_line + '\n', 'at most 100'),
                ('base/a.cc', LICENCE + '// TO' + 'DO: the rest\n', 'work behind')]:
            self.assert_one({path: text}, part)

    def test_holds_the_map_against_the_folders(self):
        readme = '# x\n\n## The map\n\n```\nbase/    words\nlost/    nothing\n```\n'
        lines = found({'README.md': readme, 'base/a.cc': LICENCE, 'daemon/ledger/a.cc': LICENCE})
        self.assertEqual(lines, ['README.md:1: the map has no line for daemon/ledger/',
                                 'README.md:7: the map names lost/, which is not there'])

    def test_follows_links(self):
        self.assert_one({'docs/a.md': '[there](a.md) [web](https://a.b/c) [gone](b.md)\n'}, 'b.md, which is not there')


if __name__ == '__main__':
    unittest.main()
