// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"mustang/internal/testkit"
)

// kubernetes is a Service with all kinds of frontends, and its slices.
const kubernetes = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, uid: not-read}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.2
  clusterIPs: [10.96.0.2, "fd00::2"]
  externalIPs: [192.0.2.1]
  externalTrafficPolicy: Local
  internalTrafficPolicy: Local
  healthCheckNodePort: 31000
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}
  loadBalancerSourceRanges: [10.0.0.1/8]
  ports:
  - {name: http, port: 80, nodePort: 30080, targetPort: web}
  - {name: dns, port: 53, protocol: UDP}
status:
  loadBalancer: {ingress: [{ip: 192.0.2.2}, {ip: 192.0.2.3, ipMode: Proxy}, {hostname: example.org}, {ip: "2001:db8::1"}]}
---
apiVersion: v1
kind: List
items:
- apiVersion: discovery.k8s.io/v1
  kind: EndpointSlice
  metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
  addressType: IPv4
  ports: [{name: http, port: 8080}, {name: dns, port: 5353, protocol: UDP}]
  endpoints:
  - {addresses: [10.1.0.1], nodeName: here}
  - {addresses: [10.1.0.2], nodeName: there, conditions: {ready: false, serving: true, terminating: true}}
  - {addresses: [10.1.0.3], conditions: {ready: false, serving: false, terminating: true}}
  - {addresses: [10.1.0.4], conditions: {ready: false}}
- apiVersion: discovery.k8s.io/v1
  kind: EndpointSlice
  metadata: {name: web-2, namespace: shop, labels: {kubernetes.io/service-name: web}}
  addressType: IPv6
  ports: [{name: http, port: 8080}]
  endpoints: [{addresses: ["fd00:10::1"]}]
`

const kubernetesWant = `schema: 1
services:
  - service: 0.0.0.0:30080
    protocol: tcp
    backends:
      - 10.1.0.1:8080,local
      - 10.1.0.2:8080,terminating
      - 10.1.0.3:8080,draining
      - 10.1.0.4:8080,quarantined
    affinitySeconds: 60
    externalPolicy: local
    nodePort: true
    healthCheckPort: 31000
  - service: 10.96.0.2:53
    protocol: udp
    backends:
      - 10.1.0.1:5353,local
      - 10.1.0.2:5353,terminating
      - 10.1.0.3:5353,draining
      - 10.1.0.4:5353,quarantined
    affinitySeconds: 60
    internalPolicy: local
    externalPolicy: local
  - service: 10.96.0.2:80
    protocol: tcp
    backends:
      - 10.1.0.1:8080,local
      - 10.1.0.2:8080,terminating
      - 10.1.0.3:8080,draining
      - 10.1.0.4:8080,quarantined
    affinitySeconds: 60
    internalPolicy: local
    externalPolicy: local
