// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"

	"mustang/internal/service"
	"mustang/internal/testkit"
)

var web = Name{"shop", "web"} // the Service of these tests

// put stores a Service, and slices by their ports and endpoints.
func put(t *testing.T, c *Cluster, spec string, slices ...[2]string) {
	t.Helper()
	testkit.Must(c.PutService(web, []byte(spec)))(t)
	for i, s := range slices {
		if _, err := c.PutSlice(Name{"shop", fmt.Sprint("web-", i)},
			fmt.Appendf(nil, `{"metadata": {"labels": {"kubernetes.io/service-name": "web"}},
"addressType": "IPv4", "ports": [%s], "endpoints": [%s]}`, s[0], s[1])); err != nil {
			t.Fatal(err)
		}
	}
}

// served returns the services of a cluster's Service, with slices of endpoints at port 8080.
func served(t *testing.T, c *Cluster, spec string, endpoints ...string) Set {
	t.Helper()
	var of [][2]string
	for _, e := range endpoints {
		of = append(of, [2]string{`{"port": 8080}`, e})
	}
	put(t, c, spec, of...)
	set := testkit.Must(c.Snapshot(web).Set())(t)
	return set
}

// TestTakenAddresses refuses external IPs of machines that the cluster needs, and leaves a load balancer's addresses to
// such machines.
func TestTakenAddresses(t *testing.T) {
	c := NewCluster(Options{Node: "here"})
	addr := netip.MustParseAddr
	c.SetTaken(Taken{
		Nodes: map[netip.Addr]string{addr("192.0.2.1"): "node far", addr("203.0.113.5"): "the API server"},
		Hosts: map[netip.Addr]string{addr("198.51.100.7"): "node here", addr("192.0.2.66"): "node here"},
	})
	if _, err := c.PutSlice(Name{"default", "kubernetes"},
		[]byte(`{"metadata": {"labels": {"kubernetes.io/service-name": "kubernetes"}}, "addressType": "IPv4",
"endpoints": [{"addresses": ["203.0.113.9"]}]}`)); err != nil {
		t.Fatal(err)
	}
	set := served(t, c, `{"spec": {"type": "LoadBalancer", "clusterIP": "10.96.0.1", "ports": [{"port": 10250}],
"externalIPs": ["192.0.2.1", "203.0.113.5", "203.0.113.9", "198.51.100.7", "192.0.2.55"]},
"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}, {"ip": "192.0.2.66"}]}}}`)
	var have []string
	for _, s := range set.Services {
		have = append(have, s.Frontend.Addr().String())
	}
	want := "10.96.0.1 192.0.2.66 192.0.2.55"
	testkit.Check(t, strings.Join(have, " ") == want, "served are %s, want %s", have, want)
	var refused []string
	for _, text := range set.NotServed {
		_, text, _ = strings.Cut(text, "external IP ")
		refused = append(refused, text)
	}
	if want := []string{"192.0.2.1 is an address of node far", "203.0.113.5 is an address of the API server",
		"203.0.113.9 is an address of the API server",
		"198.51.100.7 is an address of node here"}; !slices.Equal(refused, want) {
		t.Errorf("refused are %q, want %q", refused, want)
	}
	if want := []string{"Service shop/web: status.loadBalancer.ingress[0].ip left out: 192.0.2.1 is an address of node " +
		"far, which answers there"}; !slices.Equal(set.Notes, want) {
		t.Errorf("notes %q, want %q", set.Notes, want)
	}
}

// TestAPIServerAddressLater takes an external IP from a Service once an API server has the address.
func TestAPIServerAddressLater(t *testing.T) {
	c := NewCluster(Options{})
	if set := served(t, c,
		`{"spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 443}], "externalIPs": ["203.0.113.9"]}}`); len(
		set.Services) != 2 {
		t.Fatalf("before: there are %v", set.Services)
	}
	slice := Name{"default", "kubernetes"}
	concerned, err := c.PutSlice(slice,
		[]byte(`{"metadata": {"labels": {"kubernetes.io/service-name": "kubernetes"}}, "addressType": "IPv4",
"endpoints": [{"addresses": ["203.0.113.9"]}]}`))
	testkit.Check(t, err == nil && slices.Contains(concerned, web),
		"a change of the API servers concerns %v, %v", concerned, err)
	set, err := c.Snapshot(web).Set()
	testkit.Check(t, err == nil && len(set.Services) == 1, "after: there are %v, %v", set.Services, err)
	concerned = c.DeleteSlice(slice)
	testkit.Check(t, slices.Contains(concerned, web), "the end of the API servers concerns %v", concerned)
}

