// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"reflect"
	"strings"
	"testing"

	"mustang/internal/testkit"
)

// TestPodStaysTheSame reads a pod many times: its named ports stay too, with a sidecar's after the others.
func TestPodStaysTheSame(t *testing.T) {
	const pod = `{"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": "web"}, "spec": {
"containers": [{"ports": [{"name": "http", "containerPort": 80}]}],
"initContainers": [{"ports": [{"name": "once", "containerPort": 81}]}, {"restartPolicy": "Always", "ports": [{"name": "mesh", "containerPort": 82}]}]}}`
	for range 50 {
		set := testkit.Must(Read(strings.NewReader(pod)))(t)
		var names []string
		for _, p := range set.Snapshot.Pods[0].Ports {
			names = append(names, p.Name)
		}
		testkit.Require(t, reflect.DeepEqual(names, []string{"http", "mesh"}), "named ports are %q", names)
	}
}