`

func read(t *testing.T, text string, o Options) (string, []string) {
	t.Helper()
	set := testkit.Must(Read(strings.NewReader(text), o))(t)
	var out bytes.Buffer
	testkit.Succeed(t, WriteYAML(&out, set.Services))
	return out.String(), set.Notes
}

func TestKubernetes(t *testing.T) {
	got, notes := read(t, kubernetes, Options{Node: "here"})
	testkit.Check(t, strings.HasPrefix(got, kubernetesWant), "read\n%s\nwant it to begin with\n%s", got, kubernetesWant)
	for _, want := range []string{
		"- service: 192.0.2.2:80\n",
		"    external: true\n    sourceRanges:\n      - 10.0.0.0/8\n    healthCheckPort: 31000\n",
		"- service: 192.0.2.1:53\n",
		"- service: '[::]:30080'\n    protocol: tcp\n    backends:\n      - '[fd00:10::1]:8080'\n",
		"- service: '[fd00::2]:53'\n    protocol: udp\n    backends: []\n",
	} {
		testkit.Check(t, strings.Contains(got, want), "%q is missing:\n%s", want, got)
	}
	if n := strings.Count(got, "- service:"); n != 10 || strings.Contains(got, "192.0.2.3") ||
		strings.Contains(got, "2001:db8") {
		t.Errorf("%d services:\n%s", n, got)
	}
	if len(notes) != 1 ||
		!strings.Contains(notes[0],
			"Service shop/web: status.loadBalancer.ingress[3].ip left out: no spec.loadBalancerSourceRanges is IPv6") {
		t.Errorf("notes %q", notes)
	}
	got, notes = read(t, kubernetes, Options{})
	if strings.Contains(got, ",local") || len(notes) != 2 || !strings.Contains(notes[0], "without the name of this node") {
		t.Errorf("without a name of the node: notes %q, and\n%s", notes, got)
	}
}

// small is a Service with one port and a slice of three endpoints in zones; more is more of the Service's spec.
func small(more string) string {
	return `{"kind": "ServiceList", "apiVersion": "v1", "items": [{"metadata": {"name": "a"}, "spec": {"clusterIP": ` +
		`"10.96.0.1", "ports": [{"port": 80}]` + more + `}}]}
{"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "metadata": {"name": "a-1", "labels": {"kubernetes.io/service-name": "a"}},
"addressType": "IPv4", "ports": [{"port": 8080}], "endpoints": [
{"addresses": ["10.1.0.1"], "hints": {"forZones": [{"name": "x"}], "forNodes": [{"name": "n1"}]}},
{"addresses": ["10.1.0.2"], "hints": {"forZones": [{"name": "x"}, {"name": "y"}], "forNodes": [{"name": "n2"}]}},
{"addresses": ["10.1.0.3"], "hints": {"forZones": [{"name": "z"}]}},
{"addresses": ["10.1.0.4"], "conditions": {"ready": false}}]}`
}

// TestNearBackends chooses by hints as kube-proxy does: backends of the node, or else of the zone, if all active
// backends have hints and one of the chosen exists.
func TestNearBackends(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		o    Options
		want string
	}{
		"no zone":      {small(""), Options{}, "1 2 3 4"},
		"zone":         {small(""), Options{Zone: "x"}, "1 2 4"},
		"zone of one":  {small(""), Options{Zone: "z"}, "3 4"},
		"unknown zone": {small(""), Options{Zone: "w"}, "1 2 3 4"},
		"node": {strings.Replace(small(""), `[{"name": "z"}]`, `[{"name": "z"}], "forNodes": [{"name": "n3"}]`, 1),
			Options{Node: "n1", Zone: "x"}, "1 4"},
		"not all by node": {small(""), Options{Node: "n1", Zone: "x"}, "1 2 4"},
		"one has none":    {strings.Replace(small(""), `"ready": false`, `"ready": true`, 1), Options{Zone: "x"}, "1 2 3 4"},
		"policy local":    {small(`, "internalTrafficPolicy": "Local"`), Options{Zone: "x"}, "1 2 3 4"},
	} {
		got, _ := read(t, c.text, c.o)
		var have []string
		for _, n := range []string{"1", "2", "3", "4"} {
			if strings.Contains(got, "10.1.0."+n+":8080") {
				have = append(have, n)
			}
		}
		testkit.Check(t, strings.Join(have, " ") == c.want, "%s: %s, want %s", name, have, c.want)
	}
}

// TestKubernetesStates treats unready endpoints as active if the Service requires it. The better of two states counts.
func TestKubernetesStates(t *testing.T) {
	got, _ := read(t, small(`, "publishNotReadyAddresses": true`), Options{})
	testkit.Check(t, !strings.Contains(got, "quarantined"), "publishNotReadyAddresses:\n%s", got)
	second := strings.Replace(small("")[strings.Index(small(""), "\n"):], `"a-1"`, `"a-2"`, 1)
	got, _ = read(t, small("")+strings.Replace(second, `"ready": false`, `"ready": true`, 1), Options{})
	testkit.Check(t, !strings.Contains(got, "quarantined") && strings.Count(got, "10.1.0.4:8080") == 1,
		"two slices:\n%s", got)
}

// TestLeftOut has a note for each object that is not a service.
func TestLeftOut(t *testing.T) {
	for text, want := range map[string]string{
		`{"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "d"}}`:                           "Deployment default/d: not read",
		`{"kind": "Service", "apiVersion": "serving.knative.dev/v1", "metadata": {"name": "d"}}`:               "Service default/d: not read",
		`{"kind": "Service", "apiVersion": "v1", "metadata": {"name": "d"}, "spec": {"clusterIP": "None"}}`:    "Service default/d: left out: headless: no cluster IP to serve",
		`{"kind": "Service", "apiVersion": "v1", "metadata": {"name": "d"}, "spec": {"type": "ExternalName"}}`: "left out: its type is ExternalName",
		`{"kind": "Service", "apiVersion": "v1", "metadata": {"name": "d"}, "spec": {"clusterIP": ""}}`:        "left out: its address is not set yet",
		`{"kind": "Service", "apiVersion": "v1", "metadata": {"name": "d", "labels": {"` + labelProxy +
			`": "p"}}}`: `names the proxy "p"`,
		`{"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "metadata": {"name": "e", "labels": {"` +
			labelService + `": "f"}}}`: "EndpointSlice default/e: left out: there is no Service f",
	} {
		_, notes := read(t, small("")+text, Options{})
		testkit.Check(t, len(notes) == 1 && strings.Contains(notes[0], want) && strings.HasPrefix(notes[0], "document 3: "),
			"%s: notes %q, want %q", text, notes, want)
		_, err := Read(strings.NewReader(text), Options{})
		testkit.Check(t, err != nil && strings.Contains(err.Error(), "no service"), "%s alone: error %v", text, err)
	}
}

