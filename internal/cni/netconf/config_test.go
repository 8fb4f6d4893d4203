// SPDX-License-Identifier: Apache-2.0

package netconf

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"

	"mustang/internal/ipam"
	"mustang/internal/podlink"
	"mustang/internal/qdisc"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

func withIPAM(more string) string {
	return fmt.Sprintf(`{"cniVersion":"1.1.0","name":"pods","type":"mustang-cni",
		"ipam":{"type":"mustang","ranges":[[{"subnet":"10.88.0.0/16"}]]}%s}`, more)
}

// withHost is a configuration with host addresses, so that the gateway is another router.
func withHost(hosts, more string) string {
	return withIPAM(`, "link":"macvlan", "hostAddresses":[` + hosts + `]` + more)
}

// TestHostAddresses excludes the host addresses from the ranges.
func TestHostAddresses(t *testing.T) {
	c := testkit.Must(Parse([]byte(withHost(`"10.88.0.2"`, ""))))(t)
	want := ipam.Range{Subnet: netip.MustParsePrefix("10.88.0.0/16"),
		Exclude: []netip.Prefix{netip.MustParsePrefix("10.88.0.2/32")}}
	testkit.Check(t, reflect.DeepEqual(c.IPAM.Sets, []ipam.RangeSet{{want}}) && len(c.HostAddresses) == 1, "got %+v", c)
}

// limits are the bandwidths of configurations here.
var limits = podlink.Bandwidth{ToPod: qdisc.Limit{Rate: 1000, Burst: 2000}, FromPod: qdisc.Limit{Rate: 3000,
	Burst: 4000}}

// TestParse parses each key.
func TestParse(t *testing.T) {
	c, err := Parse([]byte(withIPAM(`, "link":"macvlan", "parent":"eth1", "bridge":"br0", "ovsdb":"/run/db.sock", ` +
		`"mtu":1400,
		"bigTCP":"off", "services":"tc", "sourceGuard":"on", "allowedAddresses":["10.88.0.200","fd00:9::/48"], "masquerade":true, "dns":{"nameservers":["10.96.0.10"]}, "capabilities":{"ips":true},
		"prevResult":null, "args":{"any":1}, "cni.dev/valid-attachments":[{"containerID":"c","ifname":"eth0"}],
		"runtimeConfig":{"ips":["10.88.0.7/16","fd00::7"], "mac":"02:00:00:00:00:07", "aliases":{"pods":["a"]},
			"bandwidth":{"ingressRate":1000,"ingressBurst":2000,"egressRate":3000,"egressBurst":4000},
			"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"TCP"},
				{"hostPort":53,"containerPort":5353,"protocol":"udp","hostIP":"192.0.2.1"},
				{"hostPort":1,"containerPort":2,"protocol":"tcp","hostIP":"0.0.0.0"}]}`)))
	testkit.Succeed(t, err)
	c.Raw = nil
	c.IPAM.Sets = nil
	want := Config{
		CNIVersion: "1.1.0", Name: "pods", Link: "macvlan", Parent: "eth1", Bridge: "br0", OVSDB: "/run/db.sock", MTU: 1400,
		BigTCP: BigTCPOff, Services: ServicesTC, Policies: policiesAuto,
		SourceGuard:      true,
		AllowedAddresses: []netip.Prefix{netip.MustParsePrefix("10.88.0.200/32"), netip.MustParsePrefix("fd00:9::/48")},
		Masquerade:       true, IPAM: IPAM{Type: IPAMType}, DNS: types.DNS{Nameservers: []string{"10.96.0.10"}},
		Valid: []types.GCAttachment{{ContainerID: "c", IfName: "eth0"}},
		Runtime: Runtime{
			IPs: []netip.Addr{netip.MustParseAddr("10.88.0.7"), netip.MustParseAddr("fd00::7")},
			MAC: []byte{2, 0, 0, 0, 0, 7}, Bandwidth: limits,
			Ports: []Port{
				{HostPort: 8080, ContainerPort: 80, Protocol: service.TCP},
				{HostIP: netip.MustParseAddr("192.0.2.1"), HostPort: 53, ContainerPort: 5353, Protocol: service.UDP},
				{HostPort: 1, ContainerPort: 2, Protocol: service.TCP},
			},
		},
	}
	testkit.Check(t, reflect.DeepEqual(c, want), "got  %+v\nwant %+v", c, want)
}