// TestLooseAddresses serves the rest of a Service that has addresses or ranges which Kubernetes takes and others than
// it cannot read: with leading zeros. Ranges may be in blanks.
func TestLooseAddresses(t *testing.T) {
	for spec, want := range map[string]string{
		`"externalIPs": ["010.1.2.3", "192.0.2.55"]`:                                    "10.96.0.1:80 192.0.2.66:80 192.0.2.55:80",
		`"loadBalancerSourceRanges": [" 10.0.0.0/8 "]`:                                  "10.96.0.1:80 192.0.2.66:80[10.0.0.0/8]",
		`"loadBalancerSourceRanges": ["010.0.0.0/8"], "externalIPs": ["192.0.2.55"]`:    "10.96.0.1:80 192.0.2.55:80",
		`"loadBalancerSourceRanges": ["10.0.0.0/8", "x"], "externalIPs": ["192.0.2.5"]`: "10.96.0.1:80 192.0.2.5:80",
	} {
		set := served(t, NewCluster(Options{}),
			`{"spec": {"type": "LoadBalancer", "clusterIP": "10.96.0.1", "ports": [{"port": 80}], `+spec+`},
"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.66"}]}}}`)
		var have []string
		for _, s := range set.Services {
			text := s.Frontend.String()
			if len(s.SourceRanges) > 0 {
				text += fmt.Sprint(s.SourceRanges)
			}
			have = append(have, text)
		}
		testkit.Check(t, strings.Join(have, " ") == want, "%s: served are %s, want %s", spec, have, want)
		loose := !strings.Contains(spec, " 10.")
		testkit.Check(t, (len(set.NotServed) == 1) == loose, "%s: it says %q", spec, set.NotServed)
	}
}

// TestManyEndpoints keeps as many endpoints as a service can have: active and local endpoints, and the same ones each
// time.
func TestManyEndpoints(t *testing.T) {
	var of []string
	for i := range 50 {
		var e []string
		for j := range 100 {
			e = append(e, fmt.Sprintf(`{"addresses": ["10.1.%d.%d"], "nodeName": %q, "conditions": {"ready": %v}}`, i, j+
				1, fmt.Sprint("n", i), i > 0))
		}
		of = append(of, strings.Join(e, ","))
	}
	const spec = `{"spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]}}`
	set := served(t, NewCluster(Options{Node: "n49"}), spec, of...)
	if len(set.Services) != 1 || len(set.Services[0].Backends) != service.MaxBackends || len(set.NotServed) != 1 {
		t.Fatalf("there are %d services, and %q", len(set.Services), set.NotServed)
	}
	kept := map[byte]int{} // by node
	for _, b := range set.Services[0].Backends {
		kept[b.Addr.Addr().As4()[2]]++
	}
	testkit.Check(t, kept[0] == 0 && kept[49] == 100 && kept[1] == 100 && kept[39] == 100, "kept are, by node, %v", kept)
	slices.Reverse(of)
	again := served(t, NewCluster(Options{Node: "n49"}), spec, of...)
	testkit.Check(t, again.Services[0].Equal(set.Services[0]), "in another order of slices there are others")
}

// TestManyBadEndpoints reports some of them.
func TestManyBadEndpoints(t *testing.T) {
	var of []string
	for i := range 250 {
		of = append(of, fmt.Sprintf(`{"addresses": ["127.0.0.%d"]}`, i+1))
	}
	set := served(t, NewCluster(Options{}), `{"spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]}}`,
		strings.Join(of, ","))
	if n := len(set.NotServed); len(set.Services) != 1 || n != maxTold || set.NotServed[n-1] != "more is not served" {
		t.Errorf("there are %d lines, the last %q", n, set.NotServed[max(0, n-1):])
	}
}

// TestBadEndpoints leaves out single endpoints that no service can have.
func TestBadEndpoints(t *testing.T) {
	set := served(t, NewCluster(Options{}), `{"spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 8080}]}}`,
		`{"addresses": ["10.1.0.1"]}, {"addresses": ["127.0.0.1"]}, {"addresses": ["10.96.0.1"]}, {"addresses": []}, `+
			`{"addresses": ["fd00::1"]}`)
	if len(set.Services) != 1 || fmt.Sprint(set.Services[0].Backends) != "[10.1.0.1:8080]" || len(set.NotServed) != 4 {
		t.Errorf("there are %v, and %q", set.Services, set.NotServed)
	}
}

