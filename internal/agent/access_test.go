// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mustang/internal/datapath"
	"mustang/internal/kube/kubetest"
	"mustang/internal/testkit"
)

// TestAccess passes on the node's addresses, and the health checks to answer.
func TestAccess(t *testing.T) {
	s, rows := kubetest.Start(t), newTable()
	start(t, s, rows)
	wants := func(what, want string) {
		t.Helper()
		testkit.Eventually(t, 30*time.Second, func() error {
			rows.Lock()
			defer rows.Unlock()
			if have := fmt.Sprint(rows.at, rows.ports); have != want {
				return fmt.Errorf("%s: there is %s, want %s", what, have, want)
			}
			return nil
		})
	}
	s.Put(t, nodes, nodeAt("here", "192.0.2.1", "", ""))
	wants("a node", "[192.0.2.1] []")
	s.Put(t, services, serviceAt("web", "10.96.0.1",
		`, "type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30100,
"externalIPs": ["192.0.2.10"]`))
	s.Put(t, nodes, nodeAt("here", "192.0.2.2", "", ""))
	wants("another address, and a health check", "[192.0.2.2] [30100]")
	rows.Lock()
	testkit.Check(t, fmt.Sprint(rows.names) == "[shop/web]", "health checks of %v", rows.names)
	rows.Unlock()
	s.Delete(services, "shop", "web")
	wants("no service", "[192.0.2.2] []")
}

// TestNodePorts has node ports at the addresses that the node has, and at others once it has others.
func TestNodePorts(t *testing.T) {
	s, rows := kubetest.Start(t), newTable()
	start(t, s, rows)
	s.Put(t, nodes, nodeAt("here", "192.0.2.1", "", ""))
	port := strings.Replace(serviceAt("web", "10.96.0.1", `, "type": "NodePort"`), `"port": 80`,
		`"port": 80, "nodePort": 30080`, 1)
	s.Put(t, services, port)
	rows.wants(t, "an address", "10.96.0.1:80/tcp []; 192.0.2.1:30080/tcp []")
	s.Put(t, nodes, nodeAt("here", "192.0.2.2", "", ""))
	rows.wants(t, "another", "10.96.0.1:80/tcp []; 192.0.2.2:30080/tcp []")
}

// TestNoLocalEndpoints counts Services whose traffic policy is Local and that have endpoints only on other nodes, by
// kube-proxy's name.
func TestNoLocalEndpoints(t *testing.T) {
	s, rows := kubetest.Start(t), newTable()
	state := start(t, s, rows).State
	counts := func(what string, internal, external int) {
		t.Helper()
		testkit.Eventually(t, 30*time.Second, func() error {
			w := ask(state.Metrics(), "/metrics")
			for policy, n := range map[string]int{"internal": internal, "external": external} {
				want := fmt.Sprintf("kubeproxy_sync_proxy_rules_no_local_endpoints_total{traffic_policy=%q} %d\n", policy, n)
				if !strings.Contains(w.Body.String(), want) {
					return fmt.Errorf("%s: no %s", what, want)
				}
			}
			return nil
		})
	}
	slice := func(name, node string) {
		s.Put(t, endpointSlices,
			fmt.Sprintf(`{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "metadata": `+
				`{"namespace": "shop", "name": %q,
"labels": {"kubernetes.io/service-name": %[1]q}}, "ports": [{"port": 8080}], "endpoints": [{"addresses": ["10.1.0.1"], "nodeName": %q}]}`, name, node))
	}
	s.Put(t, services, serviceAt("in", "10.96.0.1", `, "internalTrafficPolicy": "Local"`))
	s.Put(t, services, serviceAt("out", "10.96.0.2",
		`, "externalTrafficPolicy": "Local", "externalIPs": ["192.0.2.8", "192.0.2.9"]`))
	s.Put(t, services, serviceAt("any", "10.96.0.3", ""))
	counts("no endpoints at all", 0, 0)
	for _, name := range []string{"in", "out", "any"} {
		slice(name, "far")
	}
	counts("endpoints elsewhere", 1, 1)
	slice("out", "here")
	counts("one is here", 1, 0)
	slice("out", "far")
	s.Put(t, services, serviceAt("in", "10.96.0.1", ""))
	counts("another policy", 0, 1)
	s.Delete(services, "shop", "out")
	counts("a Service is gone", 0, 0)
}