// TestParseDefaults parses minimal configurations.
func TestParseDefaults(t *testing.T) {
	c := testkit.Must(Parse([]byte(withIPAM(""))))(t)
	sets := []ipam.RangeSet{{{Subnet: netip.MustParsePrefix("10.88.0.0/16")}}}
	testkit.Check(t, c.Link == LinkAuto && c.BigTCP == BigTCPAuto && c.Services == ServicesSocket &&
		c.OVSDB == DefaultOVSDB && !c.Masquerade && reflect.DeepEqual(c.IPAM.Sets, sets),
		"got %+v", c)
	testkit.Must(Parse([]byte(`{"name":"pods","type":"mustang-cni","chained":true}`)))(t)
	other := `{"name":"pods","ipam":{"type":"host-local","subnet":"10.0.0.0/8","whatever":[1]}}`
	c, err := Parse([]byte(other))
	testkit.Check(t, err == nil && c.IPAM.Type == "host-local", "%+v, %v", c.IPAM, err)
}

// TestParseErrors checks the code and the text of the errors of invalid configurations.
func TestParseErrors(t *testing.T) {
	const invalid, unknown, decoding = types.ErrInvalidNetworkConfig, types.ErrUnsupportedField, types.ErrDecodingFailure
	checkErrors(t, []parseError{
		{`nonsense`, decoding, "nonsense"},
		{`[1]`, decoding, "[1]"},
		{`null`, decoding, "null"},
		{withIPAM(`, "lnk":"veth"`), unknown, `lnk: "veth"`},
		{withIPAM(`, "link":"tap"`), invalid, `"tap"`},
		{`{"name":"../x","Name":"ok","ipam":{"type":"mustang","ranges":[[{"subnet":"10.0.0.0/8"}]]}}`, invalid,
			`name: invalid characters found in network name "../x"`},
		{`{"Name":"ok","ipam":{"type":"mustang","ranges":[[{"subnet":"10.0.0.0/8"}]]}}`, invalid, "name: missing"},
		{withIPAM(`, "link":5`), invalid, "link: want a string, got 5"},
		{withIPAM(`, "services":"all"`), invalid, `"all"`},
		{withIPAM(`, "sourceGuard":"yes"`), invalid, `"yes"`},
		{withIPAM(`, "allowedAddresses":"10.0.0.1"`), invalid, "allowedAddresses: want an array"},
		{withIPAM(`, "allowedAddresses":["10.0.0.1/8"]`), invalid, `got "10.0.0.1/8"`},
		{withIPAM(`, "allowedAddresses":["ff02::1"]`), invalid, `got "ff02::1"`},
		{withIPAM(`, "allowedAddresses":["here"]`), invalid, `got "here"`},
		{withIPAM(`, "sourceGuard":"off", "allowedAddresses":["10.0.0.1"]`), invalid, "without sourceGuard"},
		{withIPAM(`, "bigTCP":"big"`), invalid, `"big"`},
		{withIPAM(`, "mtu":-1`), invalid, "mtu: -1"},
		{withIPAM(`, "mtu":"big"`), invalid, `mtu: want a number of bytes, got "big"`},
		{withIPAM(`, "masquerade":"yes"`), invalid, "masquerade"},
		{withIPAM(`, "parent":"a/b"`), invalid, "parent"},
		{withIPAM(`, "bridge":"a name of a bridge"`), invalid, "bridge"},
		{withIPAM(`, "ovsdb":"db.sock"`), invalid, "ovsdb"},
		{withIPAM(`, "chained":true`), invalid, "ipam"},
		{`{"name":"pods","chained":true,"link":"veth"}`, invalid, "link"},
		{`{"name":"pods","chained":true,"masquerade":true}`, invalid, "masquerade"},
		{`{"name":"pods","chained":true,"services":"off"}`, invalid, "services"},
		{`{"name":"pods"}`, invalid, "ipam.type"},
		{`{"name":"pods","ipam":{"type":"mustang"}}`, invalid, "ipam.ranges"},
		{`{"name":"pods","ipam":{"type":"mustang","ranges":[[]]}}`, invalid, "ipam.ranges[0]"},
		{`{"name":"pods","ipam":{"type":"mustang","ranges":[[{"subnet":"10.0.0.0"}]]}}`, invalid, "ipam.ranges[0][0].subnet"},
		{`{"name":"pods","ipam":{"type":"mustang","ranges":[[{"subnet":"10.0.0.0/8","start":"10.0.0.9"}]]}}`, unknown,
			"ipam.ranges[0][0].start"},
		{`{"name":"pods","ipam":{"type":"mustang","ranges":[[{"subnet":"10.0.0.0/8","rangeStart":"11.0.0.9"}]]}}`, invalid,
			"11.0.0.9"},
		{`{"name":"pods","ipam":{"type":"mustang","ranges":[[{"subnet":"10.0.0.0/8"}],[{"subnet":"11.0.0.0/8"}]]}}`, invalid,
			"second set"},
		{`{"name":"pods","ipam":{"type":"mustang","ranges":[[{"subnet":"10.0.0.0/8"},{"subnet":"11.0.0.0/8"}]]}}`, invalid,
			"one subnet"},
		{`{"name":"pods","ipam":{"type":"dhcp"}}`, invalid, "does not work with link auto"},
		{`{"name":"pods","link":"ipvlan-l2","hostAddresses":["10.88.0.2"],"ipam":{"type":"dhcp"}}`, invalid,
			"(supported: bridge, macvlan)"},
		{`{"name":"pods","link":"macvlan","ipam":{"type":"dhcp"}}`, invalid, "hostAddresses: missing"},
		{`{"name":"pods","link":"macvlan","hostAddresses":["fd00::2"],"ipam":{"type":"dhcp"}}`, invalid,
			"hostAddresses: missing"},
		{withIPAM(`, "link":"veth", "hostAddresses":["10.88.0.2"]`), invalid, "hostAddresses: not supported with link veth"},
		{withIPAM(`, "link":"ipvlan-l3", "hostAddresses":["10.88.0.2"]`), invalid,
			"hostAddresses: not supported with link ipvlan-l3"},
		{withIPAM(`, "hostAddresses":["10.88.0.2"]`), invalid, "hostAddresses: not supported with link auto"},
		{`{"name":"pods","chained":true,"hostAddresses":["10.88.0.2"]}`, invalid, "hostAddresses: a chained"},
		{withHost(`"10.88.0.2"`, `, "masquerade":true`), invalid, "masquerade: not supported with hostAddresses"},
		{withHost(``, ``), invalid, "hostAddresses: want"},
		{withHost(`"here"`, ``), invalid, `hostAddresses: want an array of addresses, got ["here"]`},
		{withHost(`"10.88.0.2/16"`, ``), invalid, "hostAddresses: want"},
		{withHost(`""`, ``), invalid, "hostAddresses[0]"},
		{withHost(`"224.0.0.1"`, ``), invalid, `hostAddresses[0]: invalid host address "224.0.0.1"`},
		{withHost(`"10.88.0.1"`, ``), invalid, "hostAddresses[0]: 10.88.0.1 is the gateway"},
		{withHost(`"10.88.255.255"`, ``), invalid, "hostAddresses[0]: 10.88.255.255"},
		{withHost(`"10.89.0.1"`, ``), invalid, "hostAddresses[0]: 10.89.0.1 is in no subnet"},
		{withHost(`"fd00::2"`, ``), invalid, "hostAddresses[0]: fd00::2 is in no subnet"},
		{withHost(`"10.88.0.2","10.88.0.3"`, ``), invalid, "hostAddresses[1]: 10.88.0.3 is the second"},
		{`{"name":"pods","link":"macvlan","hostAddresses":["10.0.0.2"],"ipam":{"type":"mustang",` +
			`"ranges":[[{"subnet":"10.0.0.0/30"}]]}}`, invalid, "no address is left"},
		{withIPAM(`, "runtimeConfig":{"ips":["here"]}`), invalid, `runtimeConfig.ips[0]: want an address, got "here"`},
		{withIPAM(`, "runtimeConfig":{"mac":"here"}`), invalid, `"here"`},
		{withIPAM(`, "runtimeConfig":{"infinibandGUID":"x"}`), unknown, "runtimeConfig.infinibandGUID"},
		{withIPAM(`, "runtimeConfig":{"bandwidth":{"rate":1}}`), unknown, "runtimeConfig.bandwidth.rate"},
		{withIPAM(`, "runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":0}]}`), invalid,
			"portMappings[0].containerPort"},
		{withIPAM(`, "runtimeConfig":{"portMappings":[{"hostPort":99999,"containerPort":1}]}`), invalid, "99999"},
		{withIPAM(`, "runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":1,"protocol":"sctp"}]}`),
			invalid, "sctp"},
		{withIPAM(`, "runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":1,"hostIP":"x"}]}`), invalid, "hostIP"},
	})
}

