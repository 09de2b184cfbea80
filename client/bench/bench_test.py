#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The bench runs to its end on simulated GPUs and says in JSON what it promises: bench_test.py PROGRAM. Asserts no
time."""
import json
import subprocess
import sys


def main():
    run = subprocess.run([sys.argv[1], '--quick', '--json', '--simulate', '2x16GiB'], capture_output=True, text=True,
                         check=False)
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert {'gpu', 'driver', 'kernel', 'date'} <= set(report['machine']), report['machine']
    sections = {measured['section'] for measured in report['measurements']}
    assert sections == {'latency', 'elastic', 'grants', 'death', 'barrier', 'bandwidth'}, sections
    for measured in report['measurements']:
        assert measured['count'] > 0 and measured['p50'] > 0, measured
    for size in (2 << 20, 64 << 20, 1 << 30):
        names = {ratio['name'] for ratio in report['ratios'] if ratio['size_bytes'] == size}
        assert 'ratio: allocate / its floor' in names and 'ratio: open / its floor' in names, (size, names)
    assert 'ratio: grow / its driver calls' in {ratio['name'] for ratio in report['ratios']}
    return 0


if __name__ == '__main__':
    sys.exit(main())