func TestBadKubernetes(t *testing.T) {
	for more, want := range map[string]string{
		`, "sessionAffinity": "Cookie"`:                `document 1: items[0]: Service default/a: spec.sessionAffinity: "Cookie"`,
		`, "internalTrafficPolicy": "Near"`:            `spec.internalTrafficPolicy: "Near"`,
		`, "externalTrafficPolicy": "Near"`:            `spec.externalTrafficPolicy: "Near"`,
		`, "externalIPs": ["x"]`:                       `Service default/a: spec.externalIPs[0]: invalid IP address "x"`,
		`, "externalIPs": ["224.0.0.1"]`:               `spec.ports[0], spec.externalIPs[0]: service "224.0.0.1:80": 224.0.0.1 is a multicast address`,
		`, "externalIPs": ["127.0.0.1"]`:               `spec.ports[0], spec.externalIPs[0]: service "127.0.0.1:80": 127.0.0.1 is a loopback address`,
		`, "loadBalancerSourceRanges": ["10.0.0.0"]`:   `spec.loadBalancerSourceRanges[0]: invalid range "10.0.0.0"`,
		`, "healthCheckNodePort": "http"`:              `spec.healthCheckNodePort: want a whole number, got a string`,
		`, "ports": []`:                                `ports: duplicate object member name`,
		`, "type": "NodePort", "ipFamilies": ["IPv5"]`: `spec.ipFamilies[0]: "IPv5": want IPv4 or IPv6`,
		`}}, {"metadata": {}, "spec": {`:               "metadata.name: missing",
		`}}, {"metadata": {"name": "a"}, "spec": {`:    "items[1]: Service default/a: it is there already: document 1: items[0]",
		`}}, {"metadata": {"name": "b"}, "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]`:                     "items[1]: Service default/b: spec.ports[0], spec.clusterIPs[0]: frontend 10.96.0.1:80/tcp also belongs to document 1: items[0]: Service default/a",
		`}}, {"metadata": {"name": "b"}, "spec": {"clusterIP": "10.96.0.2", "ports": [{"port": 80, "protocol": "ICMP"}]`: `spec.ports[0].protocol: "ICMP"`,
	} {
		_, err := Read(strings.NewReader(small(more)), Options{})
		testkit.Check(t, err != nil && strings.Contains(err.Error(), want) && !strings.Contains(err.Error(), "\n"),
			"%s: error %v, want %q", more, err, want)
	}
	for change, want := range map[[2]string]string{
		{`"10.1.0.3"`,
			`"fd00::1"`}: `document 2: EndpointSlice default/a-1: endpoints[2].addresses[0]: "fd00::1" is not an address of ` +
			`type IPv4`,
		{`["10.1.0.3"]`, `[]`}:                     "endpoints[2].addresses: empty",
		{`"10.1.0.3"`, `"127.0.0.1"`}:              "127.0.0.1 is a loopback address",
		{`"kubernetes.io/service-name"`, `"x"`}:    "metadata.labels: kubernetes.io/service-name is missing",
		{`[{"port": 8080}]`, `[{"port": 80808}]`}:  "ports[0].port: value out of range",
		{`"endpoints": [`, `"endpoints": [{"a": `}: "document 2",
	} {
		_, err := Read(strings.NewReader(strings.Replace(small(""), change[0], change[1], 1)), Options{})
		testkit.Check(t, err != nil && strings.Contains(err.Error(), want) && !strings.Contains(err.Error(), "\n"),
			"%s: error %v, want %q", change, err, want)
	}
}

// TestReadIsDeterministic though the objects are kept in maps.
func TestReadIsDeterministic(t *testing.T) {
	text := small("")
	for _, n := range []string{"f", "g", "h"} {
		text += `{"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "metadata": {"name": "` + n +
			`", "labels": {"` + labelService + `": "` + n + `"}}}`
	}
	first, notes := read(t, text, Options{})
	for range 10 {
		again, others := read(t, text, Options{})
		testkit.Require(t, again == first && slices.Equal(notes, others),
			"read\n%s %q\nand\n%s %q", first, notes, again, others)
	}
}