// parseError is an invalid configuration.
type parseError struct {
	config  string
	code    uint
	culprit string
}

func checkErrors(t *testing.T, rows []parseError) {
	t.Helper()
	for _, test := range rows {
		_, err := Parse([]byte(test.config))
		var coded *types.Error
		testkit.Check(t, errors.As(err, &coded) && coded.Code == test.code && strings.Contains(coded.Msg, test.culprit) &&
			!strings.Contains(coded.Msg, "\n"),
			"%s\ngives %v, want code %d and %q", test.config, err, test.code, test.culprit)
	}
}

// TestParseContainerd parses the capability arguments of containerd 1.6.
func TestParseContainerd(t *testing.T) {
	c := testkit.Must(Parse([]byte(withIPAM(`, "runtimeConfig":{
		"portMappings":[{"HostPort":8080,"ContainerPort":80,"Protocol":"tcp","HostIP":"192.0.2.1"}],
		"bandwidth":{"IngressRate":1000,"IngressBurst":2000,"EgressRate":3000,"EgressBurst":4000}}`))))(t)
	want := Runtime{
		Ports: []Port{
			{HostIP: netip.MustParseAddr("192.0.2.1"), HostPort: 8080, ContainerPort: 80, Protocol: service.TCP},
		},
		Bandwidth: limits,
	}
	testkit.Check(t, reflect.DeepEqual(c.Runtime, want), "got  %+v\nwant %+v", c.Runtime, want)
	// A key in two spellings is an error.
	_, err := Parse([]byte(withIPAM(`, "runtimeConfig":{"bandwidth":{"ingressRate":1,"IngressRate":2}}`)))
	testkit.Check(t, err != nil, "two ingress rates are accepted")
}

