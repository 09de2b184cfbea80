#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What containers/ promises, held against its manifests: manifests_test.py SOURCE GPULEASED VERSION."""
import os
import re
import subprocess
import sys
import tempfile
import unittest

import yaml

SOURCE, GPULEASED, VERSION = sys.argv[1:4]


def documents(name):
    with open(os.path.join(SOURCE, 'containers', name), encoding='utf-8') as file:
        return list(yaml.safe_load_all(file))


class ManifestsTest(unittest.TestCase):
    def setUp(self):
        self.node = {(d['kind'], d['metadata']['name']): d for d in documents('gpulease.yaml')}
        [self.client] = documents('client-pod.yaml')
        self.daemon = self.node['DaemonSet', 'gpuleased']['spec']['template']['spec']
        self.keeper = self.node['DaemonSet', 'gpulease-keeper']['spec']['template']['spec']
        self.pods = [self.daemon, self.keeper, self.client['spec']]

    def test_all_mount_the_directory_and_never_a_socket(self):
        for pod in self.pods:
            paths = {v['name']: v['hostPath']['path'] for v in pod['volumes'] if 'hostPath' in v}
            self.assertEqual(list(paths.values()), ['/run/gpulease'])
            for container in pod.get('initContainers', []) + pod['containers']:
                mounted = {m['name']: m['mountPath'] for m in container['volumeMounts']}
                self.assertEqual(mounted[next(iter(paths))], '/run/gpulease')

    def test_daemon_and_keeper_are_pods_of_their_own(self):
        self.assertEqual([c['name'] for c in self.daemon['containers']], ['gpuleased'])
        self.assertEqual([c['command'] for c in self.keeper['containers']], [['gpulease-keeper']])
        self.assertEqual(self.node['DaemonSet', 'gpulease-keeper']['spec']['updateStrategy']['type'], 'OnDelete')

    def test_selectors_match_their_pods(self):
        for (kind, name), document in self.node.items():
            if kind == 'DaemonSet':
                spec = document['spec']
                self.assertEqual(spec['selector']['matchLabels'], spec['template']['metadata']['labels'], name)

    def test_nothing_takes_a_gpu_from_those_who_lease_it_or_limits_what_they_pin(self):
        for pod in self.pods:
            for container in pod['containers']:
                resources = container.get('resources', {})
                self.assertNotIn('limits', resources)
                self.assertNotIn('nvidia.com/gpu', resources.get('requests', {}))

    def test_what_runs_on_is_no_root_and_has_no_rights(self):
        for pod in self.pods:
            for container in pod['containers']:
                context = {**pod.get('securityContext', {}), **container['securityContext']}
                self.assertTrue(context['runAsNonRoot'])
                self.assertFalse(context['allowPrivilegeEscalation'])
                self.assertTrue(context['readOnlyRootFilesystem'])
                self.assertEqual(context['capabilities']['drop'], ['ALL'])
                self.assertNotIn('privileged', context)

    def test_the_user_is_the_images(self):
        with open(os.path.join(SOURCE, 'containers', 'Containerfile'), encoding='utf-8') as file:
            uid = int(re.search(r'useradd .*--uid (\d+)', file.read()).group(1))
        for pod in (self.daemon, self.keeper):
            for container in pod['containers']:
                self.assertEqual(container['securityContext']['runAsUser'], uid)

    def test_images_are_of_this_version(self):
        for pod in self.pods:
            for container in pod.get('initContainers', []) + pod['containers']:
                self.assertTrue(container['image'].endswith(':' + VERSION), container['image'])

    def test_the_daemon_takes_the_configuration(self):
        [volume] = [v for v in self.daemon['volumes'] if 'configMap' in v]
        text = self.node['ConfigMap', volume['configMap']['name']]['data']['gpuleased.textproto']
        with tempfile.NamedTemporaryFile('w', suffix='.textproto') as file:
            file.write(text)
            file.flush()
            subprocess.run([GPULEASED, '--check-config', '--config', file.name], check=True)


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1])