// TestManyOfBoth reads a Service with as many frontends as are served of one, and as many endpoints, in the memory that
// one frontend takes. An endpoint that has the address of a frontend is left out there alone.
func TestManyOfBoth(t *testing.T) {
	c := NewCluster(Options{})
	ips := []string{`"10.1.0.1"`}
	for i := range 60 {
		ips = append(ips, fmt.Sprintf(`"198.51.%d.%d"`, i/200, i%200+1))
	}
	var of []string
	for i := range 4000 {
		of = append(of, fmt.Sprintf(`{"addresses": ["10.1.%d.%d"]}`, i/200, i%200+1))
	}
	served(t, c, fmt.Sprintf(`{"spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 8080}], "externalIPs": [%s]}}`,
		strings.Join(ips, ",")), strings.Join(of, ","))
	var set Set
	var err error
	mb := allocated(func() { set, err = c.Snapshot(web).Set() })
	testkit.Require(t, err == nil && len(set.Services) == 62, "there are %d services, %v", len(set.Services), err)
	for i, s := range set.Services {
		want := 4000
		if s.Frontend.Addr() == netip.MustParseAddr("10.1.0.1") {
			want--
		}
		testkit.Check(t, len(s.Backends) == want, "%d: %s has %d backends, want %d", i, s, len(s.Backends), want)
	}
	testkit.Check(t, mb <= 5, "it takes %d MB", mb)
}

// allocated returns how many MB something allocates.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return (after.TotalAlloc - before.TotalAlloc) >> 20
}

// size is the size of a Service and its slices: ports and endpoints are per slice.
type size struct{ ports, slices, endpoints int }

func many(t *testing.T, spec string, n size) Snapshot {
	t.Helper()
	var at, of []string
	for i := range n.ports {
		at = append(at, fmt.Sprintf(`{"name": "p%d", "port": %d}`, i, i+1))
	}
	ports, slices := strings.Join(at, ","), make([][2]string, n.slices)
	for slice := range slices {
		of = nil
		for i := range n.endpoints {
			of = append(of, fmt.Sprintf(`{"addresses": ["20.%d.%d.%d"]}`, slice, i/200, i%200+1))
		}
		slices[slice] = [2]string{ports, strings.Join(of, ",")}
	}
	c := NewCluster(Options{})
	put(t, c, fmt.Sprintf(`{"spec": {"clusterIP": "10.96.0.1", %s "ports": [%s]}}`, spec, ports), slices...)
	return c.Snapshot(web)
}

// TestLimitsOfService serves a Service up to each limit, and nothing of one above it. To find that out takes little
// memory.
func TestLimitsOfService(t *testing.T) {
	externalIPs := func(n int) string {
		var ips []string
		for i := range n {
			ips = append(ips, fmt.Sprintf(`"198.18.%d.%d"`, i/200, i%200+1))
		}
		return `"externalIPs": [` + strings.Join(ips, ",") + `],`
	}
	for _, test := range []struct {
		what, spec string
		size
		more     int // copies of the first slice
		services int
		why      string
	}{
		{"as many frontends", externalIPs(3), size{250, 0, 0}, 0, 1000, ""},
		{"more frontends", externalIPs(3), size{251, 2, 300}, 0, 0,
			"251 ports at 4 addresses are 1004 frontends: a Service has at most 1000"},
		{"as many rows at all ports", "", size{256, 1, 1024}, 0, 256, ""},
		{"more rows at all ports", "", size{257, 1, 1024}, 0, 0,
			"its endpoints at 1 address have 263168 rows: a Service has at most 262144"},
		{"as many rows at all addresses", externalIPs(63), size{1, 5, 1000}, 0, 64, ""},
		{"more rows at all addresses", externalIPs(64), size{1, 5, 1000}, 0, 0,
			"its endpoints at 65 addresses have 266240 rows: a Service has at most 262144"},
		{"as many endpoints in slices", "", size{1, 1, 1023}, 255, 1, ""},
		{"more endpoints in slices", "", size{1, 1, 1023}, 256, 0,
			"its EndpointSlices have 263168 endpoints and ports: a Service has at most 262144"},
	} {
		of := many(t, test.spec, test.size)
		for range test.more {
			of.of = append(of.of, of.of[0])
		}
		var set Set
		var err error
		mb := allocated(func() { set, err = of.Set() })
		why := ""
		if err != nil {
			why = strings.TrimPrefix(err.Error(), "Service shop/web: ")
		}
		testkit.Check(t, len(set.Services) == test.services && why == test.why,
			"%s: there are %d services, %v", test.what, len(set.Services), err)
		testkit.Check(t, err == nil || mb <= 1, "%s: it takes %d MB", test.what, mb)
	}
}

// TestSlicesReadOnce reads a slice once for all ports of a Service.
func TestSlicesReadOnce(t *testing.T) {
	of := many(t, "", size{50, 1, 1})
	fqdn := *of.of[0]
	fqdn.AddressType = "FQDN"
	bad := *of.of[0]
	bad.bad = []string{"endpoints[0].addresses: empty"}
	of.of = append(of.of, &fqdn, &bad)
	set, err := of.Set()
	testkit.Check(t, err == nil && len(set.Services) == 50 && len(set.Notes) == 1 && len(set.NotServed) == 1,
		"there are %d services, notes %q, not served %q, %v", len(set.Services), set.Notes, set.NotServed, err)
}