// TestParseLimits rejects lists that are longer than the limits.
func TestParseLimits(t *testing.T) {
	many := func(element string, count int) string { return strings.Repeat(element+",", count) + element }
	checkErrors(t, []parseError{
		{withRoutes(many(`{"dst":"10.9.0.0/16"}`, 1024), ``), types.ErrInvalidNetworkConfig,
			"ipam.routes: 1025 elements, want 1024 at most"},
		{`{"name":"pods","ipam":{"type":"mustang","ranges":[[` + many(`{"subnet":"10.0.0.0/8"}`, 256) + `]]}}`,
			types.ErrInvalidNetworkConfig, "ipam.ranges[0]: 257 elements, want 256 at most"},
		{`{"name":"pods","ipam":{"type":"mustang","ranges":[[{"subnet":"10.0.0.0/8","exclude":[` +
			many(`"10.1.0.0/16"`, 1024) + `]}]]}}`,
			types.ErrInvalidNetworkConfig, "ipam.ranges[0][0].exclude: 1025 elements, want 1024 at most"},
		{withIPAM(`,"runtimeConfig":{"ips":[` + many(`"10.88.0.2"`, 256) + `]}`), types.ErrInvalidNetworkConfig,
			"runtimeConfig.ips: 257 elements, want 256 at most"},
	})
}