// TestProgrammingLatency counts each trigger time of an EndpointSlice once, and none from before the agent began.
func TestProgrammingLatency(t *testing.T) {
	s := kubetest.Start(t)
	slice := func(at time.Time, ip string) string {
		return strings.Replace(sliceOf("web-1", "web", "a", ip), `"metadata": {`, fmt.Sprintf(
			`"metadata": {"annotations": {"endpoints.kubernetes.io/last-change-trigger-time": %q}, `,
			at.Format(time.RFC3339Nano)), 1)
	}
	rows := newTable()
	s.Put(t, services, serviceAt("web", "10.96.0.1", ""))
	s.Put(t, endpointSlices, slice(time.Now().Add(-time.Hour), "10.1.0.1"))
	state := start(t, s, rows).State
	rows.wants(t, "first list", "10.96.0.1:80/tcp [10.1.0.1:8080]")
	s.Put(t, endpointSlices, slice(time.Now(), "10.1.0.2"))
	rows.wants(t, "a change", "10.96.0.1:80/tcp [10.1.0.2:8080]")
	s.Forget()
	s.Put(t, services, serviceAt("other", "10.96.0.2", ""))
	rows.wants(t, "a new list", "10.96.0.1:80/tcp [10.1.0.2:8080]; 10.96.0.2:80/tcp []")
	testkit.Eventually(t, 30*time.Second, func() error {
		w := ask(state.Metrics(), "/metrics")
		for _, line := range []string{"network_programming_duration_seconds_count 1", "endpoint_changes_pending 0"} {
			if !strings.Contains(w.Body.String(), "\nkubeproxy_"+line) &&
				!strings.Contains(w.Body.String(), "\nkubeproxy_sync_proxy_rules_"+line) {
				return errors.New("metrics lack " + line)
			}
		}
		return nil
	})
}

// TestDeviceAfterPods makes a device of the node on the parent of a pod that runs already. It is guarded once the agent
// has attached all.
func TestDeviceAfterPods(t *testing.T) {
	testkit.RequireRoot(t)
	testkit.RequireKernel(t, 6, 6)
	testkit.RequireTool(t, "ip")
	d := testkit.Must(datapath.Open(t.Context(), datapath.Options{Root: filepath.Join(testkit.BPFFS(t), "mustang")}))(t)
	t.Cleanup(func() { _ = d.Close() })
	node, pod := testkit.Namespace(t, "node"), testkit.Namespace(t, "pod")
	run := func(lines string) {
		t.Helper()
		lines = strings.NewReplacer("NODE", filepath.Base(node.Path()), "POD", filepath.Base(pod.Path())).Replace(lines)
		for line := range strings.Lines(lines) {
			out, err := exec.CommandContext(t.Context(), "ip", strings.Fields(line)...).CombinedOutput()
			testkit.Require(t, err == nil, "ip %s: %v: %s", line, err, out)
		}
	}
	run(`-n NODE link add up0 type veth peer name up1
		-n NODE link set up0 up
		-n NODE link add link up0 name eth0 netns POD type macvlan mode bridge
		-n POD addr add 10.1.0.2/24 dev eth0
		-n POD link set eth0 up`)
	_, _, err := d.Endpoints().Put(t.Context(), datapath.EndpointSpec{Namespace: pod, IfName: "eth0", Host: node})
	testkit.Succeed(t, err)
	run(`-n NODE link add late link up0 type macvlan mode bridge
		-n NODE link set late up`)
	testkit.Succeed(t, (Host{Datapath: d, Namespace: node, Uplinks: []string{}}).Attach(t.Context(), nil))
	err = Host{Datapath: d, Namespace: node, Uplinks: []string{"nosuch"}}.Attach(t.Context(), nil)
	testkit.Check(t, err != nil && strings.HasPrefix(err.Error(), "--uplink nosuch: "),
		"an uplink that is not there: %v", err)
	change, err := d.GuardParents(t.Context())
	testkit.Check(t, err == nil && change == datapath.Unchanged, "the device was not guarded: %v, %v", change, err)
}