// TestManyRanges sorts source ranges once, not for each frontend.
func TestManyRanges(t *testing.T) {
	var ranges []string
	for i := range 4000 {
		ranges = append(ranges, fmt.Sprintf(`"30.%d.%d.0/24"`, 100-i/200, i%200))
	}
	of := many(t, `"type": "LoadBalancer", "loadBalancerSourceRanges": [`+strings.Join(ranges, ",")+`],`, size{300, 0, 0})
	of.kube.Status.LoadBalancer.Ingress = []ingress{{IP: "192.0.2.7"}}
	var set Set
	var err error
	mb := allocated(func() { set, err = of.Set() })
	if err != nil || len(set.Services) != 600 ||
		slices.ContainsFunc(set.Services, func(s service.Service) bool { return s.External && len(s.SourceRanges) != 4000 }) {
		t.Fatalf("there are %d services, %q, %v", len(set.Services), set.NotServed, err)
	}
	testkit.Check(t, mb <= 10, "it takes %d MB", mb)
}

// TestRemarks reports likely mistakes in a Service of a cluster.
func TestRemarks(t *testing.T) {
	const ready, unready = `{"addresses": ["10.1.0.1"]}`, `{"addresses": ["10.1.0.1"], "conditions": {"ready": false}}`
	const http = `{"name": "http", "port": 8080}`
	for what, test := range map[string]struct{ clusterIP, port, slicePorts, endpoint, want string }{
		"as it should be":        {"10.96.0.1", `"web"`, http, ready, "[]"},
		"no endpoint":            {"10.96.0.1", `"web"`, http, "", "[no endpoints]"},
		"none that is ready":     {"10.96.0.1", `"web"`, http, unready, "[0 of 1 endpoints are ready]"},
		"none that has the name": {"10.96.0.1", `"wbe"`, "", ready, `[spec.ports[0]: no endpoint has the port "wbe"]`},
		"none that has the other": {"10.96.0.1", "8080", `{"name": "metrics", "port": 9090}`, ready,
			"[spec.ports[0]: no endpoint has the port 8080]"},
		"headless": {"None", `"web"`, http, ready, "[headless: no cluster IP to serve]"},
	} {
		c := NewCluster(Options{})
		put(t, c, fmt.Sprintf(`{"spec": {"clusterIP": %q, "ports": [{"name": "http", "port": 80, "targetPort": %s}]}}`,
			test.clusterIP, test.port),
			[2]string{test.slicePorts, test.endpoint})
		set, err := c.Snapshot(web).Set()
		if have := fmt.Sprint(set.Remarks); err != nil || have != test.want || len(set.Notes) > 0 {
			t.Errorf("%s: %s, notes %v, %v, want %s", what, have, set.Notes, err, test.want)
		}
	}
}

// TestBackendThatIsService has a file with a service whose backend is another one, of the same protocol and of another.
func TestBackendThatIsService(t *testing.T) {
	const file = `{schema: 1, services: [{service: "10.96.0.1:80", protocol: %s, backends: ["10.96.0.2:80"]}, ` +
		`{service: "10.96.0.2:80", protocol: tcp, backends: []}]}`
	for protocol, want := range map[string]int{"tcp": 1, "any": 1, "udp": 0} {
		set, err := Read(strings.NewReader(fmt.Sprintf(file, protocol)), Options{})
		if err != nil || len(set.Services) != 2 || len(set.Notes) != want || want > 0 &&
			!strings.Contains(set.Notes[0], "backend 10.96.0.2:80 is the frontend of") {
			t.Errorf("%s: %d services, notes %q, %v", protocol, len(set.Services), set.Notes, err)
		}
	}
}

// TestSCTPPortIsToldOnce adds endpoints to a Service of SCTP with another target port: the report stays the same.
func TestSCTPPortIsToldOnce(t *testing.T) {
	c, endpoints := NewCluster(Options{}), ""
	for i := range 3 {
		endpoints = fmt.Sprintf(`{"addresses": ["10.1.0.%d"]}`, 9-i) + endpoints
		put(t, c, `{"spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80, "protocol": "SCTP", "targetPort": 8080}]}}`,
			[2]string{`{"port": 8080, "protocol": "SCTP"}`, endpoints})
		endpoints = ", " + endpoints
		set, err := c.Snapshot(web).Set()
		const want = `[Service shop/web: left out: backends at port 8080: the port differs from service "10.96.0.1:80", ` +
			`and the kernel cannot correct the checksum of sctp]`
		have := fmt.Sprint(set.NotServed)
		testkit.Check(t, err == nil && have == want, "%d endpoints: %s, %v, want %s", i+1, have, err, want)
	}
}