// TestSelectLink selects a link mode that the kernel supports.
func TestSelectLink(t *testing.T) {
	testkit.RequireRoot(t)
	name := testkit.Must(SelectLink())(t)
	mode := testkit.Must(podlink.Lookup(name))(t)
	testkit.Succeed(t, mode.Probe())
	testkit.Check(t, slices.Contains(AutoLinks(), name) && slices.Contains(Links(), name),
		"%s is not among %v and %v", name, AutoLinks(), Links())
}

// TestCheckProxied refuses services off where pods of a node reach each other past the host.
func TestCheckProxied(t *testing.T) {
	for link, refused := range map[string]bool{
		"auto": false, "veth": false, "netkit": false, "bridge": false, "macvlan": true, "ipvlan-l2": true, "ipvlan-l3": true,
		"ipvlan-l3s": true, "ovs-veth": true, "ovs-internal": true,
	} {
		testkit.Check(t, slices.Contains(Links(), link), "%s is no link", link)
		err := CheckProxied(link, ServicesOff)
		testkit.Check(t, (err != nil) == refused, "%s with services off: %v", link, err)
		testkit.Succeed(t, CheckProxied(link, ServicesTC))
	}
}

func withRoutes(routes, more string) string {
	return strings.Replace(withIPAM(more), `]]}`, `]],"routes":[`+routes+`]}`, 1)
}

// TestParseRoutes parses each key of a route.
func TestParseRoutes(t *testing.T) {
	c := testkit.Must(Parse([]byte(withRoutes(`{"dst":"0.0.0.0/0"},{"dst":"10.9.0.0/16","gw":"10.88.0.9","mtu":1400,`+
		`"advmss":1000,"priority":4294967295}`, ``))))(t)
	want := []podlink.Route{
		{Dst: netip.MustParsePrefix("0.0.0.0/0")},
		{Dst: netip.MustParsePrefix("10.9.0.0/16"), Via: netip.MustParseAddr("10.88.0.9"), MTU: 1400, AdvMSS: 1000,
			Priority: 4294967295},
	}
	testkit.Check(t, reflect.DeepEqual(c.IPAM.Routes, want) && !c.NoDefaultRoute, "got %+v", c)
	c, err := Parse([]byte(withIPAM(`, "defaultRoute":false`)))
	testkit.Check(t, err == nil && c.NoDefaultRoute, "got %+v, %v", c, err)
}

// TestParseRouteErrors checks the errors of routes. What podlink refuses has rows in its own tests.
func TestParseRouteErrors(t *testing.T) {
	const invalid, unknown, decoding = types.ErrInvalidNetworkConfig, types.ErrUnsupportedField, types.ErrDecodingFailure
	checkErrors(t, []parseError{
		{withRoutes(`7`, ``), decoding, "ipam.routes[0]: want a JSON object, got 7"},
		{withRoutes(`{"gw":"10.88.0.2"}`, ``), invalid, "ipam.routes[0].dst: missing"},
		{withRoutes(`{"dst":"10.9.0.0"}`, ``), invalid, `ipam.routes[0].dst: want a prefix like 10.9.0.0/16, got "10.9.0.0"`},
		{withRoutes(`{"dst":"10.9.0.1/16"}`, ``), invalid,
			"ipam.routes[0].dst: invalid network prefix 10.9.0.1/16: want one like 10.9.0.0/16"},
		{withRoutes(`{"dst":"fd00:9::/48"}`, ``), invalid,
			"ipam.routes[0].dst: fd00:9::/48: the pod lacks an address of its family"},
		{withRoutes(`{"dst":"10.9.0.0/16","gw":"here"}`, ``), invalid, `ipam.routes[0].gw: want an address, got "here"`},
		{withRoutes(`{"dst":"10.9.0.0/16","gw":"10.88.0.9"}`, `, "link":"veth"`), invalid,
			"ipam.routes[0].gw: 10.88.0.9 is unreachable: the pod's only"},
		{withRoutes(`{"dst":"10.9.0.0/16","mtu":1401}`, `, "mtu":1400`), invalid, "ipam.routes[0].mtu: 1401"},
		{withRoutes(`{"dst":"10.9.0.0/16","mtu":"big"}`, ``), invalid,
			`ipam.routes[0].mtu: want a number of bytes, got "big"`},
		{withRoutes(`{"dst":"10.9.0.0/16","advmss":65496}`, ``), invalid, "ipam.routes[0].advmss: 65496"},
		{withRoutes(`{"dst":"10.9.0.0/16","priority":4294967296}`, ``), invalid, "ipam.routes[0].priority: 4294967296"},
		{withRoutes(`{"dst":"10.9.0.0/16","table":100}`, ``), unknown, "ipam.routes[0].table: 100"},
		{withRoutes(`{"dst":"10.9.0.0/16","scope":253}`, ``), unknown, "ipam.routes[0].scope: 253"},
		{withRoutes(`{"dst":"10.9.0.0/16"},{"dst":"0.0.0.0/0"}`, `, "defaultRoute":false`), invalid,
			"ipam.routes[1].dst: 0.0.0.0/0 is a default route"},
		{withIPAM(`, "defaultRoute":"no"`), invalid, "defaultRoute: want true or false"},
		{`{"name":"pods","chained":true,"defaultRoute":false}`, invalid, "defaultRoute: a chained"},
	})
}

