#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The example lends and reads, as two processes of one daemon with a simulated GPU: share_weights_test.py BIN."""
import os
import subprocess
import sys
import tempfile


def main():
    programs = sys.argv[1]
    with tempfile.TemporaryDirectory(prefix='gpulease-', dir='/tmp') as directory:
        environment = dict(os.environ, GPULEASE_RUNTIME_DIR=directory)
        example = os.path.join(programs, 'share_weights')
        with subprocess.Popen([os.path.join(programs, 'gpuleased'), '--simulate', '1x1GiB'],
                              env=environment) as daemon:
            try:
                # A client waits for the daemon to come up.
                with subprocess.Popen([example, 'lend'], env=environment, stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, text=True) as lender:
                    first = lender.stdout.readline()
                    read = subprocess.run([example, 'read'], env=environment, capture_output=True, text=True,
                                          check=False)
                    lender.stdin.close()
                assert 'cuMemcpyHtoD may write to 0x' in first, first
                assert read.returncode == 0, read.stderr
                assert 'weights: 67108864 bytes at 0x' in read.stdout, read.stdout
                assert 'vocabulary: the quick brown fox' in read.stdout, read.stdout
                assert lender.returncode == 0, lender.returncode
                after = subprocess.run([example, 'read'], env=environment, capture_output=True, text=True,
                                       check=False)
                assert after.returncode == 1 and 'weights' in after.stderr, after
            finally:
                daemon.terminate()
    return 0


if __name__ == '__main__':
    sys.exit(main())
