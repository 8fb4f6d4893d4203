// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"strings"
	"testing"
)

// TestRemarks tells of a Service of a cluster what its user may not have meant.
func TestRemarks(t *testing.T) {
	const ready, unready = `{"addresses": ["10.1.0.1"]}`, `{"addresses": ["10.1.0.1"], "conditions": {"ready": false}}`
	const http = `{"name": "http", "port": 8080}`
	for what, test := range map[string]struct{ clusterIP, port, slicePorts, endpoint, want string }{
		"as it should be":         {"10.96.0.1", `"web"`, http, ready, "[]"},
		"no endpoint":             {"10.96.0.1", `"web"`, http, "", "[no endpoints]"},
		"none that is ready":      {"10.96.0.1", `"web"`, http, unready, "[0 of 1 endpoints are ready]"},
		"none that has the name":  {"10.96.0.1", `"wbe"`, "", ready, `[spec.ports[0]: no endpoint has the port "wbe"]`},
		"none that has the other": {"10.96.0.1", "8080", `{"name": "metrics", "port": 9090}`, ready, "[spec.ports[0]: no endpoint has the port 8080]"},
		"headless":                {"None", `"web"`, http, ready, "[headless: no cluster IP to serve]"},
	} {
		c := NewCluster(Options{})
		n := Name{"shop", "web"}
		_, err := c.PutService(n, fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": "web"},
"spec": {"clusterIP": %q, "ports": [{"name": "http", "port": 80, "targetPort": %s}]}}`, test.clusterIP, test.port))
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.PutSlice(n, fmt.Appendf(nil, `{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
"metadata": {"namespace": "shop", "name": "web", "labels": {"kubernetes.io/service-name": "web"}}, "ports": [%s], "endpoints": [%s]}`, test.slicePorts, test.endpoint))
		if err != nil {
			t.Fatal(err)
		}
		set, err := c.Snapshot(n).Set()
		if have := fmt.Sprint(set.Remarks); err != nil || have != test.want || len(set.Notes) > 0 {
			t.Errorf("%s: %s, notes %v, %v, want %s", what, have, set.Notes, err, test.want)
		}
	}
}

// TestBackendThatIsService has a file with a service whose backend is another one, of the same protocol and of another.
func TestBackendThatIsService(t *testing.T) {
	const file = `{schema: 1, services: [{service: "10.96.0.1:80", protocol: %s, backends: ["10.96.0.2:80"]}, {service: "10.96.0.2:80", protocol: tcp, backends: []}]}`
	for protocol, want := range map[string]int{"tcp": 1, "any": 1, "udp": 0} {
		set, err := Read(strings.NewReader(fmt.Sprintf(file, protocol)), Options{})
		if err != nil || len(set.Services) != 2 || len(set.Notes) != want || want > 0 && !strings.Contains(set.Notes[0], "backend 10.96.0.2:80 is the frontend of") {
			t.Errorf("%s: %d services, notes %q, %v", protocol, len(set.Services), set.Notes, err)
		}
	}
}

// TestSCTPPortIsToldOnce has endpoints come to a Service of SCTP with another target port: what tells of them stays the same.
func TestSCTPPortIsToldOnce(t *testing.T) {
	c := NewCluster(Options{})
	n := Name{"shop", "web"}
	if _, err := c.PutService(n, []byte(`{"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": "web"},
"spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80, "protocol": "SCTP", "targetPort": 8080}]}}`)); err != nil {
		t.Fatal(err)
	}
	endpoints := ""
	for i := range 3 {
		endpoints = fmt.Sprintf(`{"addresses": ["10.1.0.%d"]}`, 9-i) + endpoints
		if _, err := c.PutSlice(n, fmt.Appendf(nil, `{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "metadata": {"namespace": "shop",
"name": "web", "labels": {"kubernetes.io/service-name": "web"}}, "ports": [{"port": 8080, "protocol": "SCTP"}], "endpoints": [%s]}`, endpoints)); err != nil {
			t.Fatal(err)
		}
		endpoints = ", " + endpoints
		set, err := c.Snapshot(n).Set()
		const want = `[Service shop/web: left out: backends at port 8080: the port differs from service "10.96.0.1:80", and the kernel cannot correct the checksum of sctp]`
		if have := fmt.Sprint(set.NotServed); err != nil || have != want {
			t.Errorf("%d endpoints: %s, %v, want %s", i+1, have, err, want)
		}
	}
}