// FuzzParse parses configurations. Parse does not panic, its errors have a code and name
// something on one line, and what it accepts has valid values within their limits.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		`{}`, `null`, `[1]`, withIPAM(``), withIPAM(`,"link":"veth","services":"both","masquerade":true,"mtu":1400`),
		withHost(`"10.88.0.2"`, ``), withHost(`"10.88.0.2","fd00::2"`, `,"mtu":-1`),
		withRoutes(`{"dst":"10.9.0.0/16","gw":"10.88.0.9"}`, `,"link":"bridge"`), withRoutes(`{"dst":"0.0.0.0/0"}`,
			`,"defaultRoute":false`),
		withIPAM(`,"runtimeConfig":{"ips":["10.88.0.7/16"],"mac":"02:00:00:00:00:07","portMappings":[{"HostPort":80,` +
			`"containerPort":80}],"bandwidth":{"IngressRate":1}}`),
		withIPAM(`,"prevResult":{"cniVersion":"1.0.0","ips":[{"address":"10.88.0.2/16"}]}`),
		`{"name":"pods","chained":true,"services":"off","runtimeConfig":{"portMappings":[{"hostPort":1,"containerPort":2}]}}`,
		`{"name":"pods","link":"macvlan","hostAddresses":["10.0.0.2"],"ipam":{"type":"dhcp","daemonSocketPath":"/x"}}`,
		`{"name":"pods","ipam":{"type":"mustang","ranges":[[{"subnet":"fd00::/64","rangeStart":"fd00::9",` +
			`"exclude":["fd00::/65","fd00::8000:0:0:0/65"]}]]}}`,
		`{"name":"pods","ipam":{"type":"mustang","ranges":[[{"subnet":"::/0","gateway":"fe80::1%x"}],[{"subnet":"0.0.0.0/` +
			`0"}]]}}`,
		`{"name":"../x","Name":"ok"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		_ = ParseHead(data)
		c, err := Parse(data)
		testkit.Require(t, c.Name == "" || utils.ValidateNetworkName(c.Name) == nil, "%q: name %q, %v", data, c.Name, err)
		if err != nil {
			var coded *types.Error
			testkit.Require(t, errors.As(err, &coded) && coded.Msg != "", "%q: error %v", data, err)
			return
		}
		if c.MTU < 0 || c.MTU > 65535 || len(c.IPAM.Sets) > 2 || len(c.IPAM.Routes) > 1024 || len(c.HostAddresses) > 2 {
			t.Fatalf("%q: accepted %+v", data, c)
		}
		for _, p := range c.Runtime.Ports {
			testkit.Require(t, p.HostPort != 0 && p.ContainerPort != 0, "%q: accepted %+v", data, p)
		}
		for _, set := range c.IPAM.Sets {
			_, _, _ = c.HostPrefixes([]PodAddress{{set[0].Subnet, set[0].WithDefaults().Gateway}})
		}
		_, _ = c.PreviousResult()
		testkit.Require(t, json.Valid(c.Raw), "%q: accepted", data)
	})
}