// TestTunnelPort drops UDP backends at the port of the nodes' tunnel that are not pods: nodes would treat packets to
// them as packets of pods.
func TestTunnelPort(t *testing.T) {
	n := Name{"shop", "web"}
	c := NewCluster(Options{})
	const service = `{"spec": {"clusterIP": "10.96.0.1", "ports": [{"name": "u", "protocol": "UDP", "port": 53}, ` +
		`{"name": "t", "port": 53}]}}`
	const slice = `{"metadata": {"labels": {"kubernetes.io/service-name": "web"}}, "addressType": "IPv4",
"endpoints": [{"addresses": ["192.0.2.1"]}, {"addresses": ["10.1.2.3"]}],
"ports": [{"name": "u", "protocol": "UDP", "port": 4789}, {"name": "t", "protocol": "TCP", "port": 4789}]}`
	_, err1 := c.PutService(n, []byte(service))
	_, err2 := c.PutSlice(Name{"shop", "web-1"}, []byte(slice))
	testkit.Succeed(t, errors.Join(err1, err2))
	wants := func(udp, left int) {
		t.Helper()
		set, err := c.Snapshot(n).Set()
		if err != nil || len(set.Services) != 2 || len(set.Services[0].Backends) != udp ||
			len(set.Services[1].Backends) != 2 {
			t.Fatalf("%+v: %v", set.Services, err)
		}
		if all := strings.Join(set.NotServed, "\n"); strings.Count(all,
			"192.0.2.1:4789: UDP port 4789 is reserved for VXLAN") != left {
			t.Errorf("not served: %s", all)
		}
	}
	wants(2, 0)
	if concerned := c.SetTaken(Taken{Tunnel: 4789,
		Pods: map[netip.Prefix]string{netip.MustParsePrefix("10.1.2.0/24"): "a"}}); !slices.Equal(concerned, []Name{n}) {
		t.Errorf("concerned are %v", concerned)
	}
	wants(1, 1)
	concerned := c.SetTaken(Taken{})
	testkit.Check(t, slices.Equal(concerned, []Name{n}), "concerned are %v", concerned)
	wants(2, 0)
}

// TestClusterLeavesOut external addresses, the load balancer's too, that cannot be served: for a cluster, the others of
// the Service are.
func TestClusterLeavesOut(t *testing.T) {
	n := Name{"shop", "web"}
	c := NewCluster(Options{})
	if _, err := c.PutService(n,
		[]byte(`{"spec": {"type": "LoadBalancer", "clusterIP": "10.96.0.1", "externalIPs": ["127.0.0.1", "0.0.0.0", `+
			`"10.1.2.3", "192.0.2.1"],
"ports": [{"port": 80}, {"port": 81}]}, "status": {"loadBalancer": {"ingress": [{"ip": "224.0.0.1"}, {"ip": "fd00:1::9"}, {"ip": "192.0.2.2"}]}}}`)); err != nil {
		t.Fatal(err)
	}
	concerned := c.SetTaken(Taken{Pods: map[netip.Prefix]string{netip.MustParsePrefix("10.1.2.0/24"): "a",
		netip.MustParsePrefix("fd00:1::/64"): "b"}})
	testkit.Check(t, slices.Equal(concerned, []Name{n}), "concerned are %v", concerned)
	set := testkit.Must(c.Snapshot(n).Set())(t)
	var have []string
	for _, s := range set.Services {
		have = append(have, s.Frontend.String())
	}
	if want := "10.96.0.1:80 192.0.2.2:80 192.0.2.1:80 10.96.0.1:81 192.0.2.2:81 192.0.2.1:81"; strings.Join(have,
		" ") != want {
		t.Errorf("frontends %s, want %s", have, want)
	}
	all := strings.Join(set.NotServed, "\n")
	for text, want := range map[string]int{
		"service \"127.0.0.1:80\": 127.0.0.1 is a loopback": 1, "0.0.0.0 is the unspecified": 2,
		"224.0.0.1 is a multicast": 2,
		"Service shop/web: spec.externalIPs[2]: external IP 10.1.2.3 is within the pods' range 10.1.2.0/24 of node a": 1,
		"fd00:1::9 is within the pods' range fd00:1::/64 of node b":                                                   1,
	} {
		testkit.Check(t, strings.Count(all, text) == want, "%q is not there %d times:\n%s", text, want, all)
	}
}

// TestNodePortOfSCTP is at all addresses of the node but 127.0.0.1, where no socket is translated.
func TestNodePortOfSCTP(t *testing.T) {
	got, _ := read(t, `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"},
"spec": {"type": "NodePort", "clusterIP": "10.96.0.1",
"ports": [{"port": 80, "nodePort": 30080, "protocol": "SCTP"}]}}`, Options{Localhost: true})
	testkit.Check(t, strings.Count(got, "- service:") == 2 && strings.Contains(got, "- service: 0.0.0.0:30080\n"),
		"read\n%s", got)
}
